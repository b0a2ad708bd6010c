/* The level of the pace model: blocks, noise, changes, what is published. See pace.h for the mechanism. */
#include "core/partition/pace_internal.h"

#include <math.h>
#include <string.h>

#define NOISE_FIRST      0.05 /* of a block, before it is learnt */
#define NOISE_LEAST      0.01
#define NOISE_MOST       0.30
#define NOISE_BLOCKS     16  /* blocks that its mean goes over */
#define CUSUM_FORGIVES   1.0 /* sigma that each block may be off */
#define CUSUM_CLIP       4.0 /* sigma that one block counts at most: a single outlier never is a change */
#define CUSUM_ALARM      5.5
#define AGREE            0.06 /* two blocks that differ by less say the same */
#define LIKE             3.0  /* their distances from the old level differ by less than that factor */
#define REST_LEAST       0.04 /* what is published moves by more than this, or not at all */
#define REST_SIGMAS      2.5
#define REST_UNSTEADY    0.20
#define UNSTEADY_ALIKE   0.35
#define UNSTEADY_STEPS   12
#define UNSTEADY_CHANGES 3
#define OUTSIDE          0.35 /* log: so far beyond both levels of a to and fro a change is none of it */
#define DRIFT_TELLS      0.15
#define SCALE_KEEPS      4 /* blocks that stay, scaled */
#define SCALE_CONFIRMS   2
#define SCALE_STEPS      3 /* a measured change is so long what vitals tell of later */
#define PATIENCE_FIRST   8 /* steps without leases before it hopes to be faster again */
#define PATIENCE_MOST    256
#define HOPE             0.1 /* log, each step */
#define BUSY_STEPS       4
#define SIZE_MOST        2.5 /* times that a sample may cost in a micro-batch of another size */
#define USUAL_FOLLOWS    0.05
#define USUAL_ANEW       200 /* steps after which the new speed is the usual one */

enum { SLOWER, FASTER };

void pace_init(pace_model_t *model)
{
    memset(model, 0, sizeof *model);
    model->noise = NOISE_FIRST;
    model->patience = PATIENCE_FIRST;
    model->usual = model->told = NAN;
    model->factor = 1;
    for (uint32_t i = 0; i < PACE_STEPS; i++) model->step_levels[i] = NAN;
}

void pace_seed(pace_model_t *model, double sample_ns, double step_ns)
{
    if (step_ns > 0) model->prior_step_ns = step_ns;
    if (!(sample_ns > 0) || model->measured) return;
    model->published = log(sample_ns);
    model->known = true;
}

/* ---- level ---- */

static double block_level(const pace_model_t *m, const pace_block_t *block)
{
    return log(block->ns / pace_units(m, block));
}

static void insert(double *sorted, uint32_t n, double value)
{
    uint32_t i = n;
    for (; i > 0 && sorted[i - 1] > value; i--) sorted[i] = sorted[i - 1];
    sorted[i] = value;
}

double pace_level(const pace_model_t *m, uint32_t from, uint32_t to)
{
    double sorted[PACE_WINDOW] = {0};
    uint32_t n = 0, pure = 0;
    for (uint32_t i = from; i < to; i++) pure += m->window[i].lasts == 0;
    for (uint32_t i = from; i < to; i++) {
        if (pure >= 3 && m->window[i].lasts > 0) continue;
        const double value = block_level(m, &m->window[i]);
        insert(sorted, n++, value);
    }
    const uint32_t trim = (n + 1) / 4;
    double sum = 0;
    for (uint32_t i = trim; i < n - trim; i++) sum += sorted[i];
    return sum / (n - 2 * trim);
}

void pace_shift(pace_model_t *m, double shift)
{
    m->published += shift;
    m->usual += shift;
    m->told += shift;
    m->swing[0] += shift;
    m->swing[1] += shift;
    m->scaled_from += shift;
    for (uint32_t i = 0; i < PACE_STEPS; i++) m->step_levels[i] += shift;
}

static double uncertainty(const pace_model_t *m)
{
    return m->n_window > 0 ? 1.1 * m->noise / sqrt(m->n_window) : 0.3;
}

