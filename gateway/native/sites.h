/* Attributes that are remembered where the source names them.

   The interpreter keeps beside each attribute access of a function where it found the attribute last, and looks no further while
   the object's type is the same; what Cython translates looks through the type each time, fifteen hundred times a call. `build.py`
   includes this before a translated module's own code, and again behind it, where Cython's helpers get their names back.

   A type's version changes with each change to it or its bases, and no version is given twice (CPython, Objects/typeobject.c), so
   one number says that what was found still holds. Remembered are slots (`__slots__`, fields of structs), and methods of types
   whose instances have no dictionary that could hide them; anything else goes the long way, which is CPython's own. A method is
   borrowed from its type, as in the interpreter's caches: it lives as long as the version. */
#if defined(SITE)
#pragma pop_macro("__Pyx_PyObject_GetAttrStr")
#pragma pop_macro("__Pyx_PyObject_SetAttrStr")
#pragma pop_macro("__Pyx_PyObject_FastCallMethod")
#pragma pop_macro("__Pyx_Object_VectorcallMethodKwds")
#elif !defined(Py_GIL_DISABLED) && defined(__GNUC__) && PY_VERSION_HEX < 0x03100000
#include <Python.h>
#include <structmember.h>

/* What looks an attribute up is compiled without a thought for who calls it. Where GCC 12.2 follows the address of a site into such
   a function it takes the site for a constant (-fipa-cp with -fipa-reference), and puts it where nothing can be written. */
#if __has_attribute(noipa)
#define APART __attribute__((noipa))
#else
#define APART __attribute__((noinline))
#endif

/* What a site knows of the type with this version, which is 0 for no type. Of a type of which it knows that it has no such slot or
   method the version stands in place of the offset, out of the way of those that are found. */
typedef struct {
    unsigned int version, offset;
} SlotSite;

typedef struct {
    SlotSite at;
    PyObject *method; /* borrowed; NULL where what is called stands in the slot */
} CallSite;

static int holds(const SlotSite *site, const PyTypeObject *type) { return site->version == type->tp_version_tag && site->version; }

static int in_vain(const SlotSite *site, const PyTypeObject *type) {
    return site->version == 0 && site->offset != 0 && site->offset == type->tp_version_tag;
}

static void remember(SlotSite *site, const PyTypeObject *type, int found, unsigned int offset) {
    site->version = found ? type->tp_version_tag : 0;
    site->offset = found ? offset : type->tp_version_tag;
}

/* Return where instances of `type` keep the attribute, or 0 where it is no slot; `found` is what the type has by that name. */
static unsigned int slot_of(PyTypeObject *type, PyObject *name, int writes, PyObject **found) {
    PyObject *descriptor = *found = _PyType_Lookup(type, name);
    if (!descriptor || !Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return 0;
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    if (member->type != T_OBJECT_EX || (member->flags & ~(writes ? 0 : READONLY)) != 0) return 0;
    return PyType_IsSubtype(type, ((PyDescrObject *)descriptor)->d_type) ? (unsigned int)member->offset : 0;
}

static PyObject **slot_at(PyObject *object, unsigned int offset) { return (PyObject **)((char *)object + offset); }

static APART PyObject *look_up(SlotSite *site, PyObject *object, PyObject *name) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *found;
    if (!in_vain(site, type)) {
        unsigned int offset = type->tp_getattro == PyObject_GenericGetAttr ? slot_of(type, name, 0, &found) : 0;
        remember(site, type, offset != 0, offset);
    }
    return PyObject_GetAttr(object, name);
}

static APART PyObject *site_get(SlotSite *site, PyObject *object, PyObject *name) {
    if (holds(site, Py_TYPE(object))) {
        PyObject *value = *slot_at(object, site->offset);
        if (value) return Py_NewRef(value);
    }
    return look_up(site, object, name);
}

/* Return how structs of msgspec are set that are not frozen: as slots, but that such a struct is unknown to the collector until it
   holds what the collector knows. */
