/* The module as Python sees it; see gateway/_native.pyi. */
#include "native.h"

static PyMethodDef FUNCTIONS[] = {
    {"lines", header_lines, METH_O, NULL},
    {"micros", micros, METH_O, NULL},
    {"values", (PyCFunction)(void (*)(void))header_values, METH_FASTCALL, NULL},
    {"without", (PyCFunction)(void (*)(void))headers_without, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "gateway._native", .m_size = -1, .m_methods = FUNCTIONS};

static int add(PyObject *module, const char *name, PyTypeObject *type) { return type ? PyModule_AddObjectRef(module, name, (PyObject *)type) : -1; }

static int add_types(PyObject *module) {
#if defined(__linux__)
    if (add(module, "Bypass", bypass_type()) < 0) return -1;
#endif
    if (add(module, "Head", head_type()) < 0 || add(module, "Passage", passage_type()) < 0) return -1;
    return add(module, "Spread", spread_type());
}

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (module && add_types(module) < 0) Py_CLEAR(module);
    return module;
}