/* Mean log level of the steps since the changes to and fro began, without the eighths at both ends. */
static double mean_of_steps(const pace_model_t *m)
{
    double sorted[PACE_STEPS], sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < PACE_STEPS && i < m->step - m->unsteady_from; i++) {
        const double level = m->step_levels[(m->step - 1 - i) % PACE_STEPS];
        if (!isnan(level)) insert(sorted, n++, level);
    }
    if (n == 0) return m->published;
    const uint32_t trim = n / 8, left = n - 2 * trim;
    for (uint32_t i = trim; i < trim + left; i++) sum += sorted[i];
    return sum / left;
}

/* Another speed: last runs took as much beyond their samples, in samples. */
static void jump(pace_model_t *m, double level)
{
    for (uint32_t i = 0; i < PACE_EXTRAS; i++) m->lasts[i].ns *= exp(level - m->published);
    m->published = level;
}

/* The same speed, better known: last runs take as long as they did. */
static void publish(pace_model_t *m, double level)
{
    m->published = level;
    pace_judge_excess(m);
}

/* ---- changes ---- */

/* Three changes shortly after one another, each taking the one before about back. */
static bool to_and_fro(const pace_model_t *m)
{
    const double *f = m->change_factors;
    return m->n_changes >= UNSTEADY_CHANGES && m->step - m->change_steps[2] <= UNSTEADY_STEPS &&
           fabs(f[0] + f[1]) < UNSTEADY_ALIKE * fabs(f[1]) && fabs(f[1] + f[2]) < UNSTEADY_ALIKE * fabs(f[2]);
}

/* factor: log of speed after / before. */
static void tell(pace_model_t *m, double factor, uint64_t since_step)
{
    const uint32_t keep = sizeof m->change_steps / sizeof m->change_steps[0];
    memmove(m->change_steps + 1, m->change_steps, (keep - 1) * sizeof m->change_steps[0]);
    memmove(m->change_factors + 1, m->change_factors, (keep - 1) * sizeof m->change_factors[0]);
    m->change_steps[0] = m->step;
    m->change_factors[0] = factor;
    if (m->n_changes < keep) m->n_changes++;
    for (uint32_t i = 0; i < PACE_EXTRAS; i++) m->extras[i] /= exp(factor);
    if (m->unsteady) return;
    if (to_and_fro(m)) {
        m->unsteady = true;
        m->unsteady_from = m->change_steps[2];
        m->swing[0] = fmin(m->published, m->published + factor);
        m->swing[1] = fmax(m->published, m->published + factor);
        jump(m, mean_of_steps(m));
    }
    m->told = m->published;
    m->changed = true;
    m->changes++;
    m->factor = exp(factor);
    m->since_step = since_step;
}

static void forget(pace_model_t *m, uint32_t keep)
{
    memmove(m->window, m->window + m->n_window - keep, keep * sizeof m->window[0]);
    m->n_window = keep;
    m->sum[SLOWER] = m->sum[FASTER] = 0;
    m->since[SLOWER] = m->since[FASTER] = 0;
    m->streak[SLOWER] = m->streak[FASTER] = 0;
}

/* How many of the newest blocks, beside the newest, have left the old level about as far as it has. */
static uint32_t like_newest(const pace_model_t *m, uint32_t streak, double level)
{
    const double moved = fabs(block_level(m, &m->window[m->n_window - 1]) - level);
    uint32_t like = 1;
    for (; like < streak && like < m->n_window; like++) {
        const double other = fabs(block_level(m, &m->window[m->n_window - 1 - like]) - level);
        if (other < moved / LIKE || other > moved * LIKE) break;
    }
    return like;
}

/* Blocks that are of another speed than those before; 0: no change (yet). A large change needs three that are
 * alike, or two that agree: outliers of unlike size are none. A small one needs a streak, and all that hinted
 * at it counts. */
static uint32_t changed_blocks(const pace_model_t *m, int direction, double level, double sigma)
{
    if (m->sum[direction] < CUSUM_ALARM) return 0;
    const double value = block_level(m, &m->window[m->n_window - 1]);
    const uint32_t like = like_newest(m, m->streak[direction], level);
    if (fabs(value - level) < CUSUM_CLIP * sigma) return like >= 3 ? m->since[direction] : 0;
    const double apart = fabs(value - block_level(m, &m->window[m->n_window - 2]));
    return like >= 3 || (like == 2 && apart < fmax(AGREE, 3 * m->noise)) ? like : 0;
}

