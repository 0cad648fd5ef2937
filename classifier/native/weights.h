/* Weights applied to the features of one request: what `Weights.predict` in classifier/weights.py says, compiled. */
#ifndef DRAFTLANE_WEIGHTS_H
#define DRAFTLANE_WEIGHTS_H

#include "features.h"

enum { HEADS = 3, LANES = 16, BLOCK = 64, PADDED = (MOST_NAMES + LANES - 1) / LANES * LANES };

typedef struct {
    float rarity, heads[HEADS];
} Word;

typedef struct {
    int names, prototypes, knots;
    float centre[PADDED], scale[PADDED], noise[PADDED + 2], cues[HEADS][PADDED], bias[HEADS];
    float decay;              /* of likeness with the squared distance */
    Word *words;              /* 2 * BUCKETS */
    int8_t *grid;             /* (prototypes, PADDED): standardised cues in steps of 1 / STEPS */
    int64_t *lengths;         /* (prototypes): their squared lengths, in those steps */
    float *likeness;          /* (HEADS, blocks * BLOCK): zeros behind the last prototype */
    int blocks;               /* of BLOCK prototypes */
    double *knot_x, *knot_y;
} Weights;

/* Steps of the two grids in one standard deviation: three of those fit a signed byte and sixteen bits. Products are then exact,
   whatever their order, and many times faster than with floating point. */
enum { STEPS = 32, FINE = 512 };

typedef struct {
    double length, ngram, output; /* logarithms */
    double spread, score;
} Prediction;

int weights_fill(Weights *w, const float *prototypes, const float *words, const float *rarity, const float *likeness);
Prediction predict(const Weights *w, const Measured *m);

#endif
