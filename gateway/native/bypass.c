/* `Bypass`, which reads connections whose streams are ordinary, and passes their events on, with no object and no call in between.

   An event loop's transport makes bytes of what it reads and calls its protocol, which asks the passage, which calls the other
   transport: some ten calls an event. While all that comes is ordinary nobody else need hear of it. What is not, is handed back,
   with the connection. */
#define _GNU_SOURCE
#include "native.h"

#if defined(__linux__)
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_AT_ONCE = 64, MOST_BYTES = 65536 };

/* One connection that is read here: whom its bytes pass by, and who takes it back. */
typedef struct {
    PyObject *passage, *back;
} Watched;

typedef struct {
    PyObject_HEAD
    int poll; /* watches the sockets; is watched by the event loop itself */
    Watched *watched; /* by socket; `room` of them */
    int room;
    char bytes[MOST_BYTES];
} Bypass;

static Watched *watched_at(const Bypass *self, int socket) {
    return socket >= 0 && socket < self->room && self->watched[socket].passage ? &self->watched[socket] : NULL;
}

static int make_room(Bypass *self, int socket) {
    if (socket < self->room) return 1;
    int room = socket + 64;
    Watched *watched = PyMem_Realloc(self->watched, (size_t)room * sizeof(Watched));
    if (!watched) return 0;
    memset(watched + self->room, 0, (size_t)(room - self->room) * sizeof(Watched));
    self->watched = watched, self->room = room;
    return 1;
}

static void forget(Bypass *self, int socket) {
    Watched *one = watched_at(self, socket);
    if (!one) return;
    epoll_ctl(self->poll, EPOLL_CTL_DEL, socket, NULL);
    Watched gone = *one;
    *one = (Watched){NULL, NULL};
    Py_DECREF(gone.passage);
    Py_DECREF(gone.back);
}

static PyObject *bypass_add(Bypass *self, PyObject *args) {
    int socket;
    PyObject *passage, *back;
    if (!PyArg_ParseTuple(args, "iO!O", &socket, passage_type(), &passage, &back)) return NULL;
    if (socket < 0 || watched_at(self, socket)) return PyErr_Format(PyExc_ValueError, "no socket, or one that is read already: %d", socket);
    if (!make_room(self, socket)) return PyErr_NoMemory();
    struct epoll_event event = {.events = EPOLLIN, .data.fd = socket};
    if (epoll_ctl(self->poll, EPOLL_CTL_ADD, socket, &event) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    self->watched[socket] = (Watched){Py_NewRef(passage), Py_NewRef(back)};
    Py_RETURN_NONE;
}

static PyObject *bypass_remove(Bypass *self, PyObject *socket) {
    int number = (int)PyLong_AsLong(socket);
    if (PyErr_Occurred()) return NULL;
    forget(self, number);
    Py_RETURN_NONE;
}

/* Give the connection back, with the bytes that did not pass; None says that such as had passed could not be written. */
static void hand_back(Bypass *self, int socket, PyObject *bytes) {
    PyObject *back = Py_NewRef(watched_at(self, socket)->back);
    forget(self, socket);
    PyObject *done = bytes ? PyObject_CallOneArg(back, bytes) : NULL;
    if (!done) PyErr_WriteUnraisable(back);
    Py_XDECREF(done);
    Py_DECREF(back);
}

static void look_at(Bypass *self, int socket) {
    Watched *one = watched_at(self, socket);
    if (!one) return; /* since somebody before it was handed back */
    Py_ssize_t size = recv(socket, self->bytes, sizeof self->bytes, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    PyObject *passage = Py_NewRef(one->passage), *bytes;
    int passed = size > 0 ? passage_takes(passage, self->bytes, size) : 0;
    if (passed < 0) PyErr_WriteUnraisable(passage);
    Py_DECREF(passage);
    if (passed > 0 || !watched_at(self, socket)) return;
    bytes = passed < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(self->bytes, size > 0 ? size : 0);
    hand_back(self, socket, bytes);
    Py_XDECREF(bytes);
}

static PyObject *bypass_look(Bypass *self, PyObject *Py_UNUSED(ignored)) {
    struct epoll_event ready[MOST_AT_ONCE];
    int count = epoll_wait(self->poll, ready, MOST_AT_ONCE, 0);
    for (int i = 0; i < count; i++) look_at(self, ready[i].data.fd);
    Py_RETURN_NONE;
}

static PyObject *bypass_fileno(Bypass *self, PyObject *Py_UNUSED(ignored)) { return PyLong_FromLong(self->poll); }

static PyObject *bypass_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *words[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", words)) return NULL;
    Bypass *self = (Bypass *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    if ((self->poll = epoll_create1(EPOLL_CLOEXEC)) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void bypass_dealloc(Bypass *self) {
    for (int socket = 0; socket < self->room; socket++) forget(self, socket);
    PyMem_Free(self->watched);
    if (self->poll >= 0) close(self->poll);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef METHODS[] = {
    {"add", (PyCFunction)bypass_add, METH_VARARGS, NULL},
    {"remove", (PyCFunction)bypass_remove, METH_O, NULL},
    {"look", (PyCFunction)bypass_look, METH_NOARGS, NULL},
    {"fileno", (PyCFunction)bypass_fileno, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject BypassType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gateway._native.Bypass",
    .tp_basicsize = sizeof(Bypass),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = bypass_new,
    .tp_dealloc = (destructor)bypass_dealloc,
    .tp_methods = METHODS,
};

PyTypeObject *bypass_type(void) { return PyType_Ready(&BypassType) < 0 ? NULL : &BypassType; }
#endif