/* The newest `keep` blocks are of another speed than those before. */
static bool alarm(pace_model_t *m, uint32_t keep, double level)
{
    double before = keep < m->n_window ? pace_level(m, 0, m->n_window - keep) : level;
    if (m->scaled_left > 0) before = m->scaled_from;
    m->scaled_left = 0;
    forget(m, keep < m->n_window ? keep : m->n_window);
    const double after = pace_level(m, 0, m->n_window);
    if (m->unsteady && (after < m->swing[0] - OUTSIDE || after > m->swing[1] + OUTSIDE)) {
        m->unsteady = false;
        m->n_changes = 0;
        before = m->published;
    }
    if (!m->unsteady) jump(m, after);
    if (fabs(after - before) < PACE_TELLS) return false;
    m->unexplained = before - after;
    m->unexplained_step = m->step;
    const bool quiet = m->unsteady;
    tell(m, before - after, m->window[0].step);
    return !quiet;
}

/* Adds one block's deviation, in sigmas. */
static void cusum(pace_model_t *m, double z)
{
    z = fmax(-CUSUM_CLIP, fmin(z, CUSUM_CLIP));
    for (int direction = SLOWER; direction <= FASTER; direction++) {
        const double off = (direction == SLOWER ? z : -z) - CUSUM_FORGIVES;
        m->streak[direction] = off > 0 ? m->streak[direction] + 1 : 0;
        m->sum[direction] = fmax(0, m->sum[direction] + off);
        m->since[direction] = m->sum[direction] > 0 ? m->since[direction] + 1 : 0;
    }
}

static void push(pace_model_t *m, const pace_block_t *block)
{
    if (m->n_window == PACE_WINDOW) {
        memmove(m->window, m->window + 1, (PACE_WINDOW - 1) * sizeof m->window[0]);
        m->n_window--;
    }
    m->window[m->n_window++] = *block;
}

static void learn_noise(pace_model_t *m, double residual)
{
    if (m->n_noise < NOISE_BLOCKS) m->n_noise++;
    const double weight = 1.0 / (m->n_noise < 4 ? 4 : m->n_noise);
    const double square = m->noise * m->noise + weight * (residual * residual - m->noise * m->noise);
    m->noise = fmax(NOISE_LEAST, fmin(sqrt(square), NOISE_MOST));
}

/* Vitals predicted a change: enough blocks since then say what it is. */
static bool confirm(pace_model_t *m)
{
    if (m->scaled_left == 0 || --m->scaled_left > 0) return false;
    const double after = pace_level(m, m->n_window - SCALE_CONFIRMS, m->n_window);
    const double factor = m->scaled_from - after;
    if (fabs(factor) < PACE_TELLS) return false;
    jump(m, pace_level(m, 0, m->n_window));
    tell(m, factor, m->window[m->n_window - SCALE_CONFIRMS].step);
    return true;
}

static bool observe(pace_model_t *m, const pace_block_t *block)
{
    const double value = block_level(m, block);
    const uint32_t n = m->n_window;
    if (n < 2) {
        push(m, block);
        if (n == 1 || !m->known) m->published = pace_level(m, 0, m->n_window);
        m->measured = n == 1;
        m->known = true;
        return confirm(m);
    }
    const double level = pace_level(m, 0, n), extra = block->lasts > 0 ? pace_excess_noise(m, block) : 0;
    const double sigma = sqrt(m->noise * m->noise * (1 + 1.0 / n) + extra * extra);
    cusum(m, (value - level) / sigma);
    push(m, block);
    for (int direction = SLOWER; direction <= FASTER; direction++) {
        const uint32_t keep = changed_blocks(m, direction, level, sigma);
        if (keep > 0) return alarm(m, keep, level);
    }
    if (block->lasts == 0 && fabs(value - level) < 3 * m->noise) learn_noise(m, value - level);
    if (confirm(m)) return true;
    const double doubt = CUSUM_CLIP - CUSUM_FORGIVES; /* what one outlier leaves */
    if (m->unsteady || m->sum[SLOWER] >= doubt || m->sum[FASTER] >= doubt) return false;
    /* In the step of a change nothing has been split by it yet: it follows freely. */
    const double better = pace_level(m, 0, m->n_window);
    if (m->changed || fabs(better - m->published) > fmax(REST_LEAST, REST_SIGMAS * uncertainty(m)))
        publish(m, better);
    return false;
}

