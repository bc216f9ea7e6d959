/* The part of CPython's limited API, version 3.11, that this package uses: for builds where Python's headers are missing.
 *
 * Promise     Each name has the type and the value that Python's own headers give it, in every CPython from 3.11 on that
 *             has a GIL. tests/unit/test_native_build.py compiles the two together, and the package against this one.
 * Source      "Python/C API Reference Manual" with "Stable Application Binary Interface", and Misc/stable_abi.toml.
 */
#ifndef Py_PYTHON_H /* defined where Python's own header came first: then only the functions are declared, and compared */
#define Py_PYTHON_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PyAPI_FUNC(type) extern type
#define PyAPI_DATA(type) extern type
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *

typedef ssize_t Py_ssize_t;
typedef struct _typeobject PyTypeObject;
typedef struct _object {
    Py_ssize_t ob_refcnt;
    PyTypeObject *ob_type;
} PyObject;

typedef void (*freefunc)(void *);
typedef int (*inquiry)(PyObject *);
typedef int (*visitproc)(PyObject *, void *);
typedef int (*traverseproc)(PyObject *, visitproc, void *);
typedef void (*PyCapsule_Destructor)(PyObject *);
typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);

typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
enum { METH_VARARGS = 1, METH_KEYWORDS = 2, METH_NOARGS = 4, METH_O = 8, METH_FASTCALL = 128 };

typedef struct PyModuleDef_Slot PyModuleDef_Slot;
typedef struct PyModuleDef_Base {
    PyObject ob_base;
    PyObject *(*m_init)(void);
    Py_ssize_t m_index;
    PyObject *m_copy;
} PyModuleDef_Base;
typedef struct PyModuleDef {
    PyModuleDef_Base m_base;
    const char *m_name, *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    PyModuleDef_Slot *m_slots;
    traverseproc m_traverse;
    inquiry m_clear;
    freefunc m_free;
} PyModuleDef;
#define PyModuleDef_HEAD_INIT {{1, NULL}, NULL, 0, NULL}

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;
enum { PyBUF_SIMPLE = 0 };

enum { Py_tp_descr_get = 54, Py_tp_descr_set = 55 };
#define PYTHON_API_VERSION 1013
#define PYTHON_ABI_VERSION 3

/* Functions that have another name in the library: sizes of `#` in a format are Py_ssize_t. */
#define PyArg_ParseTuple _PyArg_ParseTuple_SizeT
#define Py_BuildValue _Py_BuildValue_SizeT
#define PyObject_CallFunction _PyObject_CallFunction_SizeT
#define PyObject_CallMethod _PyObject_CallMethod_SizeT
#define PyModule_Create(definition) PyModule_Create2(definition, PYTHON_ABI_VERSION)
#define PyCFunction_NewEx(method, self, module) PyCMethod_New(method, self, module, NULL)

extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
#define Py_None (&_Py_NoneStruct)
#define Py_True (&_Py_TrueStruct)
#define Py_False (&_Py_FalseStruct)
#define Py_RETURN_NONE return Py_NewRef(Py_None)

#define Py_TYPE(object) (((PyObject *)(object))->ob_type)
#define Py_DECREF(object) Py_DecRef((PyObject *)(object))
#define Py_XDECREF(object) Py_DecRef((PyObject *)(object)) /* takes NULL, too */
#define Py_NewRef(object) Py_XNewRef((PyObject *)(object))
#define Py_CLEAR(object) do { PyObject *old_ = (PyObject *)(object); (object) = NULL; Py_DecRef(old_); } while (0)
#define Py_BEGIN_ALLOW_THREADS { PyThreadState *saved_ = PyEval_SaveThread();
#define Py_END_ALLOW_THREADS PyEval_RestoreThread(saved_); }
typedef struct _ts PyThreadState;

