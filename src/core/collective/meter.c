#include "core/collective/meter.h"

#include <string.h>

#define NEAR        1.1
#define STEADY_FROM 5   /* samples */
#define STEADY      0.7 /* of them */

static uint32_t newest(const meter_rate_t *rate)
{
    return rate->n < METER_SAMPLES ? rate->n : METER_SAMPLES;
}

/* The value at place `below` from the top of the newest samples; 0: there are none. */
static double ranked(const meter_rate_t *rate, uint32_t below)
{
    double sorted[METER_SAMPLES];
    const uint32_t n = newest(rate);
    if (n == 0) return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] < rate->samples[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = rate->samples[i];
    }
    return sorted[below < n ? below : n - 1];
}

/* Negative where less than STEADY of the samples are near it: of few, some are by chance. */
static double signed_by_spread(const meter_rate_t *rate, double value)
{
    const uint32_t n = newest(rate);
    uint32_t near = 0;
    for (uint32_t i = 0; i < n; i++)
        near += rate->samples[i] > value / NEAR && rate->samples[i] < value * NEAR;
    return value == 0 || (n >= STEADY_FROM && near >= STEADY * n) ? value : -value;
}

static double median(const meter_rate_t *rate)
{
    return ranked(rate, newest(rate) / 2);
}

static void take(meter_rate_t *rate, uint64_t bytes, ns_t took, uint32_t streams)
{
    rate->bytes += bytes;
    rate->taken += took;
    if (rate->bytes < (uint64_t)METER_BYTES * streams || rate->taken < METER_TIME) return;
    rate->samples[rate->n % METER_SAMPLES] = (double)rate->bytes / ns_to_s(rate->taken);
    rate->n = rate->n + 1 < 2 * METER_SAMPLES ? rate->n + 1 : METER_SAMPLES;
    rate->bytes = 0;
    rate->taken = 0;
}

static void learn_faster(meter_rate_t *rate, uint64_t bytes, ns_t took)
{
    if (rate->n == 0 || bytes < METER_BYTES || took <= 0) return;
    const double value = (double)bytes / ns_to_s(took);
    if (value <= median(rate)) return;
    for (uint32_t i = 0; i < METER_SAMPLES; i++)
        if (rate->samples[i] < value) rate->samples[i] = value;
}

void meter_open(meter_t *meter, meter_stream_t *streams, uint32_t world)
{
    *meter = (meter_t){.n = world - 1, .streams = streams};
    memset(streams, 0, world * sizeof *streams);
}

/* A stretch ends: what was taken in it tells of the own port, or of the receivers' ports. */
static void end_stretch(meter_t *meter, ns_t now)
{
    const ns_t took = now - meter->since;
    const bool all = meter->n_backlogged == meter->n;
    uint64_t sum = 0;
    for (uint32_t peer = 0; peer <= meter->n; peer++) {
        meter_stream_t *stream = &meter->streams[peer];
        sum += stream->bytes;
        if (stream->backlogged && !all) take(&stream->towards, stream->bytes, took, 1);
        stream->bytes = 0;
    }
    if (all && meter->n > 0) take(&meter->up, sum, took, meter->n);
    meter->since = now;
}

void meter_sent(meter_t *meter, uint32_t peer, uint64_t bytes)
{
    meter->streams[peer].bytes += bytes;
    meter->streams[peer].whole += bytes;
}

void meter_backlog(meter_t *meter, uint32_t peer, bool on, ns_t now)
{
    meter_stream_t *stream = &meter->streams[peer];
    if (stream->backlogged == on) return;
    end_stretch(meter, now);
    stream->backlogged = on;
    if (on)
        meter->n_backlogged++;
    else
        meter->n_backlogged--;
}

void meter_begin(meter_t *meter, ns_t now)
{
    for (uint32_t peer = 0; peer <= meter->n; peer++) meter->streams[peer].whole = 0;
    meter->begun = now;
}

void meter_rest(meter_t *meter, ns_t now)
{
    uint64_t sum = 0;
    for (uint32_t peer = 0; peer <= meter->n; peer++) {
        meter_stream_t *stream = &meter->streams[peer];
        learn_faster(&stream->towards, stream->whole, now - meter->begun);
        sum += stream->whole;
    }
    learn_faster(&meter->up, sum, now - meter->begun);
}

double meter_up(const meter_t *meter)
{
    return signed_by_spread(&meter->up, ranked(&meter->up, (newest(&meter->up) + 1) / 4));
}

double meter_towards(const meter_t *meter, uint32_t peer)
{
    const meter_rate_t *towards = &meter->streams[peer].towards;
    return signed_by_spread(towards, median(towards));
}
