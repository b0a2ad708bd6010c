/* Time, random draws, and the history as a hash and as lines for people. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/internal.h"

uint64_t sim_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* splitmix64: a state of eight bytes, so that every process and pipe can have its own. A fault that is left
 * out then changes little elsewhere, and shrinking works. */
uint64_t sim_draw(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return sim_mix(*state);
}

uint64_t sim_draw_below(uint64_t *state, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)sim_draw(state) * bound) >> 64);
}

/* ---- The heap: earliest first, of equal times the one pushed first ---------------------------- */

static bool earlier(const sim_event_t *x, const sim_event_t *y)
{
    return x->at != y->at ? x->at < y->at : x->seq < y->seq;
}

void sim_push(sim_t *sim, ns_t after, sim_event_type_t type, uint32_t a, uint32_t b, uint32_t life)
{
    if (sim->heap_n == sim->heap_capacity) {
        size_t capacity = sim->heap_capacity > 0 ? 2 * sim->heap_capacity : 256;
        sim_event_t *grown = realloc(sim->heap, capacity * sizeof *grown);
        if (grown == NULL) abort();
        sim->heap = grown;
        sim->heap_capacity = capacity;
    }
    sim_event_t event = {sim->now + (after > 0 ? after : 0), sim->next_seq++, type, a, b, life};
    size_t i = sim->heap_n++;
    while (i > 0 && earlier(&event, &sim->heap[(i - 1) / 2])) {
        sim->heap[i] = sim->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sim->heap[i] = event;
}

bool sim_pop(sim_t *sim, sim_event_t *event)
{
    if (sim->heap_n == 0) return false;
    *event = sim->heap[0];
    sim_event_t moved = sim->heap[--sim->heap_n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim->heap_n) break;
        if (child + 1 < sim->heap_n && earlier(&sim->heap[child + 1], &sim->heap[child])) child++;
        if (!earlier(&sim->heap[child], &moved)) break;
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    sim->heap[i] = moved;
    return true;
}

/* ---- History ----------------------------------------------------------------------------------- */

void sim_record(sim_t *sim, uint64_t what)
{
    sim->hash = (sim->hash ^ what) * 0x9e3779b97f4a7c15u;
    sim->hash ^= sim->hash >> 29;
}

void sim_note_line(sim_t *sim, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("%11.6f s  ", ns_to_s(sim->now));
    vprintf(format, list);
    putchar('\n');
    va_end(list);
}

void sim_broken(sim_t *sim, const char *invariant, const char *format, ...)
{
    sim_result_t *result = sim->result;
    if (result->failed) return;
    va_list list;
    va_start(list, format);
    result->failed = true;
    snprintf(result->invariant, sizeof result->invariant, "%s", invariant);
    vsnprintf(result->text, sizeof result->text, format, list);
    va_end(list);
    sim->over = true;
    sim_note(sim, "BROKEN %s: %s", result->invariant, result->text);
}

ns_t sim_mono(const sim_t *sim, uint32_t host)
{
    return sim->now + sim->mono_offset[host];
}
