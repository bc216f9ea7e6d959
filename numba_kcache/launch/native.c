/* Launch kernels and call the driver in C: a fast path for the most common arguments.
 *
 * Promise     A launch made here passes the driver the same bytes as the interpreted path (`Launcher._slow`). If the type,
 *             elements, layout, device, stream or range of an argument is not recognised, the interpreted path makes the whole
 *             launch; nothing has been queued then. It alone makes error messages. The driver is called without the GIL.
 *             A launch is made here only if all its arguments are ordered by one stream: that of the launch, or, where it was
 *             given none, whichever it is. The interpreted path makes streams wait for each other.
 * Method      A `Plan` describes one kernel: slots of plain data (recognition.py). `bind` fixes shape and stream and returns a
 *             builtin function. Parameters are packed on the C stack, so launches share no state and need no lock. Types and
 *             dtypes are recognised by identity: `know` registers each after the interpreted path has accepted it.
 * Source      CUDA driver API; dlpack.h 1.3; CUDA Array Interface v3. The limited API of CPython 3.11: one build serves every
 *             later version that has a GIL. System V, AAPCS64: an integer of any width takes one register or stack slot. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef Py_LIMITED_API  /* present in all supported versions, and in the limited API since 3.12 */
extern PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
extern PyObject *PyObject_VectorcallMethod(PyObject *, PyObject *const *, size_t, PyObject *);
#endif
/* MOST_KNOWN: types and dtypes in the table. MOST_HELD: DLPack capsules of a launch. MOST_FITTING: Numba types of a slot. */
enum { MOST_BYTES = 4096, MOST_AXES = 16, MOST_KNOWN = 256, MOST_HELD = 16, MOST_PARTS = 8, MOST_FITTING = 4 };
/* Type codes in the order of `NUMPY_NAMES` in __init__.py. An element is an index into them, and a bit of `Row.accepts`. */
static const char elements[] = "b1i1i2i4i8u1u2u4u8f2f4f8c4c8bfe4e5";
static const unsigned char element_bytes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 8, 16, 2, 1, 1};
enum { F2 = 9, F4 = 10, F8 = 11, C4 = 12, C8 = 13, BF = 14, E4 = 15, E5 = 16, ELEMENTS = 17, UNKNOWN = -1 };

static int element_of(char letter, int bytes) {
    char size = (char)('0' + (letter == 'c' ? bytes / 2 : bytes));
    for (int each = 0; each < ELEMENTS; each++)
        if (elements[2 * each] == letter && elements[2 * each + 1] == size)
            return each;
    return UNKNOWN;
}

typedef struct { void *data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes;
                 int64_t *shape, *strides; uint64_t byte_offset; } DLTensor;
typedef struct { uint32_t major, minor; void *manager, *deleter; uint64_t flags; DLTensor tensor; } DLVersioned;
typedef struct { uint32_t major, minor; void *previous, *allocate, *from_object, *to_object;
                 int (*tensor_of)(void *, DLTensor *); int (*stream_of)(int, int32_t, void **); } DLExchange;
#define NAMES(X) X(_numba_type_) X(stream) X(gpu_data) X(device_ctypes_pointer) X(value) X(_view) X(context) X(shape) \
    X(strides) X(size) X(ndim) X(dtype) X(_c_contiguous) X(_f_contiguous) X(data) X(ptr) X(device_id) X(handle) X(real) X(imag) \
    X(mask) X(typestr) X(__cuda_array_interface__) X(__dlpack__) X(max_version)
#define DECLARE(name) static PyObject *n_##name;
NAMES(DECLARE)
static PyObject *n_numba_cuda, *export_names, *export_version;
/* One registered type or dtype; never removed while the program runs.
 *   what   256 plus the element for a dtype; for a type a letter: 'N' Numba's array, 'C' CuPy's array, 'T' PyTorch's tensor,
 *          'I' __cuda_array_interface__, 'D' __dlpack__, 'P' ctypes.c_void_p, 'H' buffer of cuda.core, 'w' address or unsigned
 *          integer of 64 bits, 'i' other integers, 'b' bool, 'f' float, 'c' complex, 's' bytes and structs.
 *   more   the exchange API of a tensor, or CuPy's C function for the current stream of a device.
 *   parts  callables, descriptors of attributes, or the address of a C function, in the order of the enum below for N and P, T, C; `get` is
 *          the getter of a data descriptor, which no instance can override, so it replaces the look-up of the attribute.
 *          For 'I' and 'D' a number: it has DLPack, too; it must not be written.
 * recognition.py holds the references to all of these: the garbage collector could not see references from here. */
typedef PyObject *(*Getter)(PyObject *, PyObject *, PyObject *);
typedef struct { PyObject *object; int what; void *more;
                 struct { PyObject *object; Getter get; } parts[MOST_PARTS]; } Known;
enum { VALUE = 0, HAS_DLPACK = 0, IS_IMMUTABLE = 0, IS_NEGATED = 0, IS_CONJUGATED, CURRENT_STREAM = 0, C_CONTIGUOUS, DTYPE, DATA, AXES, ITEMS, ADDRESS, DEVICE };
static Known known[MOST_KNOWN];
static int known_count, is_over;  /* is_over: the program is ending, and the interpreted path makes every launch */
static Known *known_place(PyObject *object) {
    size_t at = ((uintptr_t)object >> 4) % MOST_KNOWN;
    for (;; at = (at + 1) % MOST_KNOWN) {
        PyObject *there = __atomic_load_n(&known[at].object, __ATOMIC_ACQUIRE);
        if (!there || there == object)
            return &known[at];
    }
}

static inline int what_is(void *object, Known **place) {
    return (*place = known_place(object))->object ? __atomic_load_n(&(*place)->what, __ATOMIC_ACQUIRE) : 0;
}

