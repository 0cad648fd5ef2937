/* Header lines: collected as the parser finds them, written as they go out. See gateway/headers.py, which says the same in Python. */
#include "native.h"

#include <string.h>

typedef struct {
    PyObject_HEAD
    PyObject *pairs; /* a list of (lower-case name, value) */
    PyObject *host;  /* its value, or NULL; where there are several, a value that is no host */
    char open, awaits_continue, framed, is_events, is_json;
} Head;

static PyObject *SEVERAL; /* stands for several Host headers: none of them is one */

static int begin(Head *self) {
    PyObject *fresh = PyList_New(0);
    if (!fresh) return -1;
    Py_XSETREF(self->pairs, fresh);
    Py_CLEAR(self->host);
    self->open = 1;
    self->awaits_continue = self->framed = self->is_events = self->is_json = 0;
    return 0;
}

/* The name in lower case: the same object where it is so already. */
static PyObject *lowered(PyObject *name) {
    const char *from = PyBytes_AS_STRING(name);
    Py_ssize_t size = PyBytes_GET_SIZE(name), i = 0;
    while (i < size && !(from[i] >= 'A' && from[i] <= 'Z')) i++;
    if (i == size) return Py_NewRef(name);
    PyObject *made = PyBytes_FromStringAndSize(NULL, size); /* from a text of one byte it would be everybody's */
    if (!made) return NULL;
    char *to = PyBytes_AS_STRING(made);
    for (i = 0; i < size; i++) to[i] = from[i] >= 'A' && from[i] <= 'Z' ? (char)(from[i] + ('a' - 'A')) : from[i];
    return made;
}

static int is(PyObject *bytes, const char *word, size_t size) {
    return (size_t)PyBytes_GET_SIZE(bytes) == size && memcmp(PyBytes_AS_STRING(bytes), word, size) == 0;
}
#define IS(bytes, word) is(bytes, word, sizeof word - 1)

static int holds(PyObject *bytes, const char *word, Py_ssize_t size) {
    const char *p = PyBytes_AS_STRING(bytes);
    for (Py_ssize_t i = 0; i + size <= PyBytes_GET_SIZE(bytes); i++)
        if (memcmp(p + i, word, (size_t)size) == 0) return 1;
    return 0;
}

/* What of one header concerns the message's frame. */
static int note(Head *self, PyObject *name, PyObject *value) {
    if (IS(name, "host")) {
        Py_XSETREF(self->host, Py_NewRef(self->host ? SEVERAL : value));
    } else if (IS(name, "expect")) {
        PyObject *small = lowered(value);
        if (!small) return -1;
        self->awaits_continue = IS(small, "100-continue");
        Py_DECREF(small);
    } else if (IS(name, "content-type")) {
        static const char events[] = "text/event-stream";
        self->is_events = PyBytes_GET_SIZE(value) >= (Py_ssize_t)sizeof events - 1 &&
                          memcmp(PyBytes_AS_STRING(value), events, sizeof events - 1) == 0;
        self->is_json = holds(value, "json", 4);
    } else if (IS(name, "content-length") || IS(name, "transfer-encoding")) {
        self->framed = 1;
    }
    return 0;
}

static PyObject *head_add(Head *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "a header is a name and a value, both bytes");
        return NULL;
    }
    if (!self->open) Py_RETURN_NONE;
    PyObject *name = lowered(args[0]);
    if (!name) return NULL;
    PyObject *pair = note(self, name, args[1]) < 0 ? NULL : PyTuple_Pack(2, name, args[1]);
    Py_DECREF(name);
    if (!pair || PyList_Append(self->pairs, pair) < 0) {
        Py_XDECREF(pair);
        return NULL;
    }
    Py_DECREF(pair);
    Py_RETURN_NONE;
}

