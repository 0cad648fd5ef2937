/* What the module's parts offer each other: types that are ready, or NULL with an error set, and functions of the module. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

PyTypeObject *bypass_type(void);
PyTypeObject *head_type(void);
PyTypeObject *passage_type(void);
PyTypeObject *spread_type(void);
PyObject *micros(PyObject *module, PyObject *numbers);
PyObject *header_lines(PyObject *module, PyObject *pairs);
PyObject *headers_without(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *header_values(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* Let bytes past, if all of them are ordinary; return 1, 0 where they are not and nothing was done, or -1 with an error set. */
int passage_takes(PyObject *passage, const char *bytes, Py_ssize_t size);