static setattrofunc set_struct(void) {
    static setattrofunc known;
    if (!known) {
        PyObject *module = PyImport_ImportModule("msgspec"), *type = module ? PyObject_GetAttrString(module, "Struct") : NULL;
        known = type && PyType_Check(type) ? ((PyTypeObject *)type)->tp_setattro : PyObject_GenericSetAttr;
        PyErr_Clear();
        Py_XDECREF(module);
        Py_XDECREF(type);
    }
    return known;
}

static APART int look_up_and_set(SlotSite *site, PyObject *object, PyObject *name, PyObject *value) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *found;
    if (!in_vain(site, type)) {
        int plain = type->tp_setattro == PyObject_GenericSetAttr || type->tp_setattro == set_struct();
        unsigned int offset = plain ? slot_of(type, name, 1, &found) : 0;
        remember(site, type, offset != 0, offset);
    }
    return PyObject_SetAttr(object, name, value); /* without a value it deletes */
}

static APART int site_set(SlotSite *site, PyObject *object, PyObject *name, PyObject *value) {
    if (value && holds(site, Py_TYPE(object))) {
        PyObject **slot = slot_at(object, site->offset), *before = *slot;
        *slot = Py_NewRef(value);
        if (PyType_IS_GC(Py_TYPE(value)) && PyType_IS_GC(Py_TYPE(object)) && !PyObject_GC_IsTracked(object)) PyObject_GC_Track(object);
        Py_XDECREF(before);
        return 0;
    }
    return look_up_and_set(site, object, name, value);
}

static APART PyObject *look_up_and_call(CallSite *site, PyObject *name, PyObject *const *args, size_t count, PyObject *names) {
    PyTypeObject *type = Py_TYPE(args[0]);
    PyObject *found = NULL;
    if (!in_vain(&site->at, type)) {
        unsigned int offset = type->tp_getattro == PyObject_GenericGetAttr ? slot_of(type, name, 0, &found) : 0;
        int plain = found && PyType_HasFeature(Py_TYPE(found), Py_TPFLAGS_METHOD_DESCRIPTOR) && type->tp_dictoffset == 0;
        remember(&site->at, type, offset || plain, offset);
        site->method = plain ? found : NULL;
    }
    return PyObject_VectorcallMethod(name, args, count, names);
}

static APART PyObject *site_call(CallSite *site, PyObject *name, PyObject *const *args, size_t count, PyObject *names) {
    if (holds(&site->at, Py_TYPE(args[0]))) {
        int kept = !site->method; /* in the slot, and called without its holder */
        PyObject *callee = kept ? *slot_at(args[0], site->at.offset) : site->method;
        if (callee) {
            size_t given = (size_t)PyVectorcall_NARGS(count) - (size_t)kept;
            Py_INCREF(callee);
            PyObject *result =
                PyObject_Vectorcall(callee, args + kept, kept ? given | PY_VECTORCALL_ARGUMENTS_OFFSET : given, names);
            Py_DECREF(callee);
            return result;
        }
    }
    return look_up_and_call(site, name, args, count, names);
}

#define SITE(type, look, ...) ({ static type here; look(&here, __VA_ARGS__); })
#pragma push_macro("__Pyx_PyObject_GetAttrStr")
#pragma push_macro("__Pyx_PyObject_SetAttrStr")
#pragma push_macro("__Pyx_PyObject_FastCallMethod")
#pragma push_macro("__Pyx_Object_VectorcallMethodKwds")
#undef __Pyx_PyObject_GetAttrStr
#undef __Pyx_PyObject_SetAttrStr
#undef __Pyx_PyObject_FastCallMethod
#undef __Pyx_Object_VectorcallMethodKwds
#define __Pyx_PyObject_GetAttrStr(object, name) SITE(SlotSite, site_get, object, name)
#define __Pyx_PyObject_SetAttrStr(object, name, value) SITE(SlotSite, site_set, object, name, value)
#define __Pyx_PyObject_FastCallMethod(name, args, count) SITE(CallSite, site_call, name, args, count, NULL)
#define __Pyx_Object_VectorcallMethodKwds(name, args, count, names) SITE(CallSite, site_call, name, args, count, names)
#endif