/* Bits of a type's flags: it derives from the builtin one. */
enum { DERIVES_FROM_LONG = 24, DERIVES_FROM_TUPLE = 26, DERIVES_FROM_STR = 28 };
#define DERIVES_(object, bit) ((PyType_GetFlags(Py_TYPE(object)) >> (bit) & 1) != 0)
#define PyLong_Check(object) DERIVES_(object, DERIVES_FROM_LONG)
#define PyTuple_Check(object) DERIVES_(object, DERIVES_FROM_TUPLE)
#define PyUnicode_Check(object) DERIVES_(object, DERIVES_FROM_STR)
#define PyLong_CheckExact(object) (Py_TYPE(object) == &PyLong_Type)
#define PyTuple_CheckExact(object) (Py_TYPE(object) == &PyTuple_Type)
#define PyUnicode_CheckExact(object) (Py_TYPE(object) == &PyUnicode_Type)
#define PyBytes_CheckExact(object) (Py_TYPE(object) == &PyBytes_Type)
#define PyDict_CheckExact(object) (Py_TYPE(object) == &PyDict_Type)
#define PyBool_Check(object) (Py_TYPE(object) == &PyBool_Type)
#define PyFloat_Check(object) (Py_TYPE(object) == &PyFloat_Type || PyType_IsSubtype(Py_TYPE(object), &PyFloat_Type))

extern PyTypeObject PyBool_Type, PyBytes_Type, PyDict_Type, PyFloat_Type, PyLong_Type, PyTuple_Type, PyUnicode_Type;
extern PyObject *PyExc_Exception, *PyExc_RuntimeError;

void Py_DecRef(PyObject *);
void Py_IncRef(PyObject *);
static inline PyObject *Py_XNewRef(PyObject *object) {
    Py_IncRef(object);
    return object;
}
#endif

int _PyArg_ParseTuple_SizeT(PyObject *, const char *, ...);
PyObject *_Py_BuildValue_SizeT(const char *, ...);
PyObject *_PyObject_CallFunction_SizeT(PyObject *, const char *, ...);
PyObject *_PyObject_CallMethod_SizeT(PyObject *, const char *, const char *, ...);
PyObject *PyModule_Create2(PyModuleDef *, int);
PyObject *PyCMethod_New(PyMethodDef *, PyObject *, PyObject *, PyTypeObject *);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
PyObject *PyImport_GetModuleDict(void);
void *PyMem_Calloc(size_t, size_t);
void PyMem_Free(void *);

PyObject *PyErr_Occurred(void);
PyObject *PyErr_NoMemory(void);
int PyErr_ExceptionMatches(PyObject *);
void PyErr_Clear(void);
void PyErr_SetString(PyObject *, const char *);

void *PyType_GetSlot(PyTypeObject *, int);
unsigned long PyType_GetFlags(PyTypeObject *);
int PyType_IsSubtype(PyTypeObject *, PyTypeObject *);

PyObject *PyObject_CallNoArgs(PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyObject_GenericGetAttr(PyObject *, PyObject *);
PyObject *PyObject_GenericGetDict(PyObject *, void *);
int PyObject_IsTrue(PyObject *);
int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
void PyBuffer_Release(Py_buffer *);

PyObject *PyCapsule_New(void *, const char *, PyCapsule_Destructor);
void *PyCapsule_GetPointer(PyObject *, const char *);
const char *PyCapsule_GetName(PyObject *);
int PyCapsule_IsValid(PyObject *, const char *);

PyObject *PyLong_FromLong(long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
PyObject *PyLong_FromVoidPtr(void *);
void *PyLong_AsVoidPtr(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
long long PyLong_AsLongLongAndOverflow(PyObject *, int *);
PyObject *PyNumber_Index(PyObject *);
PyObject *PyNumber_Long(PyObject *);
double PyFloat_AsDouble(PyObject *);

PyObject *PyTuple_New(Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
int PyList_Append(PyObject *, PyObject *);
PyObject *PyList_New(Py_ssize_t);
int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyObject *PySequence_Concat(PyObject *, PyObject *);
PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
int PyDict_Contains(PyObject *, PyObject *);

Py_ssize_t PyBytes_Size(PyObject *);
char *PyBytes_AsString(PyObject *);
PyObject *PyUnicode_FromString(const char *);
PyObject *PyUnicode_InternFromString(const char *);
const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
