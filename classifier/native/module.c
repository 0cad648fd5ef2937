/* The Python side: `Kernel`, which holds a lexicon and, where it is given them, weights; and `conversation` (reading.c). */
#include "weights.h"

#include <math.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    Lexicon lexicon;
    Weights weights;
    Measured measured; /* room for one request; the interpreter's lock guards it */
} Kernel;

static const char *const CUE_NAMES[] = {"structure", "fact", "curt", "repeat", "convert", "table", "summarise", "extract",
                                        "edit", "rewrite", "code", "language", "explain", "creative"};
static const char *const GROUP_NAMES[] = {"curly", "underscore", "equals"};

static int find(PyObject *names, const char *wanted, int *place) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, wanted) == 0) {
            *place = (int)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "no name '%s' among the features", wanted);
    return -1;
}

static int find_crosses(Lexicon *l, PyObject *cues, PyObject *groups) {
    int *const at_cue[] = {&l->structure, &l->fact, &l->curt, &l->repeat, &l->convert, &l->table, &l->summarise,
                           &l->extract, &l->edit, &l->rewrite, &l->code, &l->language, &l->explain, &l->creative};
    int *const at_group[] = {&l->curly, &l->underscore, &l->equals};
    for (size_t i = 0; i < sizeof at_cue / sizeof *at_cue; i++)
        if (find(cues, CUE_NAMES[i], at_cue[i]) < 0) return -1;
    for (size_t i = 0; i < sizeof at_group / sizeof *at_group; i++)
        if (find(groups, GROUP_NAMES[i], at_group[i]) < 0) return -1;
    return 0;
}

/* Check that a buffer holds exactly `count` items of `size` bytes. */
static int holds(const char *name, const Py_buffer *buffer, Py_ssize_t count, Py_ssize_t size) {
    if (buffer->len == count * size) return 1;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes and not %zd", name, buffer->len, count * size);
    return 0;
}

static int read_lexicon(Kernel *self, PyObject *spec) {
    Lexicon *l = &self->lexicon;
    PyObject *cues, *tongues, *groups;
    Py_buffer keys, masks, bytes;
    if (!PyArg_ParseTuple(spec, "O!O!O!y*y*y*", &PyTuple_Type, &cues, &PyTuple_Type, &tongues, &PyTuple_Type, &groups, &keys, &masks, &bytes))
        return -1;
    Py_ssize_t nc = PyTuple_GET_SIZE(cues), nt = PyTuple_GET_SIZE(tongues), ng = PyTuple_GET_SIZE(groups);
    int failed = -1;
    if (nc > MOST_CUES || nt > MOST_TONGUES || nc + nt > 64 || ng > MOST_GROUPS)
        PyErr_SetString(PyExc_ValueError, "more cues, tongues or groups than there is room for");
    else if (holds("masks", &masks, keys.len / 8, 8) && holds("groups", &bytes, 256, 8)) {
        l->cues = (int)nc, l->tongues = (int)nt, l->groups = (int)ng;
        l->names = l->groups + 2 * l->cues + l->tongues + SHAPE + CROSSES + REQUEST;
        memcpy(l->in_group, bytes.buf, sizeof l->in_group);
        if (lexicon_fill(l, keys.buf, masks.buf, keys.len / 8) < 0)
            PyErr_SetString(PyExc_ValueError, "more words than the table has room for");
        else
            failed = find_crosses(l, cues, groups);
    }
    PyBuffer_Release(&keys), PyBuffer_Release(&masks), PyBuffer_Release(&bytes);
    return failed;
}

enum { CENTRE, SCALE, RARITY, PROTOTYPES, BIAS, CUES, WORDS, LIKENESS, NOISE, KNOTS, PARTS };

/* Make an empty grid that begins where a line of the cache does. */
static int make_grid(Weights *w) {
    w->room = PyMem_Calloc((size_t)w->blocks * BLOCK * (size_t)w->stride + CACHE_LINE, 1);
    if (!w->room) {
        PyErr_NoMemory();
        return -1;
    }
    w->grid = (int8_t *)w->room + (CACHE_LINE - (uintptr_t)w->room % CACHE_LINE);
    return 0;
}

