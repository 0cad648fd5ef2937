/* Figures of finished calls: `Spread`, a histogram's row, and `micros`, numbers as they are logged. See gateway/metrics/spread.py. */
#include "native.h"

#include <math.h>

enum { MOST_BOUNDS = 64 };

typedef struct {
    PyObject_HEAD
    PyObject *examples; /* bucket → (request id, value, Unix time) */
    double total;
    int count; /* of the bounds */
    double bounds[MOST_BOUNDS];
    unsigned long long counts[MOST_BOUNDS + 1]; /* the last one is beyond all bounds */
} Spread;

/* Count one number and return its bucket; -1 with an exception set where it is none. */
static int count_one(Spread *self, PyObject *number) {
    double value = PyFloat_AsDouble(number);
    int low = 0, high = self->count;
    if (value == -1.0 && PyErr_Occurred()) return -1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (self->bounds[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    self->counts[low]++;
    self->total += value;
    return low;
}

static PyObject *spread_add(Spread *self, PyObject *number) {
    if (count_one(self, number) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *spread_add_example(Spread *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "an example is a value, a request id and a time");
        return NULL;
    }
    int bucket = count_one(self, args[0]), failed = 1;
    if (bucket < 0) return NULL;
    PyObject *key = PyLong_FromLong(bucket), *example = PyTuple_Pack(3, args[1], args[0], args[2]);
    if (key && example) failed = PyDict_SetItem(self->examples, key, example) < 0;
    Py_XDECREF(key), Py_XDECREF(example);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *spread_counts(Spread *self, void *Py_UNUSED(ignored)) {
    PyObject *counts = PyList_New(self->count + 1);
    for (int i = 0; counts && i <= self->count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(self->counts[i]);
        if (!number)
            Py_CLEAR(counts);
        else
            PyList_SET_ITEM(counts, i, number);
    }
    return counts;
}

static PyObject *spread_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *bounds, *items;
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "a spread takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O", &bounds) || !(items = PySequence_Fast(bounds, "bounds are a sequence of numbers"))) return NULL;
    Spread *self = (Spread *)type->tp_alloc(type, 0);
    if (PySequence_Fast_GET_SIZE(items) > MOST_BOUNDS)
        PyErr_Format(PyExc_ValueError, "more than %d bounds", MOST_BOUNDS);
    else if (self && (self->examples = PyDict_New()))
        for (; self->count < PySequence_Fast_GET_SIZE(items) && !PyErr_Occurred(); self->count++)
            self->bounds[self->count] = PyFloat_AsDouble(PySequence_Fast_GET_ITEM(items, self->count));
    Py_DECREF(items);
    if (PyErr_Occurred()) Py_CLEAR(self);
    return (PyObject *)self;
}

static void spread_dealloc(Spread *self) {
    Py_CLEAR(self->examples);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef METHODS[] = {
    {"add", (PyCFunction)spread_add, METH_O, NULL},
    {"add_example", (PyCFunction)(void (*)(void))spread_add_example, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef MEMBERS[] = {
    {"total", T_DOUBLE, offsetof(Spread, total), READONLY, NULL},
    {"examples", T_OBJECT, offsetof(Spread, examples), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef PROPERTIES[] = {{"counts", (getter)spread_counts, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyTypeObject SpreadType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gateway._native.Spread",
    .tp_basicsize = sizeof(Spread),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = spread_new,
    .tp_dealloc = (destructor)spread_dealloc,
    .tp_methods = METHODS,
    .tp_members = MEMBERS,
    .tp_getset = PROPERTIES,
};

PyTypeObject *spread_type(void) { return PyType_Ready(&SpreadType) < 0 ? NULL : &SpreadType; }

/* A number with six decimals; None and nought as they are. */
static PyObject *micro(PyObject *number) {
    if (number == Py_None) return Py_NewRef(number);
    double value = PyFloat_AsDouble(number);
    if (value == -1.0 && PyErr_Occurred()) return NULL;
    return value == 0.0 ? Py_NewRef(number) : PyFloat_FromDouble(floor(value * 1e6 + 0.5) / 1e6);
}

PyObject *micros(PyObject *Py_UNUSED(module), PyObject *numbers) {
    if (!PyTuple_Check(numbers)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of numbers is needed");
        return NULL;
    }
    PyObject *made = PyTuple_New(PyTuple_GET_SIZE(numbers));
    for (Py_ssize_t i = 0; made && i < PyTuple_GET_SIZE(numbers); i++) {
        PyObject *number = micro(PyTuple_GET_ITEM(numbers, i));
        if (!number)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, i, number);
    }
    return made;
}
