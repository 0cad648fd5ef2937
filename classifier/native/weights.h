/* Weights applied to the features of one request: what `Weights.predict` in classifier/weights.py says, compiled. */
#ifndef DRAFTLANE_WEIGHTS_H
#define DRAFTLANE_WEIGHTS_H

#include "features.h"

enum { HEADS = 3, LANES = 16, BLOCK = 64, CACHE_LINE = 64, PADDED = (MOST_NAMES + LANES - 1) / LANES * LANES, NARROW = 192 };

typedef struct {
    float rarity, heads[HEADS];
} Word;

typedef struct {
    int names, prototypes, knots;
    int stride;               /* of the grid: NARROW where that holds all names, as there is less to read; else PADDED */
    int wide;                 /* whether the processor has the widest arithmetic that is known here */
    float centre[PADDED], scale[PADDED], noise[PADDED + 2], cues[HEADS][PADDED], bias[HEADS];
    float decay;              /* of likeness with the squared distance */
    Word *words;              /* 2 * BUCKETS */
    int blocks;               /* of BLOCK prototypes; behind the last one everything is zero */
    void *room;               /* for the grid, which begins where a line of the cache does */
    int8_t *grid;             /* (blocks * BLOCK, stride): standardised cues in steps of 1 / STEPS, as weights_place says */
    int32_t *lengths;         /* (blocks * BLOCK): their squared lengths, in steps of 1 / FINE */
    int32_t *excess;          /* (blocks * BLOCK): their products with RAISED in every cue */
    float *likeness;          /* (HEADS, blocks * BLOCK) */
    double *knot_x, *knot_y;
} Weights;

/* Steps of the two grids in one standard deviation, of which there are three at most: they fit a signed byte and sixteen bits, and
   the squared distance of all cues 31 bits. Integers are exact, whatever their order, and many times faster than floating point. */
enum { STEPS = 32, FINE = 512, CLIP = 3 };
_Static_assert(4LL * CLIP * CLIP * FINE * FINE * MOST_NAMES <= INT32_MAX, "squared distances need more than 31 bits");

typedef struct {
    double length, ngram, output; /* logarithms */
    double spread, score;
} Prediction;

int weights_fill(Weights *w, const float *prototypes, const float *words, const float *rarity, const float *likeness);
int weights_wide(void);
size_t weights_place(const Weights *w, int prototype, int cue);
Prediction predict(const Weights *w, const Measured *m);

#endif