/* ---- what is fed ---- */

static bool calm(const pace_model_t *m)
{
    return m->n_window >= 2 && m->scaled_left == 0 && m->sum[SLOWER] < 2 && m->sum[FASTER] < 2;
}

/* What a block is off by may be the cost of a run, which its size makes seen for the first time. */
static bool plausible(const pace_model_t *m, const pace_block_t *block)
{
    return fabs(block_level(m, block) - pace_level(m, 0, m->n_window)) < log(SIZE_MOST);
}

static bool close_block(pace_model_t *m, bool last)
{
    const pace_block_t block = m->open[last];
    const bool mixed = m->mixed[last];
    m->open[last] = (pace_block_t){0};
    m->mixed[last] = false;
    uint32_t pure = 0;
    for (uint32_t i = 0; i < m->n_window; i++) pure += m->window[i].lasts == 0;
    if (!last) {
        const bool teaches =
            !mixed && m->n_window >= 2 && pace_teaches(m, m->open_size[0]) && plausible(m, &block);
        if (!mixed) pace_learn_size(m, &block, m->open_size[0]);
        return !teaches && observe(m, &block);
    }
    /* A last run speaks of the level where what comes on top of it is known, or where there are no others. */
    const bool found = (pure < 2 || m->n_lasts >= 3) && observe(m, &block);
    if (pure >= 2 && !found && calm(m)) pace_learn_excess(m, &block);
    return found;
}

bool pace_run(pace_model_t *model, uint32_t samples, int64_t compute_ns, bool last)
{
    if (samples == 0 || compute_ns <= 0) return false;
    model->ran = true;
    if (!model->first_seen) {
        model->first_seen = true;
        if (!model->known) model->published = log((double)compute_ns / samples);
        model->known = true;
        return false;
    }
    pace_block_t *open = &model->open[last];
    if (open->runs == 0)
        open->step = model->step;
    else if (model->open_size[last] != samples)
        model->mixed[last] = true;
    model->open_size[last] = samples;
    open->runs++;
    open->lasts += last;
    open->ns += (double)compute_ns;
    open->samples += samples;
    pace_block_t run = {.runs = 1, .samples = samples, .lasts = last, .ns = (double)compute_ns};
    model->step_ns_sum += run.ns;
    model->step_units_sum += pace_units(model, &run);
    return open->ns >= PACE_BLOCK_NS && close_block(model, last);
}

void pace_scale(pace_model_t *model, double factor)
{
    if (!model->known || model->unsteady || !(factor > 0)) return;
    double change = log(fmax(0.01, fmin(factor, 100)));
    if (fabs(change) < PACE_TELLS) return; /* within what a clock does anyway */
    const bool recent = model->step - model->unexplained_step <= SCALE_STEPS;
    if (recent && model->unexplained * change > 0) {
        const double rest = change - model->unexplained;
        model->unexplained = rest * change > 0 ? 0 : -rest;
        if (rest * change <= 0 || fabs(rest) < PACE_TELLS) return;
        change = rest;
    }
    if (model->scaled_left == 0) model->scaled_from = model->published;
    jump(model, model->published - change);
    for (uint32_t i = 0; i < PACE_EXTRAS; i++) model->extras[i] /= exp(change);
    memset(model->open, 0, sizeof model->open);
    if (model->n_window < 2) return;
    forget(model, model->n_window < SCALE_KEEPS ? model->n_window : SCALE_KEEPS);
    for (uint32_t i = 0; i < model->n_window; i++) model->window[i].ns /= exp(change);
    model->scaled_left = SCALE_CONFIRMS;
}

/* ---- steps ---- */