static PyObject *head_begin(Head *self, PyObject *Py_UNUSED(ignored)) {
    if (begin(self) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *head_end(Head *self, PyObject *Py_UNUSED(ignored)) {
    self->open = 0;
    PyObject *pairs = self->pairs;
    if (!(self->pairs = PyList_New(0))) {
        self->pairs = pairs;
        return NULL;
    }
    return pairs;
}

static PyObject *head_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) || (kwargs && PyDict_GET_SIZE(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "a head is made of nothing");
        return NULL;
    }
    Head *self = (Head *)type->tp_alloc(type, 0);
    if (self && begin(self) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void head_dealloc(Head *self) {
    Py_CLEAR(self->pairs);
    Py_CLEAR(self->host);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef METHODS[] = {
    {"add", (PyCFunction)(void (*)(void))head_add, METH_FASTCALL, NULL},
    {"begin", (PyCFunction)head_begin, METH_NOARGS, NULL},
    {"end", (PyCFunction)head_end, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef MEMBERS[] = {
    {"host", T_OBJECT, offsetof(Head, host), READONLY, NULL},
    {"awaits_continue", T_BOOL, offsetof(Head, awaits_continue), READONLY, NULL},
    {"framed", T_BOOL, offsetof(Head, framed), READONLY, NULL},
    {"is_events", T_BOOL, offsetof(Head, is_events), READONLY, NULL},
    {"is_json", T_BOOL, offsetof(Head, is_json), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject HeadType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gateway._native.Head",
    .tp_basicsize = sizeof(Head),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = head_new,
    .tp_dealloc = (destructor)head_dealloc,
    .tp_methods = METHODS,
    .tp_members = MEMBERS,
};

/* The name and the value of a pair of bytes; -1 where it is none. */
static int parts(PyObject *pair, PyObject **name, PyObject **value) {
    *name = *value = NULL;
    if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2)
        *name = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
    else if (PyList_Check(pair) && PyList_GET_SIZE(pair) == 2)
        *name = PyList_GET_ITEM(pair, 0), *value = PyList_GET_ITEM(pair, 1);
    if (*name && PyBytes_Check(*name) && PyBytes_Check(*value)) return 0;
    PyErr_SetString(PyExc_TypeError, "a header is a name and a value, both bytes");
    return -1;
}

static char *put(char *to, PyObject *bytes) {
    Py_ssize_t size = PyBytes_GET_SIZE(bytes);
    memcpy(to, PyBytes_AS_STRING(bytes), (size_t)size);
    return to + size;
}

/* The bytes of all lines; nothing but this runs between the two walks, so that they see the same. */
static PyObject *lines_of(PyObject *pairs) {
    PyObject *name, *value;
    Py_ssize_t size = 0, count = PySequence_Fast_GET_SIZE(pairs);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parts(PySequence_Fast_GET_ITEM(pairs, i), &name, &value) < 0) return NULL;
        size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + 4;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, size);
    char *to = made ? PyBytes_AS_STRING(made) : NULL;
    for (Py_ssize_t i = 0; made && i < count; i++) {
        const char *line = to;
        (void)parts(PySequence_Fast_GET_ITEM(pairs, i), &name, &value);
        to = put(to, name);
        *to++ = ':', *to++ = ' ';
        to = put(to, value);
        if (memchr(line, '\n', (size_t)(to - line))) {
            PyErr_SetString(PyExc_ValueError, "a header has a line break in it");
            Py_CLEAR(made);
        } else {
            *to++ = '\r', *to++ = '\n';
        }
    }
    return made;
}

PyObject *header_lines(PyObject *Py_UNUSED(module), PyObject *headers) {
    PyObject *pairs = PySequence_Fast(headers, "headers are a sequence"), *made;
    if (!pairs) return NULL;
    made = lines_of(pairs);
    Py_DECREF(pairs);
    return made;
}

static int starts(PyObject *bytes, PyObject *with) {
    return PyBytes_GET_SIZE(bytes) >= PyBytes_GET_SIZE(with) &&
           memcmp(PyBytes_AS_STRING(bytes), PyBytes_AS_STRING(with), (size_t)PyBytes_GET_SIZE(with)) == 0;
}

/* Whether a header is to be left out: by its name, or by one of the beginnings; -1 where something is no bytes. */
static int left_out(PyObject *pair, PyObject *names, PyObject *beginnings) {
    PyObject *name, *value;
    int found = parts(pair, &name, &value) < 0 ? -1 : PySet_Contains(names, name);
    for (Py_ssize_t i = 0; found == 0 && i < PyTuple_GET_SIZE(beginnings); i++) found = starts(name, PyTuple_GET_ITEM(beginnings, i));
    return found;
}

static int are_bytes(PyObject *const *items, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (!PyBytes_Check(items[i])) return 0;
    return 1;
}

PyObject *headers_without(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !PyAnySet_Check(args[1]) || !PyTuple_Check(args[2]) ||
        !are_bytes(((PyTupleObject *)args[2])->ob_item, PyTuple_GET_SIZE(args[2]))) {
        PyErr_SetString(PyExc_TypeError, "expected headers, a set of names and a tuple of beginnings");
        return NULL;
    }
    PyObject *pairs = PySequence_Fast(args[0], "headers are a sequence"), *kept = pairs ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; kept && i < PySequence_Fast_GET_SIZE(pairs); i++) {
        PyObject *pair = PySequence_Fast_GET_ITEM(pairs, i);
        int out = left_out(pair, args[1], args[2]);
        if (out < 0 || (!out && PyList_Append(kept, pair) < 0)) Py_CLEAR(kept);
    }
    Py_XDECREF(pairs);
    return kept;
}

static int is_one_of(PyObject *name, PyObject *const *names, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (is(name, PyBytes_AS_STRING(names[i]), (size_t)PyBytes_GET_SIZE(names[i]))) return 1;
    return 0;
}

PyObject *header_values(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    PyObject *name, *value, *found = NULL;
    if (count < 1 || !are_bytes(args + 1, count - 1)) {
        PyErr_SetString(PyExc_TypeError, "expected headers and names of bytes");
        return NULL;
    }
    PyObject *pairs = PySequence_Fast(args[0], "headers are a sequence");
    if (!pairs) return NULL;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(pairs); i++) {
        int wrong = parts(PySequence_Fast_GET_ITEM(pairs, i), &name, &value) < 0;
        if (!wrong && is_one_of(name, args + 1, count - 1))
            wrong = (!found && !(found = PyList_New(0))) || PyList_Append(found, value) < 0;
        if (wrong) {
            Py_DECREF(pairs);
            Py_XDECREF(found);
            return NULL;
        }
    }
    Py_DECREF(pairs);
    PyObject *values = found ? PyList_AsTuple(found) : PyTuple_New(0);
    Py_XDECREF(found);
    return values;
}

PyTypeObject *head_type(void) {
    if (!SEVERAL && !(SEVERAL = PyBytes_FromStringAndSize("\0", 1))) return NULL;
    return PyType_Ready(&HeadType) < 0 ? NULL : &HeadType;
}
