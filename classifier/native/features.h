/* The features of a text and the weights applied to them: what classifier/features.py and classifier/weights.py say, compiled.

   The Python modules are the definition; tests hold both to the same numbers. Nothing here allocates per call. */
#ifndef DRAFTLANE_FEATURES_H
#define DRAFTLANE_FEATURES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum {
    LONGEST = 4 * 4096 + 4,  /* bytes of a view's text */
    MOST_WORDS = LONGEST / 2 + 1,
    BUCKETS = 1 << 14,       /* of words, and as many again of pairs */
    SEEN = 2 * BUCKETS / 64, /* words of a bitmap over all buckets */
    MOST_CUES = 48,
    MOST_TONGUES = 16,
    MOST_GROUPS = 48,
    SHAPE = 26,
    CROSSES = 10,
    REQUEST = 16,
    MOST_NAMES = MOST_GROUPS + 2 * MOST_CUES + MOST_TONGUES + SHAPE + CROSSES + REQUEST,
    SLOTS = 4096,            /* of the table of cue words; a power of two well above their number */
};

/* Which words hint at what, which bytes belong to which group, and where the crosses find their cues. */
typedef struct {
    uint64_t keys[SLOTS];
    uint64_t masks[SLOTS]; /* bit c: the word belongs to cue c; bits from `cues` on: to a tongue */
    uint8_t used[SLOTS];
    int cues, tongues, groups, names;
    uint64_t in_group[256]; /* bit g: the byte belongs to group g */
    int structure, fact, curt, repeat, convert, table, summarise, extract, edit, rewrite, code, language, explain, creative;
    int curly, underscore, equals;
} Lexicon;

/* What is read of a request besides its last user turn. */
typedef struct {
    double user_chars;     /* of the whole turn, before it was clipped */
    int form;              /* whether the answer is held to a form */
    const double *context; /* cues of the system prompt (cues), or NULL */
    double request[REQUEST];
} Asked;

/* A request in numbers, and the room that computing them takes. */
typedef struct {
    double cues[MOST_NAMES];
    uint64_t seen[SEEN]; /* bit b: bucket b occurs */
    uint64_t hashes[MOST_WORDS];
    uint32_t lengths[MOST_WORDS]; /* of the words, in bytes */
    uint8_t raw[LONGEST];
    Py_ssize_t size, words, distinct;
} Measured;

void features_init(void);
int reading_init(void);
PyObject *conversation(PyObject *module, PyObject *const *args, Py_ssize_t count);
int lexicon_fill(Lexicon *lexicon, const uint64_t *keys, const uint64_t *masks, Py_ssize_t count);
void hash_words(Measured *m);
void count_hints(const Lexicon *lexicon, const Measured *m, double *asked, double *head, double *common);
void encode(PyObject *text, Measured *m);
void outline(PyObject *text, double user_chars, Measured *m, double *shape);
void measure(const Lexicon *lexicon, PyObject *text, const Asked *asked, Measured *m);

#endif
