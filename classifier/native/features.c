/* Bytes, words and cues of a text. See classifier/features.py, whose names these functions keep. */
#include "features.h"

#include <math.h>
#include <string.h>

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u; /* the golden ratio: spreads bytes */
static const uint64_t PRIME = 0x100000001B3u;       /* FNV's */
static const uint64_t MIX = 0xFF51AFD7ED558CCDu;    /* murmur3's finaliser */
static const int FIRST = 40, LAST = 24, HEAD = 8;   /* words that are read as the instruction */

/* What a byte adds to the sum of a word; 0 for one that is in no word. Capital letters count as small ones. */
static uint64_t WEIGHTED[256];

void features_init(void) {
    for (int b = 0; b < 256; b++) {
        int capital = b >= 'A' && b <= 'Z', letter = capital || (b >= 'a' && b <= 'z'), digit = b >= '0' && b <= '9';
        if (b >= 128 || letter || digit || b == '_' || b == '#' || b == '+') WEIGHTED[b] = (uint64_t)(capital ? b + 33 : b + 1) * GOLDEN;
    }
}

/* The text as UTF-8 in m->raw, a lone surrogate as "?", at most LONGEST bytes. */
void encode(PyObject *text, Measured *m) {
    Py_ssize_t n = PyUnicode_GET_LENGTH(text), at = 0;
    if (PyUnicode_IS_ASCII(text)) {
        m->size = n < LONGEST ? n : LONGEST;
        memcpy(m->raw, PyUnicode_1BYTE_DATA(text), (size_t)m->size);
        return;
    }
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    uint8_t part[4];
    for (Py_ssize_t i = 0; i < n && at < LONGEST; i++) {
        Py_UCS4 c = PyUnicode_READ(kind, data, i);
        int size;
        if (c >= 0xD800 && c <= 0xDFFF) c = '?';
        if (c < 0x80) {
            part[0] = (uint8_t)c, size = 1;
        } else if (c < 0x800) {
            part[0] = (uint8_t)(0xC0 | c >> 6), part[1] = (uint8_t)(0x80 | (c & 63)), size = 2;
        } else if (c < 0x10000) {
            part[0] = (uint8_t)(0xE0 | c >> 12), part[1] = (uint8_t)(0x80 | (c >> 6 & 63)), part[2] = (uint8_t)(0x80 | (c & 63)), size = 3;
        } else {
            part[0] = (uint8_t)(0xF0 | c >> 18), part[1] = (uint8_t)(0x80 | (c >> 12 & 63));
            part[2] = (uint8_t)(0x80 | (c >> 6 & 63)), part[3] = (uint8_t)(0x80 | (c & 63)), size = 4;
        }
        for (int j = 0; j < size && at < LONGEST; j++) m->raw[at++] = part[j];
    }
    m->size = at;
}

/* Hashes and lengths of the runs of word bytes: a polynomial in the bytes, plus the length, mixed. */
void hash_words(Measured *m) {
    Py_ssize_t words = 0;
    for (Py_ssize_t i = 0; i < m->size;) {
        uint64_t weight = WEIGHTED[m->raw[i]], sum = 0, power = 1;
        if (!weight) {
            i++;
            continue;
        }
        Py_ssize_t start = i;
        do {
            sum += weight * power;
            power *= PRIME;
        } while (++i < m->size && (weight = WEIGHTED[m->raw[i]]));
        uint64_t hash = sum + (uint64_t)(i - start);
        hash ^= hash >> 33;
        hash *= MIX;
        m->hashes[words] = hash ^ hash >> 33;
        m->lengths[words++] = (uint32_t)(i - start);
    }
    m->words = words;
}

/* Take the words in; returns -1 when there are too many. */
int lexicon_fill(Lexicon *lexicon, const uint64_t *keys, const uint64_t *masks, Py_ssize_t count) {
    if (count > SLOTS / 2) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t slot = keys[i] & (SLOTS - 1);
        while (lexicon->used[slot]) slot = (slot + 1) & (SLOTS - 1);
        lexicon->used[slot] = 1, lexicon->keys[slot] = keys[i], lexicon->masks[slot] = masks[i];
    }
    return 0;
}

static uint64_t groups_of(const Lexicon *lexicon, uint64_t hash) {
    for (uint64_t slot = hash & (SLOTS - 1); lexicon->used[slot]; slot = (slot + 1) & (SLOTS - 1))
        if (lexicon->keys[slot] == hash) return lexicon->masks[slot];
    return 0;
}

