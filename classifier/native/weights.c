/* See weights.h. Sums run in one order whatever the processor, so that a request scores the same on every machine of a fleet. */
#include "weights.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FASTEST __attribute__((target_clones("avx2", "default"))) /* chosen when the module is loaded */
#define HAS_VNNI
#include <immintrin.h>
#else
#define FASTEST
#endif

enum { RATIO = FINE / STEPS, RAISED = 2048, AHEAD = 8192 }; /* the last in bytes of the grid, asked for before they are needed */
_Static_assert(RAISED >= CLIP * FINE && RAISED % 256 == 0, "raised, a cue has no sign");

/* The cues of a request in steps of 1 / FINE, and, raised by RAISED, as bytes without a sign. */
typedef struct {
    int16_t fine[PADDED];
    uint8_t low[PADDED], high[PADDED];
} Request;

static const float LEAST = -87.0f; /* e to this power is about the smallest normal number */

/* Where in the grid a prototype has a cue: row by row, or, for the widest registers, four cues side by side for a whole block of
   prototypes, so that each has a lane of its own and nothing is added up across lanes. */
size_t weights_place(const Weights *w, int prototype, int cue) {
    if (!w->wide) return (size_t)prototype * (size_t)w->stride + (size_t)cue;
    size_t block = (size_t)(prototype / BLOCK) * BLOCK * (size_t)w->stride;
    return block + 4 * ((size_t)(cue / 4) * BLOCK + (size_t)(prototype % BLOCK)) + (size_t)(cue % 4);
}

/* Lay the tables out for reading; the arrays are checked by the caller. Returns -1 when a prototype is not on the grid. */
int weights_fill(Weights *w, const float *prototypes, const float *words, const float *rarity, const float *likeness) {
    for (int b = 0; b < 2 * BUCKETS; b++) {
        w->words[b].rarity = rarity[b];
        memcpy(w->words[b].heads, words + (size_t)b * HEADS, sizeof w->words[b].heads);
    }
    for (int p = 0; p < w->prototypes; p++) {
        for (int c = 0; c < w->names; c++) {
            float value = prototypes[(size_t)p * (size_t)w->names + (size_t)c], steps = rintf(value * STEPS);
            if (fabsf(steps) > CLIP * STEPS || fabsf(steps - value * STEPS) > 1e-3f) return -1;
            w->grid[weights_place(w, p, c)] = (int8_t)steps;
            w->lengths[p] += RATIO * RATIO * (int32_t)steps * (int32_t)steps;
            w->excess[p] += RAISED * (int32_t)steps;
        }
        for (int h = 0; h < HEADS; h++)
            w->likeness[((size_t)h * (size_t)w->blocks * BLOCK) + (size_t)p] = likeness[(size_t)p * HEADS + (size_t)h];
    }
    return 0;
}

/* Products of a request's cues with a block of prototypes. The stride is a constant wherever this is used. */
static inline void products_of(const int8_t *restrict grid, const int16_t *restrict fine, int32_t *restrict out, int stride) {
    for (int p = 0; p < BLOCK; p++, grid += stride) {
        int32_t sum = 0;
        for (int c = 0; c < stride; c++) sum += (int16_t)grid[c] * fine[c];
        out[p] = sum;
    }
}

FASTEST static void products_anywhere(const int8_t *restrict grid, const int16_t *restrict fine, int32_t *restrict out, int stride) {
    if (stride == NARROW)
        products_of(grid, fine, out, NARROW);
    else
        products_of(grid, fine, out, PADDED);
}

#ifdef HAS_VNNI
_Static_assert(BLOCK == 64 && NARROW % 4 == 0 && PADDED % 4 == 0, "a block is four registers, and its cues are taken by fours");

/* Adds products of fours of bytes. Around the compiler's own word for it GCC 12 copies every sum to another register and back. */
#define ADD(sum, ours, at) __asm__("vpdpbusd %1, %2, %0" : "+v"(sum) : "v"(_mm512_load_si512(grid + (at))), "v"(ours))
#define PUT(at, low, high) \
    _mm512_storeu_si512(out + (at), _mm512_sub_epi32(_mm512_add_epi32(low, _mm512_slli_epi32(high, 8)), _mm512_loadu_si512(excess + (at))))

/* The same for a block whose cues lie by fours, 64 products at a time. The instruction takes bytes without a sign on one side: those
   are the request's, its low bytes and its high ones apart, and what raising made too much of them is taken off. */
__attribute__((target("avx512f,avx512vnni"))) static void products_vnni(const Weights *w, size_t first, const Request *request, int32_t *out) {
    const int8_t *grid = w->grid + first * (size_t)w->stride;
    const int32_t *excess = w->excess + first;
    const __m512i none = _mm512_setzero_si512();
    __m512i a = none, b = none, c = none, d = none, e = none, f = none, g = none, h = none;
    for (int at = 0; at < w->names; at += 4, grid += 4 * BLOCK) {
        int32_t four[2];
        memcpy(four, request->low + at, sizeof *four), memcpy(four + 1, request->high + at, sizeof *four);
        __m512i low = _mm512_set1_epi32(four[0]), high = _mm512_set1_epi32(four[1]);
        for (int i = 0; i < 4; i++) _mm_prefetch(grid + AHEAD + CACHE_LINE * i, _MM_HINT_T0);
        ADD(a, low, 0);
        ADD(b, high, 0);
        ADD(c, low, 64);
        ADD(d, high, 64);
        ADD(e, low, 128);
        ADD(f, high, 128);
        ADD(g, low, 192);
        ADD(h, high, 192);
    }
    PUT(0, a, b), PUT(16, c, d), PUT(32, e, f), PUT(48, g, h);
}
#endif

int weights_wide(void) {
#ifdef HAS_VNNI
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512f");
#else
    return 0;
#endif
}