static PyObject *know(PyObject *module, PyObject *args) {  /* keeps the table half empty */
    PyObject *object, *capsule, *parts, *expected = NULL;
    int what;
    if (!PyArg_ParseTuple(args, "OiOO!", &object, &what, &capsule, &PyTuple_Type, &parts))
        return NULL;
    void *more = capsule == Py_None ? NULL : PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    Known *place = known_place(object);
    bool is_new = !place->object && __atomic_add_fetch(&known_count, 1, __ATOMIC_RELAXED) < MOST_KNOWN / 2;
    if (is_new && __atomic_compare_exchange_n(&place->object, &expected, object, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        place->more = more;
        for (int each = 0; each < PyTuple_Size(parts) && each < MOST_PARTS; each++) {
            PyObject *part = place->parts[each].object = PyTuple_GetItem(parts, each);
            void *set = PyType_GetSlot(Py_TYPE(part), Py_tp_descr_set), *get = PyType_GetSlot(Py_TYPE(part), Py_tp_descr_get);
            place->parts[each].get = (Getter)(PyLong_Check(part) ? PyLong_AsVoidPtr(part) : set ? get : NULL);
        }
        __atomic_store_n(&place->what, what, __ATOMIC_RELEASE);
    }
    Py_RETURN_NONE;
}

static inline PyObject *get(const Known *type, int part, PyObject *object, PyObject *name) {  /* NULL gives NULL */
    Getter getter = type->parts[part].get;
    if (object && getter)
        return getter(type->parts[part].object, object, (PyObject *)Py_TYPE(object));
    return object ? PyObject_GetAttr(object, name) : NULL;
}

enum { IS_CONST = 1, IS_STRIDED = 2, IS_EXACT = 4, IS_PLAIN = 8, COUNTS_ITEMS = 16, WAITS_ON_HOST = 32 };
typedef struct {  /* one slot, as `_row` in recognition.py packs it */
    char kind, layout;            /* kind: 'n'umber, 'b'ytes, 'a'rray; layout: 'C', 'F' or 'A' */
    uint8_t element, flags, axes, alignment_mask;
    uint16_t offset, field_count;
    uint32_t size, accepts;       /* accepts: one bit for each accepted element; all bits (accepts + 1 is 0): any */
    struct { uint16_t offset, view_offset; } fields[40];  /* offsets in the parameters and in a `View`, in bytes */
} Row;
typedef struct {
    Row row;
    PyObject *types[MOST_FITTING + 2]; /* Numba types accepted for an array, then the only two types accepted for a number */
} Slot;
/* A kernel. `function` is its CUfunction; the words after it are the addresses of cuLaunchKernel, cuLaunchKernelEx,
 * cuCtxGetDevice (0 if the process sees one device) and cuPointerGetAttribute. */
typedef struct {
    uint64_t function, launch, configured, get_device, ask_pointer;
    int ordinal, is_alone, slot_count, bytes;  /* is_alone: the process sees one device; bytes: size of all parameters */
    Slot *slots;
} Plan;
/* Items of the `Bound` that is `self` of a launch function: those of `Launcher.plan`, then those that `bind` adds. LIVE,
 * AWAITS_NUMBA and STAYS are flags, each a list of one item; GIVEN is the stream: an object, None for that of the arguments, or
 * 0 for Numba's default one, for which the streams of Numba's arrays do not count. MODULE keeps capsules until a stream is done. */
enum { SLOW, PLAN, BY_NAME, LIVE, AWAITS_NUMBA, STAYS, CONTEXT, MODULE, FIXED, SHAPE, GIVEN, CONFIG };

typedef struct {
    Plan *plan;
    PyObject *bound, *given;      /* the tuple that is `self`, and its item GIVEN */
    void *config;                 /* CUlaunchConfig of a launch with attributes, else NULL */
    uint64_t stream, identity;    /* identity: 0 for both handles of the legacy default stream */
    unsigned extents[7];
    bool is_free, is_numbas;      /* GIVEN is None; GIVEN is 0 */
    bool is_joined, is_told;      /* these and the members below change with each call: the stream is that of an argument; a */
    int held_count;               /* DLPack exporter was told the default stream before that was known */
    PyObject *held[MOST_HELD];    /* DLPack capsules */
    Known *tensor, *cupy;         /* types of arguments of this call whose library's current stream has to be compared */
    char *buffer;
} Launch;
typedef struct {
    int64_t zero, items, item_bytes;  /* up to `steps`: words for the parameters of an exact array (recognition.py) */
    uint64_t address;
    int64_t shape[MOST_AXES], strides[MOST_AXES], steps[MOST_AXES];  /* steps: strides in items */
    int element, axes;            /* axes: UNKNOWN until read */
    char layout;                  /* 'C', 'F' or 'A' */
    bool is_readonly, is_strided;
} View;
/* Add the stream of an argument; false if that of the launch, or of the arguments before it, is another one. */
static bool joins(Launch *launch, uint64_t stream) {
    uint64_t identity = stream == 1 ? 0 : stream;
    if (launch->is_free && !launch->is_joined)
        launch->stream = launch->identity = identity, launch->is_joined = true;
    return identity == launch->identity;
}

static bool integer_of(PyObject *number, int64_t *found) {
    int overflow = 0;
    *found = number ? PyLong_AsLongLongAndOverflow(number, &overflow) : -1;
    return number && !overflow && !(*found == -1 && PyErr_Occurred());
}

/* Read an address or a stream: any object with `__int__`; None is 0. Steals the reference. */
static bool word_of(PyObject *number, uint64_t *found) {
    int overflow = 1;
    if (!number)
        return false;
    *found = PyLong_CheckExact(number) ? (uint64_t)PyLong_AsLongLongAndOverflow(number, &overflow) : 0;
    bool is_word = !overflow && (int64_t)*found >= 0;  /* true for almost every address; on a few systems the top bit is set */
    if (!is_word && number != Py_None) {
        PyObject *whole = PyFloat_Check(number) || PyUnicode_Check(number) ? PyNumber_Index(number) : PyNumber_Long(number);
        *found = whole ? PyLong_AsUnsignedLongLong(whole) : 0;
        Py_XDECREF(whole);
        is_word = !PyErr_Occurred();
    }
    Py_DECREF(number);
    return is_word || number == Py_None;
}

static bool address_of_any(PyObject *number, const Plan *plan, uint64_t *found) {  /* false for another device; steals the reference */
    int (*ask)(int *, int, uint64_t) = (int (*)(int *, int, uint64_t))(uintptr_t)plan->ask_pointer, device;
    return word_of(number, found) &&
           (plan->is_alone || !*found || ask(&device, 9 /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */, *found) || device == plan->ordinal);
}

static PyObject *of(PyObject *object, PyObject *name) {  /* an attribute; steals the reference to the object */
    PyObject *found = object ? PyObject_GetAttr(object, name) : NULL;
    Py_XDECREF(object);
    return found;
}

static bool is_it(PyObject *found, PyObject *object) {  /* steals the reference */
    Py_XDECREF(found);
    return found && found == object;
}

static bool axes_of(PyObject *tuple, int64_t *found, int *count) {  /* steals the reference to extents or strides */
    bool is_read = tuple && PyTuple_Check(tuple) && (*count = (int)PyTuple_Size(tuple)) <= MOST_AXES;
    for (int axis = 0; is_read && axis < *count; axis++)
        is_read = integer_of(PyTuple_GetItem(tuple, axis), &found[axis]);
    Py_XDECREF(tuple);
    return is_read;
}

static PyObject *item_of(PyObject *dict, PyObject *name) {  /* a new reference; NULL for None */
    PyObject *found = NULL;
#ifdef Py_GIL_DISABLED
    PyDict_GetItemRef(dict, name, &found);
#else
    found = Py_XNewRef(PyDict_GetItemWithError(dict, name));
#endif
    if (found == Py_None)
        Py_CLEAR(found);
    return found;
}

static bool is_packed(const View *view, int64_t expected, bool is_fortran) {  /* expected: size of an element */
    bool fits = true;
    for (int each = 0; each < view->axes; each++) {
        int axis = is_fortran ? each : view->axes - 1 - each;
        if (!view->shape[axis])
            return true;
        fits &= view->shape[axis] == 1 || view->strides[axis] == expected;
        expected *= view->shape[axis];
    }
    return fits;
}

/* Find the layout. An array in C order gets the strides of C order, also for extents of 1. */
static void settle_layout(View *view, int64_t item_bytes, bool has_strides) {
    bool is_c = !has_strides || is_packed(view, item_bytes, false);
    view->layout = is_c ? 'C' : is_packed(view, item_bytes, true) ? 'F' : 'A';
    for (int axis = view->axes - 1; is_c && axis >= 0; axis--, item_bytes *= view->shape[axis + 1])
        view->strides[axis] = item_bytes;
}

/* Return an attribute: from the instance's dict, which takes a third of the time, else by the usual look-up. */
static PyObject *own_of(PyObject *object, PyObject *dict, PyObject *name) {
    PyObject *found = dict ? item_of(dict, name) : NULL;
    return found ? found : PyObject_GetAttr(object, name);
}

/* Read shape (steals the reference) and strides. `item_bytes` is nonzero for an array in C order, whose strides are computed
 * from its shape; but Numba's arrays (those with a dict) keep any stride along an extent of 1, and Numba passes it on. */
static bool read_axes(View *view, PyObject *array, PyObject *dict, PyObject *shape, int64_t item_bytes) {
    int stride_count;
    bool is_read = axes_of(shape, view->shape, &view->axes), is_known = item_bytes != 0;
    for (int axis = 0; is_read && dict && axis < view->axes; axis++)
        is_known &= view->shape[axis] > 1;
    if (is_read && is_known)
        return settle_layout(view, item_bytes, false), true;
    return is_read && axes_of(own_of(array, dict, n_strides), view->strides, &stride_count) && stride_count == view->axes;
}

static bool read_tensor(View *view, const DLTensor *tensor, const Plan *plan) {  /* in memory that the device reaches */
    int code = tensor->code, bytes = tensor->bits / 8;
    /* type codes of DLPack: 4 is bfloat, 10 and 12 are fp8; devices: 2 is CUDA, 3 pinned, 13 managed memory */
    view->element = code == 4 ? BF : code == 10 ? E4 : code == 12 ? E5 : element_of(code < 7 ? "iuf??cb"[code] : '?', bytes);
    bool is_here = tensor->device_type == 2 && (plan->is_alone || tensor->device_id == plan->ordinal);
    bool is_reached = tensor->device_type == 3 || tensor->device_type == 13;
    if (!(is_here || is_reached) || tensor->ndim > MOST_AXES || tensor->lanes != 1)
        return false;
    view->address = (uintptr_t)tensor->data + tensor->byte_offset;
    view->axes = tensor->ndim;
    for (int axis = 0; axis < tensor->ndim; axis++) {
        view->shape[axis] = tensor->shape[axis];
        view->strides[axis] = tensor->strides ? tensor->strides[axis] * bytes : 0;
    }
    settle_layout(view, bytes, tensor->strides != NULL);
    return true;
}

static bool read_numba(View *view, PyObject *value, const Known *kind, const Slot *slot, Launch *launch) {
    PyObject *dict = PyObject_GenericGetDict(value, NULL), *type = own_of(value, dict, n__numba_type_), *stream;
    bool fits = false;
    uint64_t own = 0;
    for (int each = 0; type && each < MOST_FITTING; each++)
        fits |= __atomic_load_n(&slot->types[each], __ATOMIC_ACQUIRE) == type;
    Py_XDECREF(type);
    if (fits && !launch->is_numbas) {
        stream = own_of(value, dict, n_stream);
        bool is_given = stream == launch->given;
        fits = word_of(is_given ? Py_XNewRef(Py_None) : Py_XNewRef(stream), &own) && (is_given || (!own && !launch->is_free) || joins(launch, own));
        Py_XDECREF(stream);
    }
    PyObject *memory = fits ? own_of(value, dict, n_gpu_data) : NULL;
    if (memory && !launch->plan->is_alone)
        fits = is_it(of(PyObject_GetAttr(memory, n__view), n_context), PyTuple_GetItem(launch->bound, CONTEXT));
    PyObject *pointer = fits && memory ? PyObject_GenericGetAttr(memory, n_device_ctypes_pointer) : NULL;
    fits = word_of(get(kind, VALUE, pointer, n_value), &view->address);
    if (fits && slot->row.flags & IS_EXACT)
        fits = read_axes(view, value, dict, own_of(value, dict, n_shape), slot->row.layout == 'C' ? slot->row.size : 0);
    Py_XDECREF(memory), Py_XDECREF(pointer), Py_XDECREF(dict);
    return fits;
}

static bool read_cupy(View *view, PyObject *value, const Known *kind, const Row *row, const Plan *plan) {
    PyObject *dtype = row->accepts + 1 ? get(kind, DTYPE, value, n_dtype) : NULL, *data;
    Known *place;
    int what = dtype ? what_is(dtype, &place) : 0;
    uint64_t device = (uint64_t)plan->ordinal, axes = 0;
    Py_XDECREF(dtype);
    view->element = what >= 256 ? what - 256 : UNKNOWN;
    bool is_c = is_it(get(kind, C_CONTIGUOUS, value, n__c_contiguous), Py_True), is_exact = row->flags & IS_EXACT;
    view->layout = is_c ? 'C' : is_it(PyObject_GetAttr(value, n__f_contiguous), Py_True) ? 'F' : 'A';
    data = get(kind, DATA, value, n_data);
    bool is_read = plan->is_alone || (word_of(get(kind, DEVICE, data, n_device_id), &device) && device == (uint64_t)plan->ordinal);
    is_read = is_read && word_of(get(kind, ADDRESS, data, n_ptr), &view->address);
    Py_XDECREF(data);
    if (is_read && is_exact && is_c && row->axes == 1 && word_of(get(kind, AXES, value, n_ndim), &axes) && axes == 1 &&
        word_of(get(kind, ITEMS, value, n_size), (uint64_t *)view->shape))  /* cheaper than `shape`, which CuPy builds at each access */
        return view->axes = 1, settle_layout(view, row->size, false), true;
    return is_read && (!is_exact || read_axes(view, value, NULL, PyObject_GetAttr(value, n_shape), is_c ? row->size : 0));
}

/* Read a tensor through DLPack's C exchange API (PyTorch), which does not report a lazy negation or conjugation. */
static bool read_exchange(View *view, PyObject *value, const Plan *plan, const Known *type) {
    DLTensor tensor;
    if (((const DLExchange *)type->more)->tensor_of(value, &tensor) || tensor.device_type != 2 || !tensor.data ||
        !read_tensor(view, &tensor, plan))
        return false;
    bool is_complex = view->element == C4 || view->element == C8;
    bool (*is_negated)(void *) = (bool (*)(void *))type->parts[IS_NEGATED].get;  /* takes the address of the pointer to the C++ tensor */
    if (!type->parts[IS_NEGATED].object)  /* not PyTorch's: without lazy operations */
        return true;
    return (is_negated ? !is_negated((PyObject *)value + 1)
                       : is_it(PyObject_Vectorcall(type->parts[IS_NEGATED].object, &value, 1, NULL), Py_False)) &&
           (!is_complex || is_it(PyObject_Vectorcall(type->parts[IS_CONJUGATED].object, &value, 1, NULL), Py_False));
}

/* Read `__cuda_array_interface__`, which must be exactly a dict. */
static bool read_interface(View *view, PyObject *value, const Known *type, const Row *row, Launch *launch) {
    enum { MASK, TYPE, DATA, SHAPE, STRIDES, STREAM, ITEMS };
    PyObject *names[] = {n_mask, n_typestr, n_data, n_shape, n_strides, n_stream}, *item[ITEMS] = {NULL};
    PyObject *interface = PyObject_GetAttr(value, n___cuda_array_interface__);
    uint64_t producer;
    int count = UNKNOWN, bytes;
    Py_ssize_t length = 0;
    bool is_read = interface && PyDict_CheckExact(interface);
    for (int each = 0; is_read && each < ITEMS; each++)
        item[each] = item_of(interface, names[each]);
    const char *text = item[TYPE] && PyUnicode_CheckExact(item[TYPE]) ? PyUnicode_AsUTF8AndSize(item[TYPE], &length) : NULL;
    is_read = text && length >= 3 && length <= 4 && !item[MASK] && item[DATA] && PyTuple_CheckExact(item[DATA]) &&
              PyTuple_Size(item[DATA]) == 2;
    if (is_read) {
        PyObject *readonly = PyTuple_GetItem(item[DATA], 1);
        bytes = length == 3 ? text[2] - '0' : 10 * (text[2] - '0') + text[3] - '0';
        view->element = text[0] == '<' || (text[0] == '|' && bytes == 1) ? element_of(text[1], bytes) : UNKNOWN;
        view->is_readonly = readonly == Py_True, view->is_strided = item[STRIDES] != NULL;
        is_read = view->element != UNKNOWN && PyBool_Check(readonly) &&
                  address_of_any(Py_NewRef(PyTuple_GetItem(item[DATA], 0)), launch->plan, &view->address) &&
                  axes_of(Py_XNewRef(item[SHAPE]), view->shape, &view->axes) &&
                  (item[STREAM] ? !(row->flags & WAITS_ON_HOST) && word_of(Py_NewRef(item[STREAM]), &producer) && joins(launch, producer)
                                : !type->parts[HAS_DLPACK].get || PyDict_Contains(interface, n_stream)) &&
                  (!item[STRIDES] || (axes_of(Py_NewRef(item[STRIDES]), view->strides, &count) && count == view->axes));
    }
    if (is_read)
        settle_layout(view, element_bytes[view->element], item[STRIDES] != NULL);
    for (int each = 0; each < ITEMS; each++)
        Py_XDECREF(item[each]);
    Py_XDECREF(interface);
    return is_read;
}

/* Call `__dlpack__` with the stream of the launch. The capsule is not consumed, and held until the kernel has run. */
static bool read_exporter(View *view, PyObject *value, const Known *type, Launch *launch) {
    PyObject *given[] = {value, PyLong_FromUnsignedLongLong(launch->stream + !launch->stream), export_version};
    PyObject *capsule = given[1] && launch->held_count < MOST_HELD ? PyObject_VectorcallMethod(n___dlpack__, given, 1, export_names) : NULL;
    Py_XDECREF(given[1]);
    if (!capsule)
        return false;
    launch->held[launch->held_count++] = capsule;
    launch->is_told |= launch->is_free && !launch->is_joined;
    view->is_readonly = type->parts[IS_IMMUTABLE].get != NULL;
    if (PyCapsule_IsValid(capsule, "dltensor"))
        return read_tensor(view, PyCapsule_GetPointer(capsule, "dltensor"), launch->plan);
    const DLVersioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    view->is_readonly |= managed && managed->flags & 1;
    return managed && managed->major == 1 && read_tensor(view, &managed->tensor, launch->plan);
}

static bool take_array(const Slot *slot, PyObject *value, Launch *launch) {
    const Row *row = &slot->row;
    View view;  /* 430 bytes: not cleared, since most arguments use few of them */
    const Plan *plan = launch->plan;
    Known *type;
    int what = what_is(Py_TYPE(value), &type);
    bool is_exact = row->flags & IS_EXACT, is_const = row->flags & IS_CONST, is_read = false, is_described = true;
    view.element = view.axes = UNKNOWN, view.is_readonly = view.is_strided = false;
    PyObject *number = NULL;  /* an object that converts to an address */
    switch (what) {
    case 'C': is_read = read_cupy(&view, value, type, row, plan), launch->cupy = type; break;
    case 'T':
        is_read = (!launch->tensor || launch->tensor->more == type->more) && read_exchange(&view, value, plan, type);
        launch->tensor = type;
        break;
    case 'I': is_read = read_interface(&view, value, type, row, launch) && view.address; break;
    case 'D': is_read = !is_exact && read_exporter(&view, value, type, launch); break;
    case 'N': is_read = read_numba(&view, value, type, slot, launch), is_described = false; break;
    case 'P': number = get(type, VALUE, value, n_value); break;
    case 'H': number = PyObject_GetAttr(value, n_handle); break;
    case 'w': number = Py_NewRef(value); break;
    default: number = value == Py_None ? Py_NewRef(value) : NULL;
    }
    if (number)
        is_read = address_of_any(number, plan, &view.address) && !is_exact && (what != 'H' || view.address), is_described = false;
    if (!is_read || view.address & row->alignment_mask)
        return false;
    if (is_described) {
        bool fits = !(row->accepts + 1) || (view.element != UNKNOWN && row->accepts >> view.element & 1);
        fits &= is_exact ? view.is_readonly == is_const && view.axes == row->axes && !(view.is_strided && row->flags & IS_PLAIN) &&
                               (row->flags & IS_STRIDED || (row->layout == 'C') == (view.layout == 'C'))
                         : (is_const || !view.is_readonly) && (view.layout != 'A' || row->flags & IS_STRIDED);
        if (!fits)
            return false;
    }
    if (!is_exact)
        return memcpy(launch->buffer + row->offset, &view.address, 8);
    view.zero = 0, view.items = 1, view.item_bytes = row->size;
    for (int axis = 0; axis < view.axes; axis++) {
        view.items *= view.shape[axis];
        if (row->flags & COUNTS_ITEMS)
            view.steps[axis] = view.strides[axis] / view.item_bytes;
    }
    for (int each = 0; each < row->field_count; each++)
        memcpy(launch->buffer + row->fields[each].offset, (char *)&view + row->fields[each].view_offset, 8);
    return true;
}

/* Round to the nearest float of the given format, ties to even; false if the result is not finite. */
static bool small_float(double value, int exponent_bits, int mantissa_bits, uint64_t *bits) {
    int exponent, bias = (1 << (exponent_bits - 1)) - 1;
    if (!isfinite(value))
        return false;
    frexp(value, &exponent);
    exponent = value == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    uint64_t steps = (uint64_t)rint(ldexp(fabs(value), mantissa_bits - exponent));  /* in units of the last mantissa bit */
    uint64_t most = ((1u << exponent_bits) - 1) << mantissa_bits;
    if (steps >> mantissa_bits)
        steps += (uint64_t)(exponent + bias - 1) << mantissa_bits;
    *bits = steps | (uint64_t)!!signbit(value) << (exponent_bits + mantissa_bits);
    return exponent_bits == 4 ? steps < 0x7f : steps < most;
}

static bool put_real(char *at, int element, double value) {  /* false if the element cannot hold it */
    static const uint8_t exponent_and_mantissa[ELEMENTS][2] = {[F2] = {5, 10}, [BF] = {8, 7}, [E4] = {4, 3}, [E5] = {5, 2}};
    const uint8_t *bits = exponent_and_mantissa[element];
    uint64_t found;
    float narrow = (float)value;
    if (element == F8 || element == F4)
        return element == F8 ? !!memcpy(at, &value, 8) : memcpy(at, &narrow, 4) && (!isinf(narrow) || isinf(value));
    return small_float(value, bits[0], bits[1], &found) && memcpy(at, &found, element_bytes[element]);
}

static bool real_of(PyObject *number, double *found) {
    *found = number ? PyFloat_AsDouble(number) : -1;
    Py_XDECREF(number);
    return number && !(*found == -1 && PyErr_Occurred());
}

static bool take_number(const Slot *slot, PyObject *value, Launch *launch) {  /* scalars.py converts those of other types */
    int element = slot->row.element, size = element_bytes[element], half = size == 8 ? F4 : F8;
    char *at = launch->buffer + slot->row.offset, letter = elements[2 * element];
    PyObject *type = (PyObject *)Py_TYPE(value), *whole;
    Known *place;
    int kind = what_is(type, &place);
    bool is_integer = kind == 'i' || kind == 'w' || PyBool_Check(value), is_real = is_integer || kind == 'f';
    double real, imaginary = 0;
    uint64_t word;
    int64_t number;
    if (slot->types[MOST_FITTING] && type != slot->types[MOST_FITTING] && type != slot->types[MOST_FITTING + 1])
        return false;
    if (letter == 'c') {
        bool is_read = kind == 'c' ? real_of(PyObject_GetAttr(value, n_real), &real) &&
                                     real_of(PyObject_GetAttr(value, n_imag), &imaginary)
                                   : is_real && kind != 'b' && real_of(Py_NewRef(value), &real);
        return is_read && put_real(at, half, real) && put_real(at + size / 2, half, imaginary);
    }
    if (element >= F2)
        return is_real && real_of(Py_NewRef(value), &real) && put_real(at, element, real);
    if (element == 0)
        return kind == 'b' && (*at = (char)PyObject_IsTrue(value), true);
    if (letter == 'u')
        return is_integer && word_of(PyNumber_Index(value), &word) && !(word >> (8 * size - 1) >> 1) && memcpy(at, &word, size);
    whole = is_integer ? PyNumber_Index(value) : NULL;
    bool fits = integer_of(whole, &number) && number >> (8 * size - 1) == number >> 63;
    Py_XDECREF(whole);
    return fits && memcpy(at, &number, size);
}

static bool take_bytes(const Slot *slot, PyObject *value, Launch *launch) {
    Known *place;
    Py_buffer bytes;
    if (what_is(Py_TYPE(value), &place) != 's' || PyObject_GetBuffer(value, &bytes, PyBUF_SIMPLE))
        return false;
    bool fits = bytes.len == slot->row.size && memcpy(launch->buffer + slot->row.offset, bytes.buf, slot->row.size);
    PyBuffer_Release(&bytes);
    return fits;
}

#define IS_SET(flag) (PyList_GetItem(PyTuple_GetItem(launch->bound, flag), 0) == Py_True)
static bool join_current(Launch *launch) {  /* the current streams of the libraries whose arrays were seen */
    const Known *tensor = launch->tensor, *cupy = launch->cupy;
    uint64_t tensor_stream = 0, cupy_stream = 0;
    if (tensor && ((const DLExchange *)tensor->more)->stream_of(2, launch->plan->ordinal, (void **)&tensor_stream))
        return false;
    if (cupy && cupy->more)
        cupy_stream = (uint64_t)((intptr_t (*)(int))cupy->more)(launch->plan->ordinal);
    else if (cupy && !word_of(of(PyObject_CallNoArgs(cupy->parts[CURRENT_STREAM].object), n_ptr), &cupy_stream))
        return false;
    return (!tensor || joins(launch, tensor_stream)) && (!cupy || joins(launch, cupy_stream));
}

typedef int (*DriverFunction)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
static int try_launch(Launch *launch, PyObject *const *args, Py_ssize_t count) {  /* -1: the interpreted path has to launch */
    Plan *plan = launch->plan;
    int here, code;
    /* the module was unloaded, Numba was imported after it was loaded, or another device is current */
    if (!IS_SET(LIVE) || (IS_SET(AWAITS_NUMBA) && PyDict_Contains(PyImport_GetModuleDict(), n_numba_cuda)) ||
        (plan->get_device && (((int (*)(int *))(uintptr_t)plan->get_device)(&here) || here != plan->ordinal)))
        return -1;
    for (Py_ssize_t each = 0; each < count; each++) {
        const Slot *slot = &plan->slots[each];
        if (!(slot->row.kind == 'a' ? take_array : slot->row.kind == 'n' ? take_number : take_bytes)(slot, args[each], launch))
            return -1;
    }
    if (((launch->tensor || launch->cupy) && !join_current(launch)) || (launch->is_told && launch->identity) ||
        (launch->identity && !IS_SET(STAYS) && PyList_SetItem(PyTuple_GetItem(launch->bound, STAYS), 0, Py_NewRef(Py_True))))
        return -1;
    const unsigned *to = launch->extents;
    size_t size = plan->bytes;
    enum { CONFIG_STREAM = 32, CONFIG_BYTES = 56 };  /* of a CUlaunchConfig */
    enum { END, BUFFER_POINTER, BUFFER_SIZE };  /* CU_LAUNCH_PARAM_...: one buffer is faster than a pointer per parameter */
    uintptr_t packed[] = {BUFFER_POINTER, (uintptr_t)launch->buffer, BUFFER_SIZE, (uintptr_t)&size, END}, extra = (uintptr_t)packed;
    char config[CONFIG_BYTES];
    if (launch->config) {
        memcpy(config, launch->config, CONFIG_BYTES);
        memcpy(config + CONFIG_STREAM, &launch->stream, sizeof launch->stream);
    }
    Py_BEGIN_ALLOW_THREADS
    code = launch->config ? ((DriverFunction)plan->configured)((uintptr_t)config, plan->function, 0, extra, 0, 0, 0, 0, 0, 0, 0)
        : ((DriverFunction)plan->launch)(plan->function, to[0], to[1], to[2], to[3], to[4], to[5], to[6], launch->stream, 0, extra);
    Py_END_ALLOW_THREADS
    return code;
}

static PyObject *launch_call(PyObject *bound, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Launch launch;
    uint64_t buffer[MOST_BYTES / 8];
    memcpy(&launch, PyBytes_AsString(PyTuple_GetItem(bound, FIXED)), sizeof launch);
    launch.bound = bound, launch.buffer = (char *)buffer;
    bool is_known = !names && !is_over && __atomic_load_n(&launch.plan->slot_count, __ATOMIC_ACQUIRE) == count;
    int code = is_known ? try_launch(&launch, args, count) : -1;
    PyObject *kept = !code && launch.held_count ? PyTuple_New(launch.held_count) : NULL;
    while (launch.held_count)
        if (kept)
            launch.held_count--, PyTuple_SetItem(kept, launch.held_count, launch.held[launch.held_count]);
        else
            Py_XDECREF(launch.held[--launch.held_count]);
    if (kept)
        return PyObject_CallMethod(PyTuple_GetItem(bound, MODULE), "hold_for", "KN", launch.stream, kept);
    if (!code)
        Py_RETURN_NONE;
    if (PyErr_Occurred()) {  /* the interpreted path reports it, if it occurs there too; KeyboardInterrupt and SystemExit are raised */
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyErr_Clear();
    }
    count += names ? PyTuple_Size(names) : 0;  /* values of keyword arguments come last */
    PyObject *given = PyTuple_New(count);
    for (Py_ssize_t each = 0; given && each < count; each++)
        PyTuple_SetItem(given, each, Py_NewRef(args[each]));
    return !given ? NULL : PyObject_CallFunction(PyTuple_GetItem(bound, names ? BY_NAME : SLOW), names ? "NiOKOO" : "NiOKO",
        given, code < 0 ? 0 : code, PyTuple_GetItem(bound, SHAPE), launch.is_free ? 0 : launch.stream, launch.given, names);
}
static PyMethodDef launch_method = {"launch", (PyCFunction)(void (*)(void))launch_call, METH_FASTCALL | METH_KEYWORDS, NULL};

static PyObject *end(PyObject *module, PyObject *nothing) {  /* called at exit, before recognition.py releases the types */
    is_over = 1;
    Py_RETURN_NONE;
}

static void free_plan(PyObject *capsule) {
    Plan *plan = PyCapsule_GetPointer(capsule, "plan");
    PyMem_Free(plan->slots);
    PyMem_Free(plan);
}

/* Make a plan from the bytes of the members before `slot_count`; slots are copied from a second plan, if it has any. */
static PyObject *make_plan(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    const Plan *like = count == 2 && args[1] != Py_None ? PyCapsule_GetPointer(args[1], "plan") : NULL;
    Plan *plan = PyMem_Calloc(1, sizeof *plan);
    int known_slots = like ? __atomic_load_n(&like->slot_count, __ATOMIC_ACQUIRE) : UNKNOWN;
    if (!plan)
        return PyErr_NoMemory();
    memcpy(plan, PyBytes_AsString(args[0]), offsetof(Plan, slot_count));
    plan->slots = known_slots >= 0 ? PyMem_Calloc(known_slots + 1, sizeof(Slot)) : NULL;
    plan->slot_count = plan->slots ? known_slots : UNKNOWN;
    if (plan->slots)
        plan->bytes = like->bytes, memcpy(plan->slots, like->slots, known_slots * sizeof(Slot));
    return PyCapsule_New(plan, "plan", free_plan);
}

/* Set the slots of a plan and the size of its parameters; until then the interpreted path makes every launch. */
static PyObject *fill(PyObject *module, PyObject *args) {
    PyObject *capsule, *types;
    const char *rows;
    Py_ssize_t size;
    int bytes;
    if (!PyArg_ParseTuple(args, "Oy#O!i", &capsule, &rows, &size, &PyTuple_Type, &types, &bytes))
        return NULL;
    Plan *plan = PyCapsule_GetPointer(capsule, "plan");
    Py_ssize_t count = size / (Py_ssize_t)sizeof(Row);
    Slot *slots = PyMem_Calloc(count + 1, sizeof(Slot)), *expected = NULL;
    if (!plan || !slots || PyTuple_Size(types) != 2 * count)
        return PyErr_NoMemory();
    for (Py_ssize_t each = 0; each < count; each++) {
        memcpy(&slots[each].row, rows + each * sizeof(Row), sizeof(Row));
        for (int which = 0; which < 2 && PyTuple_GetItem(types, 2 * each) != Py_None; which++)
            slots[each].types[MOST_FITTING + which] = PyTuple_GetItem(types, 2 * each + which);
    }
    plan->bytes = bytes;
    if (__atomic_compare_exchange_n(&plan->slots, &expected, slots, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        __atomic_store_n(&plan->slot_count, (int)count, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

static PyObject *bind(PyObject *module, PyObject *args) {
    Launch launch = {0};
    unsigned *to = launch.extents;
    PyObject *kernel, *shape, *config;
    if (!PyArg_ParseTuple(args, "O!OKOO", &PyTuple_Type, &kernel, &shape, &launch.stream, &launch.given, &config) ||
        !PyArg_ParseTuple(shape, "(III)(III)I", &to[0], &to[1], &to[2], &to[3], &to[4], &to[5], &to[6]))
        return NULL;
    launch.plan = PyCapsule_GetPointer(PyTuple_GetItem(kernel, PLAN), "plan");
    launch.identity = launch.stream == 1 ? 0 : launch.stream;
    launch.is_free = launch.given == Py_None;
    launch.is_numbas = PyLong_CheckExact(launch.given) && !PyObject_IsTrue(launch.given);
    launch.config = config == Py_None ? NULL : PyBytes_AsString(config);
    PyObject *added = Py_BuildValue("(y#OOO)", &launch, (Py_ssize_t)sizeof launch, shape, launch.given, config);
    PyObject *type = (PyObject *)Py_TYPE(kernel);
    PyObject *bound = launch.plan && added ? PyObject_CallFunction(type, "(N)", PySequence_Concat(kernel, added)) : NULL;
    PyObject *function = bound ? PyCFunction_NewEx(&launch_method, bound, NULL) : NULL;
    Py_XDECREF(added), Py_XDECREF(bound);
    return function;
}

static PyObject *fits(PyObject *module, PyObject *args) {  /* adds a Numba type to a slot, which takes up to four */
    int position, each = 0;
    PyObject *capsule, *type, *there = Py_None;
    if (!PyArg_ParseTuple(args, "OiO", &capsule, &position, &type))
        return NULL;
    Plan *plan = PyCapsule_GetPointer(capsule, "plan");
    for (; there && there != type && position < plan->slot_count && each < MOST_FITTING; each++) {
        there = NULL;
        __atomic_compare_exchange_n(&plan->slots[position].types[each], &there, type, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    Py_RETURN_NONE;
}

typedef struct { uint64_t address; int outs; char pattern[16]; } Function;  /* a driver function, and its number of outputs */

/* Call a driver function with its inputs; return the CUresult and the outputs, typed by the letters of `_PATTERNS` in devices.py. */
static PyObject *function_call(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const Function *function = PyCapsule_GetPointer(self, "function");
    uint64_t words[16] = {0}, in[16] = {0};
    int given = 0, status;
    for (int each = 0; function->pattern[each]; each++) {
        char letter = function->pattern[each];
        PyObject *value = (letter == 'i' || letter == 'x') && given < count ? args[given++] : NULL;
        if (value && PyBytes_CheckExact(value))
            words[each] = (uintptr_t)PyBytes_AsString(value);
        else if (value && !word_of(Py_NewRef(value), &words[each]))
            return NULL;
        in[each] = letter == 'i' ? words[each] : (uintptr_t)&words[each];
    }
    Py_BEGIN_ALLOW_THREADS
    status = ((DriverFunction)(uintptr_t)function->address)(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], in[8], in[9], in[10]);
    Py_END_ALLOW_THREADS
    PyObject *answer = PyTuple_New(1 + function->outs);
    PyTuple_SetItem(answer, 0, PyLong_FromLong(status));
    for (int each = 0, out = 0; function->pattern[each]; each++) {
        char letter = function->pattern[each], *text = (char *)(uintptr_t)words[each];
        if (letter != 'i')
            PyTuple_SetItem(answer, ++out, letter == 'w' ? PyLong_FromUnsignedLongLong(words[each])
                : letter == 't' ? PyUnicode_FromString(text ? text : "") : PyLong_FromLong((int32_t)words[each]));
    }
    return answer;
}
static PyMethodDef function_method = {"function", (PyCFunction)(void (*)(void))function_call, METH_FASTCALL, NULL};

/* Return a Python function that calls a driver function, and the latter's address; None if the driver lacks it or is missing. */
static PyObject *make_function(PyObject *module, PyObject *args) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    const char *name, *pattern;
    if (!PyArg_ParseTuple(args, "ss", &name, &pattern))
        return NULL;
    void *address = library ? dlsym(library, name) : NULL;
    Function *function = address ? PyMem_Calloc(1, sizeof *function) : NULL;  /* never freed */
    if (!function)
        Py_RETURN_NONE;
    function->address = (uintptr_t)address;
    for (int each = 0; each < 15 && (function->pattern[each] = pattern[each]); each++)
        function->outs += pattern[each] != 'i';
    PyObject *capsule = PyCapsule_New(function, "function", NULL);
    return capsule ? Py_BuildValue("NK", PyCFunction_NewEx(&function_method, capsule, NULL), function->address) : NULL;
}

static PyObject *address_of(PyObject *module, PyObject *object) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE))
        return NULL;
    PyBuffer_Release(&buffer);  /* only the address is needed */
    return PyLong_FromVoidPtr(buffer.buf);
}

PyObject *observe(PyObject *, PyObject *), *begin_watch(PyObject *, PyObject *), *end_watch(PyObject *, PyObject *);  /* observe.c */
PyObject *leave_out(PyObject *, PyObject *);

static PyMethodDef methods[] = {
    {"observe", observe, METH_O, NULL}, {"watch", begin_watch, METH_O, NULL}, {"unwatch", end_watch, METH_NOARGS, NULL},
    {"leave_out", leave_out, METH_O, NULL},
    {"know", know, METH_VARARGS, NULL}, {"plan", (PyCFunction)(void (*)(void))make_plan, METH_FASTCALL, NULL}, {"fill", fill, METH_VARARGS, NULL},
    {"bind", bind, METH_VARARGS, NULL}, {"fits", fits, METH_VARARGS, NULL}, {"function", make_function, METH_VARARGS, NULL},
    {"address_of", address_of, METH_O, NULL}, {"end", end, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void) {
    PyObject *module = PyModule_Create(&definition);
#define INTERN(name) n_##name = PyUnicode_InternFromString(#name);
    NAMES(INTERN)
    n_numba_cuda = PyUnicode_InternFromString("numba.cuda.core.config");
    export_names = Py_BuildValue("(OO)", n_stream, n_max_version), export_version = Py_BuildValue("(ii)", 1, 0);
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
