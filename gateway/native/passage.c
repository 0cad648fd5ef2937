/* `Passage`, which lets ordinary events of a stream through as they came.

   A stream's bytes are chunks of HTTP/1.1, and most chunks hold one event that differs from the one before in a piece of text
   alone. Such bytes need no decoding, no joining and no framing anew: they are counted and written. Everything else is refused
   whole, and whoever asked takes the long way. */
#define _POSIX_C_SOURCE 200809L
#include "native.h"

#include <string.h>
#include <sys/socket.h>
#include <time.h>

typedef struct {
    PyObject_HEAD
    PyObject *write;   /* of the client's transport */
    PyObject *waiting; /* how many bytes wait in it */
    int socket;        /* of the client's connection; -1 where what is written is not what goes on the wire */
    PyObject *head, *tail;
    char *kept; /* the events' texts, until they are taken: `size` bytes, room for `most`; NULL where nobody wants them */
    Py_ssize_t most, size, events;
    double heard; /* when the last ones passed */
    int row;   /* reads that have passed since it learned */
    int clear; /* nothing waits in the transport: others write to it only before an event is learned */
    char open;
} Passage;

enum { MOST_DIGITS = 6 };

/* Read one chunk's size line at `p`; return where its data begins, or NULL. Only what this gateway would write itself: lower-case
   digits, no leading zero, no extension; the last chunk, of size nought, is none. */
static const char *size_line(const char *p, const char *end, Py_ssize_t *size) {
    Py_ssize_t n = 0;
    const char *start = p;
    for (; p < end && p - start < MOST_DIGITS; p++) {
        if (*p >= '0' && *p <= '9')
            n = n * 16 + (*p - '0');
        else if (*p >= 'a' && *p <= 'f')
            n = n * 16 + (*p - 'a' + 10);
        else
            break;
    }
    if (p == start || *start == '0' || end - p < 2 || p[0] != '\r' || p[1] != '\n') return NULL;
    *size = n;
    return p + 2;
}

/* Bytes of an ordinary event that are not its text. */
static Py_ssize_t around(const Passage *self) { return PyBytes_GET_SIZE(self->head) + PyBytes_GET_SIZE(self->tail); }

/* Whether this may stand in a string of JSON, and on one line: each quote in it is escaped. */
static int is_text(const char *p, Py_ssize_t size) {
    for (const char *end = p + size; p < end; p++) {
        int escaped = *p == '\\';
        if (escaped && ++p == end) return 0; /* what it escapes is the quote behind the text */
        if (*p == '\n' || *p == '\r' || (*p == '"' && !escaped)) return 0;
    }
    return 1;
}

/* Whether these bytes are one event like the one learned: its head, a text that may stand there, its tail. */
static int is_ordinary(const Passage *self, const char *event, Py_ssize_t size) {
    Py_ssize_t head = PyBytes_GET_SIZE(self->head), tail = PyBytes_GET_SIZE(self->tail), text = size - around(self);
    return text >= 0 && memcmp(event, PyBytes_AS_STRING(self->head), (size_t)head) == 0 &&
           memcmp(event + size - tail, PyBytes_AS_STRING(self->tail), (size_t)tail) == 0 &&
           is_text(event + head, text);
}

/* Count the ordinary chunks that the bytes consist of; -1 where anything else is among them. `bytes` becomes their texts'. */
static Py_ssize_t chunks(const Passage *self, const char *p, const char *end, Py_ssize_t *bytes) {
    Py_ssize_t count = 0, size;
    *bytes = 0;
    while (p < end) {
        const char *event = size_line(p, end, &size);
        if (!event || size > end - event - 2 || event[size] != '\r' || event[size + 1] != '\n' || !is_ordinary(self, event, size)) return -1;
        count++, *bytes += size - around(self);
        p = event + size + 2;
    }
    return count;
}

static void keep(Passage *self, const char *p, const char *end) {
    Py_ssize_t size = 0;
    while (p < end) {
        const char *event = size_line(p, end, &size);
        memcpy(self->kept + self->size, event + PyBytes_GET_SIZE(self->head), (size_t)(size - around(self)));
        self->size += size - around(self);
        p = event + size + 2;
    }
}