/* Counts of cue words in the instruction and in its first words, and of each tongue's common words in all. */
void count_hints(const Lexicon *lexicon, const Measured *m, double *asked, double *head, double *common) {
    Py_ssize_t last = m->words - LAST > FIRST ? m->words - LAST : FIRST;
    memset(asked, 0, sizeof(double) * (size_t)lexicon->cues);
    memset(head, 0, sizeof(double) * (size_t)lexicon->cues);
    memset(common, 0, sizeof(double) * (size_t)lexicon->tongues);
    for (Py_ssize_t i = 0; i < m->words; i++) {
        for (uint64_t mask = groups_of(lexicon, m->hashes[i]); mask; mask &= mask - 1) {
            int column = __builtin_ctzll(mask);
            if (column >= lexicon->cues) {
                common[column - lexicon->cues] += 1.0;
                continue;
            }
            if (i < FIRST || i >= last) asked[column] += 1.0;
            if (i < HEAD) head[column] += 1.0;
        }
    }
}

/* Note the buckets of words and of pairs of neighbours. */
static void note_buckets(Measured *m) {
    memset(m->seen, 0, sizeof m->seen);
    m->distinct = 0;
    for (Py_ssize_t i = 0; i < m->words; i++) {
        uint64_t bucket = m->hashes[i] & (BUCKETS - 1), bit = 1ull << (bucket & 63), *at = &m->seen[bucket >> 6];
        m->distinct += !(*at & bit);
        *at |= bit;
    }
    for (Py_ssize_t i = 1; i < m->words; i++) {
        uint64_t bucket = ((m->hashes[i] * MIX + m->hashes[i - 1]) >> 20 & (BUCKETS - 1)) + BUCKETS;
        m->seen[bucket >> 6] |= 1ull << (bucket & 63);
    }
}

/* Shares of the bytes by group, out of all bytes. */
static void share(const Lexicon *lexicon, const Measured *m, double *shares) {
    uint32_t counts[256] = {0};
    double size = m->size > 0 ? (double)m->size : 1.0;
    for (Py_ssize_t i = 0; i < m->size; i++) counts[m->raw[i]]++;
    for (int g = 0; g < lexicon->groups; g++) shares[g] = 0.0;
    for (int b = 0; b < 256; b++)
        if (counts[b])
            for (uint64_t mask = lexicon->in_group[b]; mask; mask &= mask - 1) shares[__builtin_ctzll(mask)] += counts[b];
    for (int g = 0; g < lexicon->groups; g++) shares[g] /= size;
}

enum { LOG_WORDS = 1, INDENTED = 8, MATERIAL = 13, ENDS_QUESTION = 14 };

/* Cues that mean something only together. */
static void cross(const Lexicon *l, const double *c, const double *shape, const double *shares, double *out) {
    double material = fmax(0.0, shape[MATERIAL] - 3.5), bulk = fmax(0.0, shape[MATERIAL] - 4.6);
    double codelike = sqrt(shares[l->curly]) + sqrt(shares[l->underscore]);
    codelike += sqrt(shares[l->equals]) + shape[INDENTED];
    out[0] = c[l->fact] > 0 && shape[ENDS_QUESTION] > 0 && shape[LOG_WORDS] < 3.7;
    out[1] = c[l->curt] >= 2;
    out[2] = material * (c[l->repeat] > 0);
    out[3] = material * (c[l->convert] > 0 || c[l->table] + c[l->structure] > 1);
    out[4] = material * (c[l->summarise] > 0);
    out[5] = material * (c[l->extract] > 0);
    out[6] = bulk * (c[l->edit] + c[l->rewrite] + c[l->convert] > 0);
    out[7] = c[l->code] + c[l->language] >= 2;
    out[8] = codelike * (c[l->explain] > 0);
    out[9] = c[l->creative] >= 2;
}

/* All features of a request, in the order of NAMES. */
void measure(const Lexicon *lexicon, PyObject *text, const Asked *asked, Measured *m) {
    double shares[MOST_GROUPS], head[MOST_CUES], common[MOST_TONGUES];
    double *counts = m->cues + lexicon->groups, *shape = counts + 2 * lexicon->cues + lexicon->tongues;
    encode(text, m);
    hash_words(m);
    count_hints(lexicon, m, counts, head, common);
    for (int i = 0; i < lexicon->cues; i++) counts[i] = fmin(3.0, counts[i] + (asked->context ? asked->context[i] : 0.0));
    if (asked->form) counts[lexicon->structure] = fmin(3.0, counts[lexicon->structure] + 1.0);
    share(lexicon, m, shares);
    note_buckets(m);
    outline(text, asked->user_chars, m, shape);
    cross(lexicon, counts, shape, shares, shape + SHAPE);
    double n = m->words > 0 ? (double)m->words : 1.0;
    for (int i = 0; i < lexicon->groups; i++) m->cues[i] = sqrt(shares[i]);
    for (int i = 0; i < lexicon->cues; i++) counts[lexicon->cues + i] = fmin(1.0, head[i]);
    for (int i = 0; i < lexicon->tongues; i++) counts[2 * lexicon->cues + i] = sqrt(common[i] / n);
    memcpy(shape + SHAPE + CROSSES, asked->request, sizeof asked->request);
}
