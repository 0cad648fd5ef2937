/* The module as Python sees it; see gateway/_native.pyi. */
#include "native.h"

static PyMethodDef FUNCTIONS[] = {
    {"lines", header_lines, METH_O, NULL},
    {"values", (PyCFunction)(void (*)(void))header_values, METH_FASTCALL, NULL},
    {"without", (PyCFunction)(void (*)(void))headers_without, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "gateway._native", .m_size = -1, .m_methods = FUNCTIONS};

PyMODINIT_FUNC PyInit__native(void) {
    PyTypeObject *head = head_type(), *passage = passage_type();
    PyObject *module = head && passage ? PyModule_Create(&MODULE) : NULL;
    if (!module) return NULL;
    if (PyModule_AddObjectRef(module, "Head", (PyObject *)head) < 0 || PyModule_AddObjectRef(module, "Passage", (PyObject *)passage) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
