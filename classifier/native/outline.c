/* The outline of the last user turn: sizes, lines, how it begins and ends. See `_shape` in classifier/features.py. */
#include "features.h"

#include <math.h>
#include <string.h>

enum { LINES = 256, TABLE = 1024, NUMBERS_IN = 400 };

typedef struct {
    int kind;
    const void *data;
    Py_ssize_t length;
} Text;

static Py_UCS4 at(const Text *t, Py_ssize_t i) { return PyUnicode_READ(t->kind, t->data, i); }

/* Where a character below 128 is found next, or the text's end. */
static Py_ssize_t next_of(const Text *t, Py_ssize_t i, char wanted) {
    if (t->kind == PyUnicode_1BYTE_KIND) {
        const char *data = t->data, *found = memchr(data + i, wanted, (size_t)(t->length - i));
        return found ? found - data : t->length;
    }
    while (i < t->length && at(t, i) != (Py_UCS4)wanted) i++;
    return i;
}

/* The lines of a text that are not blank, each told from the others. */
typedef struct {
    Py_ssize_t starts[TABLE], ends[TABLE];
    uint64_t hashes[TABLE];
    uint8_t used[TABLE];
    int distinct;
} Lines;

static int same(const Text *t, Py_ssize_t a, Py_ssize_t b, Py_ssize_t size) {
    return memcmp((const char *)t->data + a * t->kind, (const char *)t->data + b * t->kind, (size_t)(size * t->kind)) == 0;
}

static void note_line(const Text *t, Lines *lines, Py_ssize_t start, Py_ssize_t end) {
    const char *data = (const char *)t->data + start * t->kind;
    size_t size = (size_t)((end - start) * t->kind);
    uint64_t hash = 1469598103934665603u, part = 0; /* FNV-1a's start, and eight bytes at a time */
    for (; size >= sizeof part; data += sizeof part, size -= sizeof part) {
        memcpy(&part, data, sizeof part);
        hash = (hash ^ part) * 0x100000001B3u;
        hash ^= hash >> 29;
    }
    part = 0;
    memcpy(&part, data, size);
    hash = (hash ^ part) * 0x100000001B3u;
    uint64_t slot = (hash ^ hash >> 32) & (TABLE - 1);
    for (; lines->used[slot]; slot = (slot + 1) & (TABLE - 1))
        if (lines->hashes[slot] == hash && lines->ends[slot] - lines->starts[slot] == end - start && same(t, lines->starts[slot], start, end - start))
            return;
    lines->used[slot] = 1, lines->hashes[slot] = hash, lines->starts[slot] = start, lines->ends[slot] = end;
    lines->distinct++;
}

typedef struct {
    Py_ssize_t lines, full, indented, bulleted, longest, first, last;
    int distinct;
} Counts;

static int is_bullet(Py_UCS4 c) { return c == '-' || c == '*' || c == 0x2022 || (c >= '0' && c <= '9'); }

static void note(const Text *t, Lines *lines, Counts *c, Py_ssize_t start, Py_ssize_t end) {
    Py_ssize_t inner = start;
    c->lines++;
    if (end - start > c->longest) c->longest = end - start;
    while (inner < end && Py_UNICODE_ISSPACE(at(t, inner))) inner++;
    if (inner == end) return; /* blank */
    if (c->full++ == 0) c->first = end - start;
    c->last = end - start;
    c->indented += at(t, start) == ' ' || at(t, start) == '\t';
    c->bulleted += is_bullet(at(t, inner));
    note_line(t, lines, start, end);
}

static Counts count_lines(const Text *t) {
    Lines lines;
    Counts c = {0};
    Py_ssize_t start = 0;
    memset(lines.used, 0, sizeof lines.used);
    lines.distinct = 0;
    for (Py_ssize_t i; c.lines < LINES && (i = next_of(t, start, '\n')) < t->length; start = i + 1) note(t, &lines, &c, start, i);
    note(t, &lines, &c, start, t->length);
    c.distinct = lines.distinct;
    return c;
}

/* Whole numbers of at most six digits in the head of a text: how many, and the largest, capped at ten thousand. */
static void numbers(const Text *t, int *count, int *largest) {
    Py_ssize_t end = t->length < NUMBERS_IN ? t->length : NUMBERS_IN, i = 0;
    *count = *largest = 0;
    while (i < end) {
        int value = 0, size = 0, decimal = 1;
        for (; i < end; i++, size++) {
            Py_UCS4 c = at(t, i);
            if (c == ',' || Py_UNICODE_ISSPACE(c)) break;
            if (!decimal) continue;
            int digit = Py_UNICODE_TODECIMAL(c);
            decimal = digit >= 0 && size < 6;
            if (decimal) value = value * 10 + digit;
        }
        if (size > 0 && decimal) {
            ++*count;
            if (value > 10000) value = 10000;
            if (value > *largest) *largest = value;
        }
        i++;
    }
}

/* How often `run` of a character in a row are found, no character counted twice. */
static Py_ssize_t count_of(const Text *t, char wanted, int run) {
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; (i = next_of(t, i, wanted)) < t->length;) {
        int k = 1;
        while (k < run && i + k < t->length && at(t, i + k) == (Py_UCS4)wanted) k++;
        found += k == run;
        i += k;
    }
    return found;
}

static int is_one_of(Py_UCS4 c, const Py_UCS4 *some) {
    while (*some && *some != c) some++;
    return *some != 0;
}

static const Py_UCS4 QUESTION[] = {'?', 0xFF1F, 0}, STOP[] = {'.', '!', 0x3002, 0}, CODE[] = {'`', '}', ')', ']', ';', '>', 0};

void outline(PyObject *text, double user_chars, Measured *m, double *shape) {
    Text t = {PyUnicode_KIND(text), PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text)};
    Counts c = count_lines(&t);
    int count, largest;
    Py_ssize_t bytes = 0, brief = 0, end = t.length;
    numbers(&t, &count, &largest);
    for (Py_ssize_t i = 0; i < m->words; i++) bytes += m->lengths[i], brief += m->lengths[i] <= 2;
    while (end > 0 && Py_UNICODE_ISSPACE(at(&t, end - 1))) end--;
    Py_UCS4 last = end > 0 ? at(&t, end - 1) : 0;
    double n = m->words > 0 ? (double)m->words : 1.0, k = c.full > 0 ? (double)c.full : 1.0, lines = (double)c.lines;
    Py_ssize_t fences = count_of(&t, '`', 3), underscores = count_of(&t, '_', 1);
    const double found[SHAPE] = {
        log1p(user_chars), log1p((double)m->words), (double)m->distinct / n, (double)bytes / n, log(lines),
        log1p((double)t.length / lines), log1p((double)c.longest), c.distinct / k, (double)c.indented / k, (double)c.bulleted / k,
        (double)(c.lines - c.full) / lines, log1p((double)c.first), log1p((double)c.last), log1p(fmax(0.0, user_chars - (double)c.first)),
        is_one_of(last, QUESTION), last == ':', is_one_of(last, STOP), is_one_of(last, CODE), fences < 2 ? (double)fences : 2.0,
        t.length > 0 && Py_UNICODE_ISLOWER(at(&t, 0)), (double)brief / n, log1p(count), log1p(largest),
        log1p(underscores < 200 ? (double)underscores : 200.0), m->words < 14, m->words < 7,
    };
    memcpy(shape, found, sizeof found);
}