static int make_room(Weights *w) {
    size_t k = (size_t)w->knots;
    w->words = PyMem_Calloc(2 * BUCKETS, sizeof *w->words);
    w->blocks = (w->prototypes + BLOCK - 1) / BLOCK;
    size_t rows = (size_t)w->blocks * BLOCK;
    w->lengths = PyMem_Calloc(rows + 1, sizeof *w->lengths);
    w->excess = PyMem_Calloc(rows + 1, sizeof *w->excess);
    w->likeness = PyMem_Calloc(rows * HEADS + 1, sizeof *w->likeness);
    w->knot_x = PyMem_Calloc(2 * k, sizeof *w->knot_x);
    if (make_grid(w) < 0) return -1;
    if (!w->words || !w->lengths || !w->excess || !w->likeness || !w->knot_x) {
        PyErr_NoMemory();
        return -1;
    }
    w->knot_y = w->knot_x + k;
    return 0;
}

/* Copy checked arrays of single precision into `w`. */
static int lay_out(Weights *w, const Py_buffer *part, int names) {
    const float *cues = part[CUES].buf, *knots = part[KNOTS].buf;
    w->names = names, w->stride = names <= NARROW ? NARROW : PADDED;
    w->wide = weights_wide();
    if (make_room(w) < 0) return -1;
    memcpy(w->centre, part[CENTRE].buf, (size_t)part[CENTRE].len);
    memcpy(w->scale, part[SCALE].buf, (size_t)part[SCALE].len);
    memcpy(w->noise, part[NOISE].buf, (size_t)part[NOISE].len);
    memcpy(w->bias, part[BIAS].buf, (size_t)part[BIAS].len);
    for (int c = 0; c < names; c++)
        for (int h = 0; h < HEADS; h++) w->cues[h][c] = cues[c * HEADS + h];
    for (int k = 0; k < w->knots; k++) w->knot_x[k] = knots[2 * k], w->knot_y[k] = knots[2 * k + 1];
    if (weights_fill(w, part[PROTOTYPES].buf, part[WORDS].buf, part[RARITY].buf, part[LIKENESS].buf) < 0) {
        PyErr_SetString(PyExc_ValueError, "prototypes are not on the grid");
        return -1;
    }
    return 0;
}

static int read_weights(Kernel *self, PyObject *parts, double decay) {
    static const char *const names[PARTS] = {"centre", "scale", "rarity", "prototypes", "bias", "cues", "words", "likeness", "noise", "knots"};
    Weights *w = &self->weights;
    Py_buffer part[PARTS];
    int c = self->lexicon.names, count = 0, failed = -1;
    if (PyTuple_GET_SIZE(parts) != PARTS) {
        PyErr_Format(PyExc_ValueError, "%d arrays of weights are needed", PARTS);
        return -1;
    }
    while (count < PARTS && PyObject_GetBuffer(PyTuple_GET_ITEM(parts, count), &part[count], PyBUF_C_CONTIGUOUS) == 0) count++;
    if (count == PARTS) {
        w->prototypes = (int)(part[PROTOTYPES].len / (4 * c)), w->knots = (int)(part[KNOTS].len / 8), w->decay = (float)decay;
        const Py_ssize_t sizes[PARTS] = {c, c, 2 * BUCKETS, (Py_ssize_t)w->prototypes * c, HEADS, (Py_ssize_t)c * HEADS,
                                         2 * BUCKETS * HEADS, (Py_ssize_t)w->prototypes * HEADS, c + 2, 2 * (Py_ssize_t)w->knots};
        int i = 0;
        while (i < PARTS && holds(names[i], &part[i], sizes[i], 4)) i++;
        if (i == PARTS && w->knots >= 2)
            failed = lay_out(w, part, c);
        else if (i == PARTS)
            PyErr_SetString(PyExc_ValueError, "two knots are needed");
    }
    while (count > 0) PyBuffer_Release(&part[--count]);
    return failed;
}

static int kernel_init(Kernel *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"lexicon", "weights", "decay", NULL};
    PyObject *spec, *parts = NULL;
    double decay = 0.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O!d", words, &PyTuple_Type, &spec, &PyTuple_Type, &parts, &decay)) return -1;
    if (self->lexicon.names) {
        PyErr_SetString(PyExc_RuntimeError, "a kernel is made once");
        return -1;
    }
    if (read_lexicon(self, spec) < 0) return -1;
    return parts ? read_weights(self, parts, decay) : 0;
}