/* Seconds of the monotonic clock, which event loops go by. */
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Write to the socket itself where nothing waits in front; return how much went, which may be nothing, or -1 with an error set. */
static Py_ssize_t sent_at_once(Passage *self, const char *bytes, Py_ssize_t size) {
    if (self->socket < 0) return 0;
    if (!self->clear) {
        PyObject *waiting = PyObject_CallNoArgs(self->waiting);
        Py_ssize_t before = waiting ? PyLong_AsSsize_t(waiting) : -1;
        Py_XDECREF(waiting);
        if (before) return before < 0 ? -1 : 0;
        self->clear = 1;
    }
    Py_ssize_t sent = send(self->socket, bytes, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? 0 : sent; /* the transport meets what went wrong again, and tells whom it concerns */
}

/* Write all of it; return 1, or -1 with an error set. */
static int pass(Passage *self, const char *bytes, Py_ssize_t size) {
    Py_ssize_t sent = sent_at_once(self, bytes, size);
    if (sent < 0) return -1;
    if (sent == size) return 1;
    self->clear = 0;
    PyObject *rest = PyBytes_FromStringAndSize(bytes + sent, size - sent);
    PyObject *done = rest ? PyObject_CallOneArg(self->write, rest) : NULL;
    Py_XDECREF(rest);
    Py_XDECREF(done);
    return done ? 1 : -1;
}

int passage_takes(PyObject *passage, const char *p, Py_ssize_t size) {
    Passage *self = (Passage *)passage;
    Py_ssize_t count, bytes;
    if (!self->open || !self->head || !self->write) return 0;
    if ((count = chunks(self, p, p + size, &bytes)) <= 0) return 0;
    if (self->kept) {
        if (self->size + bytes > self->most) return 0;
        keep(self, p, p + size);
    }
    self->events += count;
    self->row++;
    self->heard = now();
    return pass(self, p, size);
}

static PyObject *passage_call(Passage *self, PyObject *args, PyObject *kwargs) {
    PyObject *data;
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "a passage takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "S", &data)) return NULL;
    int passed = passage_takes((PyObject *)self, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data));
    return passed < 0 ? NULL : PyBool_FromLong(passed);
}

static PyObject *passage_learn(Passage *self, PyObject *args) {
    PyObject *head, *tail;
    if (!PyArg_ParseTuple(args, "SS", &head, &tail)) return NULL;
    Py_XSETREF(self->head, Py_NewRef(head));
    Py_XSETREF(self->tail, Py_NewRef(tail));
    self->open = 1;
    self->row = self->clear = 0;
    Py_RETURN_NONE;
}

static PyObject *passage_take(Passage *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *taken = Py_BuildValue("ny#", self->events, self->kept ? self->kept : "", self->size);
    if (taken) self->events = self->size = 0;
    return taken;
}

static int passage_init(Passage *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"write", "waiting", "socket", "keep", NULL};
    PyObject *write, *waiting;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOin", words, &write, &waiting, &self->socket, &self->most)) return -1;
    Py_XSETREF(self->write, Py_NewRef(write));
    Py_XSETREF(self->waiting, Py_NewRef(waiting));
    PyMem_Free(self->kept);
    self->kept = NULL, self->size = 0;
    if (self->most > 0 && !(self->kept = PyMem_Malloc((size_t)self->most))) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int passage_traverse(Passage *self, visitproc visit, void *arg) {
    Py_VISIT(self->write);
    Py_VISIT(self->waiting);
    return 0;
}

static int passage_clear(Passage *self) {
    Py_CLEAR(self->write);
    Py_CLEAR(self->waiting);
    self->open = 0;
    return 0;
}

static void passage_dealloc(Passage *self) {
    PyObject_GC_UnTrack(self);
    passage_clear(self);
    PyMem_Free(self->kept);
    Py_CLEAR(self->head);
    Py_CLEAR(self->tail);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef METHODS[] = {
    {"learn", (PyCFunction)passage_learn, METH_VARARGS, NULL},
    {"take", (PyCFunction)passage_take, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef MEMBERS[] = {
    {"open", T_BOOL, offsetof(Passage, open), 0, NULL},
    {"events", T_PYSSIZET, offsetof(Passage, events), READONLY, NULL},
    {"row", T_INT, offsetof(Passage, row), READONLY, NULL},
    {"heard", T_DOUBLE, offsetof(Passage, heard), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject PassageType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gateway._native.Passage",
    .tp_basicsize = sizeof(Passage),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)passage_init,
    .tp_dealloc = (destructor)passage_dealloc,
    .tp_traverse = (traverseproc)passage_traverse,
    .tp_clear = (inquiry)passage_clear,
    .tp_call = (ternaryfunc)passage_call,
    .tp_methods = METHODS,
    .tp_members = MEMBERS,
};

PyTypeObject *passage_type(void) { return PyType_Ready(&PassageType) < 0 ? NULL : &PassageType; }