static void follow_usual(pace_model_t *m)
{
    if (m->unsteady || !m->measured || m->n_window < 4 || !m->ran) return;
    if (isnan(m->usual)) m->usual = m->published;
    if (isnan(m->told)) m->told = m->published;
    const double away = m->published - m->usual;
    m->usual_away = fabs(away) < PACE_TELLS ? 0 : m->usual_away + 1;
    if (m->usual_away == 0)
        m->usual += USUAL_FOLLOWS * away;
    else if (m->usual_away >= USUAL_ANEW)
        m->usual = m->published;
    const bool rests = m->n_changes == 0 || m->step - m->change_steps[0] > SCALE_STEPS;
    if (rests && fabs(m->published - m->told) > DRIFT_TELLS)
        tell(m, m->told - m->published, m->window[0].step);
}

static void count_idle(pace_model_t *m)
{
    if (!m->ran) {
        m->idle++;
        m->busy = 0;
        return;
    }
    if (m->idle > m->patience) m->patience = m->patience < PATIENCE_MOST ? 2 * m->patience : PATIENCE_MOST;
    m->idle = 0;
    if (++m->busy >= BUSY_STEPS) m->patience = PATIENCE_FIRST;
}

void pace_step(pace_model_t *model, int64_t extra_ns)
{
    model->changed = false;
    if (extra_ns >= 0) model->extras[model->n_extras++ % PACE_EXTRAS] = (double)extra_ns;
    const bool measured = model->step_units_sum > 0;
    model->step_levels[model->step % PACE_STEPS] =
        measured ? log(model->step_ns_sum / model->step_units_sum) : NAN;
    model->step_ns_sum = model->step_units_sum = 0;
    model->step++;
    count_idle(model);
    if (model->unsteady) {
        const bool whole =
            (model->step - model->unsteady_from) % PACE_STEPS == 0; /* the mean is over all of them */
        const double mean = mean_of_steps(model);
        if (fabs(mean - model->published) > (whole ? REST_UNSTEADY / 2 : REST_UNSTEADY)) jump(model, mean);
        if (model->step - model->change_steps[0] > UNSTEADY_STEPS && model->n_window > 0) {
            model->unsteady = false;
            model->n_changes = 0;
            jump(model, pace_level(model, 0, model->n_window));
            model->told = model->published;
        }
    }
    follow_usual(model);
    model->ran = false;
}

/* Samples of a run, of the newest blocks on average. */
static double usual_run(const pace_model_t *m)
{
    double samples = 0;
    uint32_t runs = 0;
    for (uint32_t i = 0; i < m->n_window; i++) {
        samples += m->window[i].samples;
        runs += m->window[i].runs;
    }
    return runs > 0 ? samples / runs : 1;
}

void pace_estimate(const pace_model_t *model, pace_estimate_t *estimate)
{
    *estimate = (pace_estimate_t){.known = model->known,
                                  .changed = model->changed,
                                  .unsteady = model->unsteady,
                                  .changes = model->changes,
                                  .factor = model->factor,
                                  .usual = 1};
    const uint32_t n = model->n_extras < PACE_EXTRAS ? model->n_extras : PACE_EXTRAS;
    estimate->step_ns = n > 0 ? pace_median(model->extras, n) : model->prior_step_ns;
    if (!model->known) return;
    double level = model->published;
    /* Without leases nothing is measured: it hopes for its usual speed, a little more each step, until it is
     * tried. */
    if (!model->ran && model->idle > model->patience && !isnan(model->usual) && model->usual < level)
        level = fmax(model->usual, level - HOPE * (model->idle - model->patience));
    estimate->slope_ns = exp(level);
    estimate->run_ns = model->overhead * estimate->slope_ns;
    estimate->sample_ns = estimate->slope_ns + estimate->run_ns / usual_run(model);
    estimate->last_ns = model->excess * estimate->slope_ns;
    estimate->step_ns += estimate->last_ns;
    estimate->predicted = !model->measured || model->scaled_left > 0;
    estimate->uncertainty = uncertainty(model);
    if (!isnan(model->usual)) estimate->usual = exp(model->usual - level);
    estimate->steps_ago = model->changes > 0 ? (uint32_t)(model->step - model->since_step) : 0;
}