static void kernel_dealloc(Kernel *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->weights.words), PyMem_Free(self->weights.room), PyMem_Free(self->weights.lengths), PyMem_Free(self->weights.excess);
    PyMem_Free(self->weights.likeness), PyMem_Free(self->weights.knot_x);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Fields of a view, in the order in which they are read: texts, then numbers, then numbers that may be missing. */
enum { USER, SYSTEM, EARLIER, PREFILL, TOOLS, FORM, TEXTS, CHARS = TEXTS, NAMES, FORCED, RESULTS, PREDICTED, TURNS, IMAGES, AUDIO, FILES, N, STOP,
       NUMBERS, TEMPERATURE = NUMBERS, LIMIT, FIELDS };
static const char *const FIELD_NAMES[FIELDS] = {"user", "system", "earlier", "prefill", "tools", "form", "user_chars", "tool_names", "tool_forced",
                                                "tool_results", "predicted", "turns", "images", "audio", "files", "n", "stop", "temperature", "max_tokens"};
static PyObject *fields[FIELDS];

static int fields_init(void) {
    for (int i = 0; i < FIELDS; i++)
        if (!fields[i] && !(fields[i] = PyUnicode_InternFromString(FIELD_NAMES[i]))) return -1;
    return 0;
}

/* One field of a view as a number, a text by its length, what is missing as NaN; -1 with an exception set. */
static int read_field(PyObject *view, int field, double *number) {
    PyObject *value = PyObject_GetAttr(view, fields[field]);
    if (!value) return -1;
    if (field < TEXTS && !PyUnicode_Check(value))
        PyErr_Format(PyExc_TypeError, "a view's %s is a text", FIELD_NAMES[field]);
    else if (field < TEXTS)
        *number = (double)PyUnicode_GET_LENGTH(value);
    else
        *number = field >= NUMBERS && value == Py_None ? NAN : PyFloat_AsDouble(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

/* What the parameters and the conversation add to the text: `features.request_of`. */
static void fill_request(const double *v, Asked *asked) {
    double temperature = isnan(v[TEMPERATURE]) ? 1.0 : fmin(2.0, fmax(0.0, v[TEMPERATURE]));
    const double told[REQUEST] = {v[NAMES] > 0.0, log1p(v[TOOLS]), v[FORCED] != 0.0, log1p(v[RESULTS]), v[FORM] > 0.0, log1p(v[PREDICTED]), log1p(v[TURNS]),
                                  log1p(v[SYSTEM]), log1p(v[EARLIER]), log1p(v[PREFILL]), log1p(v[IMAGES] + v[AUDIO] + v[FILES]), temperature,
                                  isnan(v[TEMPERATURE]) || v[TEMPERATURE] > 0.0, isnan(v[LIMIT]) ? 0.0 : log1p(fmin(v[LIMIT], 1e6)), fmin(v[N], 16.0), log1p(v[STOP])};
    memcpy(asked->request, told, sizeof told);
    asked->user_chars = v[CHARS];
    asked->form = v[FORM] > 0.0;
}

/* Read (view, context) and measure; returns -1 with an exception set. */
static int read_request(Kernel *self, PyObject *const *args, Py_ssize_t count) {
    Asked asked = {.context = NULL};
    double values[FIELDS];
    if (count != 2 || (args[1] != Py_None && !(PyBytes_Check(args[1]) && PyBytes_GET_SIZE(args[1]) == (Py_ssize_t)sizeof(double) * self->lexicon.cues))) {
        PyErr_SetString(PyExc_TypeError, "a view is needed, and what `context` returned or None");
        return -1;
    }
    if (args[1] != Py_None) asked.context = (const double *)(const void *)PyBytes_AS_STRING(args[1]); /* bytes objects hold theirs aligned for doubles */
    for (int i = 0; i < FIELDS; i++)
        if (read_field(args[0], i, &values[i]) < 0) return -1;
    fill_request(values, &asked);
    PyObject *user = PyObject_GetAttr(args[0], fields[USER]);
    if (!user) return -1;
    measure(&self->lexicon, user, &asked, &self->measured);
    Py_DECREF(user);
    return 0;
}

static PyObject *kernel_predict(Kernel *self, PyObject *const *args, Py_ssize_t count) {
    if (!self->weights.words) {
        PyErr_SetString(PyExc_RuntimeError, "this kernel has no weights");
        return NULL;
    }
    if (read_request(self, args, count) < 0) return NULL;
    Prediction p = predict(&self->weights, &self->measured);
    return Py_BuildValue("ddddd", p.length, p.ngram, p.output, p.spread, p.score);
}

static PyObject *kernel_measure(Kernel *self, PyObject *const *args, Py_ssize_t count) {
    if (read_request(self, args, count) < 0) return NULL;
    const Measured *m = &self->measured;
    PyObject *words = PyList_New(0);
    for (int i = 0; words && i < SEEN; i++)
        for (uint64_t mask = m->seen[i]; mask; mask &= mask - 1) {
            PyObject *bucket = PyLong_FromLong(64 * i + __builtin_ctzll(mask));
            if (!bucket || PyList_Append(words, bucket) < 0) Py_CLEAR(words);
            Py_XDECREF(bucket);
            if (!words) return NULL;
        }
    if (!words) return NULL;
    return Py_BuildValue("y#N", (const char *)m->cues, (Py_ssize_t)sizeof(double) * self->lexicon.names, words);
}

static PyObject *kernel_context(Kernel *self, PyObject *text) {
    double asked[MOST_CUES], head[MOST_CUES], common[MOST_TONGUES];
    if (!PyUnicode_Check(text)) {
        PyErr_SetString(PyExc_TypeError, "a text is needed");
        return NULL;
    }
    encode(text, &self->measured);
    hash_words(&self->measured);
    count_hints(&self->lexicon, &self->measured, asked, head, common);
    for (int i = 0; i < self->lexicon.cues; i++) asked[i] = 0.5 * (asked[i] < 2.0 ? asked[i] : 2.0);
    return PyBytes_FromStringAndSize((const char *)asked, (Py_ssize_t)sizeof(double) * self->lexicon.cues);
}

static PyObject *kernel_be_portable(Kernel *self, PyObject *Py_UNUSED(ignored)) {
    Weights *w = &self->weights, plain = *w;
    plain.wide = 0;
    if (w->wide) {
        int rows = w->blocks * BLOCK;
        if (make_grid(&plain) < 0) return NULL;
        for (int p = 0; p < rows; p++)
            for (int c = 0; c < w->stride; c++) plain.grid[weights_place(&plain, p, c)] = w->grid[weights_place(w, p, c)];
        PyMem_Free(w->room);
        *w = plain;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"be_portable", (PyCFunction)kernel_be_portable, METH_NOARGS, "be_portable(): use only what older processors have too"},
    {"predict", (PyCFunction)(void (*)(void))kernel_predict, METH_FASTCALL,
     "predict(view, context) -> (log length, log n-gram length, log output, spread, score)"},
    {"measure", (PyCFunction)(void (*)(void))kernel_measure, METH_FASTCALL,
     "measure(view, context) -> (cues as doubles in bytes, buckets of the words)"},
    {"context", (PyCFunction)kernel_context, METH_O, "context(system) -> bytes: the cues of a system prompt, at half weight"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Features of a text, and weights applied to them. Kernel(lexicon, weights, decay)"},
    {Py_tp_init, kernel_init},
    {Py_tp_dealloc, kernel_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"classifier._native.Kernel", sizeof(Kernel), 0, Py_TPFLAGS_DEFAULT, slots};

static int module_exec(PyObject *module) {
    features_init();
    if (reading_init() < 0 || fields_init() < 0) return -1;
    PyObject *type = PyType_FromSpec(&spec);
    int failed = type ? PyModule_AddObjectRef(module, "Kernel", type) : -1;
    Py_XDECREF(type);
    return failed;
}

static PyMethodDef functions[] = {
    {"conversation", (PyCFunction)(void (*)(void))conversation, METH_FASTCALL, "conversation(body, key) -> what `Conversation.told` says, or None"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "The classifier's arithmetic, compiled.", 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