static void products(const Weights *w, size_t first, const Request *request, int32_t *out) {
#ifdef HAS_VNNI
    if (w->wide) {
        products_vnni(w, first, request, out);
        return;
    }
#endif
    products_anywhere(w->grid + first * (size_t)w->stride, request->fine, out, w->stride);
}

/* Logarithms of a request's likeness to a block of prototypes: its squared distances, none above `most`, times `scale`. */
FASTEST static void distances(const int32_t *restrict lengths, int32_t *restrict product, int32_t square, int32_t most, float scale,
                              float *restrict near) {
    for (int p = 0; p < BLOCK; p++) {
        int32_t apart = lengths[p] - 2 * RATIO * product[p] + square;
        product[p] = apart < most ? apart : most;
    }
    for (int p = 0; p < BLOCK; p++) near[p] = (float)product[p] * scale; /* apart from the above, or neither takes many at once */
}

/* e to the power of BLOCK numbers from LEAST to 0, to two parts in ten million: 2 to the power of a whole number, by its bits, times a
   series for the rest. libm's takes one at a time, which for two thousand prototypes is most of a score. */
FASTEST static void exponentials(float *x) {
    int32_t bits[BLOCK];
    float power[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        float t = x[i] * 1.44269504f;
        int32_t whole = (int32_t)(t - 0.5f);
        float f = (t - (float)whole) * 0.693147181f;
        bits[i] = (whole + 127) * (1 << 23);
        x[i] = 1.0f + f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666667f + f * (0.00833333333f + f * 0.00138888889f)))));
    }
    memcpy(power, bits, sizeof power);
    for (int i = 0; i < BLOCK; i++) x[i] *= power[i];
}

/* Add a block of weighted likenesses to LANES sums. */
FASTEST static void weigh(const float *near, const float *weights, double *lanes) {
    for (int p = 0; p < BLOCK; p += LANES)
        for (int k = 0; k < LANES; k++) lanes[k] += (double)near[p + k] * (double)weights[p + k];
}

/* Add what likeness to each prototype says. */
static void add_likeness(const Weights *w, const float *z, double *heads) {
    Request request = {{0}};
    float near[BLOCK], scale = w->decay / (FINE * FINE), furthest = LEAST / scale;
    int32_t product[BLOCK], square = 0, most = furthest < (float)INT32_MAX ? (int32_t)furthest : INT32_MAX;
    double lanes[HEADS][LANES] = {{0.0}};
    for (int c = 0; c < w->names; c++) {
        int16_t fine = (int16_t)rintf(z[c] * FINE), raised = (int16_t)(fine + RAISED);
        request.fine[c] = fine, request.low[c] = (uint8_t)(raised & 255), request.high[c] = (uint8_t)(raised >> 8);
        square += fine * fine;
    }
    for (size_t first = 0, all = (size_t)w->blocks * BLOCK; first < all; first += BLOCK) {
        products(w, first, &request, product);
        distances(w->lengths + first, product, square, most, scale, near);
        exponentials(near);
        for (int h = 0; h < HEADS; h++) weigh(near, w->likeness + (size_t)h * all + first, lanes[h]);
    }
    for (int h = 0; h < HEADS; h++)
        for (int k = 0; k < LANES; k++) heads[h] += lanes[h][k];
}

/* Add what the words and pairs present say: rarities over their length. */
static void add_words(const Weights *w, const Measured *m, double *heads) {
    double square = 0.0, sums[HEADS] = {0.0};
    for (int i = 0; i < SEEN; i++)
        for (uint64_t mask = m->seen[i]; mask; mask &= mask - 1) {
            const Word *word = &w->words[64 * i + __builtin_ctzll(mask)];
            square += word->rarity * word->rarity;
            for (int h = 0; h < HEADS; h++) sums[h] += word->rarity * word->heads[h];
        }
    double norm = 1.0 / sqrt(square > 0.0 ? square : 1.0);
    for (int h = 0; h < HEADS; h++) heads[h] += norm * sums[h];
}

static double clip(double value, double low, double high) { return fmin(high, fmax(low, value)); }

static double interpolate(const Weights *w, double x) {
    int last = w->knots - 1, i = 0;
    if (x <= w->knot_x[0]) return w->knot_y[0];
    if (x >= w->knot_x[last]) return w->knot_y[last];
    while (x >= w->knot_x[i + 1]) i++;
    return w->knot_y[i] + (w->knot_y[i + 1] - w->knot_y[i]) / (w->knot_x[i + 1] - w->knot_x[i]) * (x - w->knot_x[i]);
}

Prediction predict(const Weights *w, const Measured *m) {
    float z[PADDED] = {0};
    double heads[HEADS];
    Prediction found;
    for (int c = 0; c < w->names; c++) {
        float cue = ((float)m->cues[c] - w->centre[c]) * w->scale[c], above = cue > (float)-CLIP ? cue : (float)-CLIP;
        z[c] = above < (float)CLIP ? above : (float)CLIP;
    }
    for (int h = 0; h < HEADS; h++) heads[h] = w->bias[h];
    for (int c = 0; c < w->names; c++)
        for (int h = 0; h < HEADS; h++) heads[h] += z[c] * w->cues[h][c];
    add_words(w, m, heads);
    add_likeness(w, z, heads);
    found.length = clip(heads[0], 0.0, log(8.0)), found.ngram = clip(heads[1], 0.0, log(8.0)), found.output = clip(heads[2], 0.0, 12.0);
    double noise = w->noise[0] + w->noise[1] * found.length;
    for (int c = 0; c < w->names; c++) noise += z[c] * w->noise[2 + c];
    found.spread = exp(clip(noise, -3.5, 0.0));
    found.score = interpolate(w, found.length);
    return found;
}
