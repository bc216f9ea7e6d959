/* Launches and driver calls in C: what the interpreted path does, for the commonest arguments, without its cost.
 *
 * Promise     A launch made here hands the driver the bytes that the interpreted path would. What is not of an exact type,
 *             element type, layout, device, stream and range that is known here is handed to `slow` before anything is
 *             queued: no error is worded here. The driver is called without the GIL.
 * Method      A `Plan` is one kernel: slots of plain data (`recognition`). `bind` fixes shape and stream, and gives a builtin
 *             function. Parameters are packed on the C stack: nothing is shared, nothing is locked. Types and dtypes are
 *             known by identity: Python names each (`know`) when the interpreted path has met it.
 * Ground      CUDA driver API; dlpack.h 1.3; CUDA Array Interface v3. The limited API of CPython 3.11: one build serves every
 *             later version that has a GIL. System V, AAPCS64: integers of any width go in the same registers and slots. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MOST_BYTES = 4096, MOST_PARAMETERS = 256, MOST_AXES = 16, MOST_KNOWN = 256, MOST_HELD = 16, FITTING = 4 };

/* In the order of `arguments.NUMPY_NAMES`: an element is a bit of `accepts`. */
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
    X(strides) X(dtype) X(_c_contiguous) X(_f_contiguous) X(data) X(ptr) X(device_id) X(handle) X(real) X(imag) \
    X(mask) X(typestr) X(__cuda_array_interface__) X(__dlpack__) X(max_version)
#define DECLARE(name) static PyObject *n_##name;
NAMES(DECLARE)
static PyObject *n_devices;

/* What an object is: a letter for a type, 256 and its element for a dtype; never forgotten. `more`: the exchange API of a
 * tensor, CuPy's C function for its current stream; `first`, `second`: callables of the type's library. */
typedef struct { PyObject *object; int what; void *more; PyObject *first, *second; } Known;
static Known known[MOST_KNOWN];
static int known_count;

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

static PyObject *know(PyObject *module, PyObject *args) {
    PyObject *object, *capsule = Py_None, *first = NULL, *second = NULL, *nobody = NULL;
    int what;
    if (!PyArg_ParseTuple(args, "Oi|OOO", &object, &what, &capsule, &first, &second))
        return NULL;
    void *more = capsule == Py_None ? NULL : PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    Known *place = known_place(object);
    bool is_new = !place->object && __atomic_add_fetch(&known_count, 1, __ATOMIC_RELAXED) < MOST_KNOWN / 2;
    if (is_new && __atomic_compare_exchange_n(&place->object, &nobody, object, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        Py_INCREF(object), Py_XINCREF(first), Py_XINCREF(second), Py_INCREF(capsule);
        place->more = more, place->first = first, place->second = second;
        __atomic_store_n(&place->what, what, __ATOMIC_RELEASE);
    }
    return PyBool_FromLong(what_is(object, &place) == what);
}

enum { IS_CONST = 1, IS_STRIDED = 2, IS_EXACT = 4, IS_PLAIN = 8 };  /* exact: of one layout and number of axes */

/* As `recognition` packs it. */
typedef struct {
    char kind, layout;            /* 'n'umber, 'b'ytes, 'a'rray; 'C', 'A' or 'F' where the array is exact */
    uint8_t element, flags, axes, alignment_mask;
    uint16_t offset, size, field_count;
    uint32_t accepts;             /* elements that fit, a bit each; all bits: whatever it is */
    struct { uint16_t offset; char what; uint8_t axis; } fields[40];
} Row;

typedef struct {
    Row row;
    PyObject *types[FITTING + 2]; /* Numba's that fit an array; behind them the only ones that fit a number */
} Slot;

typedef struct {
    uint64_t function, launch, configured, get_device, is_capturing;
    int ordinal, is_alone, slot_count, parameter_count;
    uint16_t offsets[MOST_PARAMETERS];
    Slot *slots;
} Plan;

/* What a launch is bound to: the items of the tuple that is `self` of its function. The flags are lists of one. */
enum { PLAN, SLOW, BY_NAME, LIVE, AWAITS_NUMBA, STAYS, CONTEXT, SHAPE, GIVEN, CONFIG };

typedef struct {
    Plan *plan;
    PyObject *bound, *given, *context;
    uint64_t stream, identity;    /* identity: 0 for either name of the legacy default stream */
    unsigned extents[7];
    int held_count;               /* from here on, of one call */
    PyObject *held[MOST_HELD];
    Known *tensor, *cupy;         /* seen: its current stream is to be that of the launch */
    char *buffer;
} Launch;

typedef struct {
    uint64_t address;
    int element, axes;            /* axes: UNKNOWN until read */
    char layout;                  /* 'C', 'F' or 'A' */
    bool is_readonly, is_strided;
    int64_t shape[MOST_AXES], strides[MOST_AXES];
} View;

static bool integer_of(PyObject *number, int64_t *found) {
    int overflow = 0;
    *found = number ? PyLong_AsLongLongAndOverflow(number, &overflow) : -1;
    return number && !overflow && !(*found == -1 && PyErr_Occurred());
}

/* An address, or a stream: whatever has `__int__`, and None for 0. The reference is taken over. */
static bool word_of(PyObject *number, uint64_t *found) {
    if (!number)
        return false;
    PyObject *whole = number == Py_None ? PyLong_FromLong(0) : PyLong_Check(number) ? Py_NewRef(number) : PyNumber_Long(number);
    *found = whole ? PyLong_AsUnsignedLongLong(whole) : 0;
    Py_XDECREF(whole);
    Py_DECREF(number);
    return !PyErr_Occurred();
}

/* What an attribute of an attribute is; a new reference, or NULL. */
static PyObject *part(PyObject *object, int count, ...) {
    va_list names;
    va_start(names, count);
    PyObject *found = Py_NewRef(object);
    while (found && count--) {
        PyObject *next = PyObject_GetAttr(found, va_arg(names, PyObject *));
        Py_DECREF(found);
        found = next;
    }
    va_end(names);
    return found;
}

/* Whether a new reference is to this object; it is given up. */
static bool is_it(PyObject *found, PyObject *object) {
    Py_XDECREF(found);
    return found && found == object;
}

/* Extents or strides; the reference is taken over. */
static bool axes_of(PyObject *tuple, int64_t *found, int *count) {
    bool is_read = tuple && PyTuple_Check(tuple) && (*count = (int)PyTuple_Size(tuple)) <= MOST_AXES;
    for (int axis = 0; is_read && axis < *count; axis++)
        is_read = integer_of(PyTuple_GetItem(tuple, axis), &found[axis]);
    Py_XDECREF(tuple);
    return is_read;
}

static bool lies_as_said(View *view, PyObject *array) {
    int same;
    return axes_of(PyObject_GetAttr(array, n_shape), view->shape, &view->axes) &&
           axes_of(PyObject_GetAttr(array, n_strides), view->strides, &same) && same == view->axes;
}

static PyObject *item_of(PyObject *dict, PyObject *name) {
#ifdef Py_GIL_DISABLED
    PyObject *found;
    return PyDict_GetItemRef(dict, name, &found) > 0 ? found : NULL;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, name));
#endif
}

static bool is_packed(const View *view, int64_t expected, bool is_fortran) {
    bool is_so = true;
    for (int each = 0; each < view->axes; each++) {
        int axis = is_fortran ? each : view->axes - 1 - each;
        is_so &= view->shape[axis] == 1 || view->strides[axis] == expected;
        expected *= view->shape[axis];
    }
    return is_so;
}

/* Finds the layout; what lies in C order gets the strides that it has by right. */
static void settle_layout(View *view, int64_t item_bytes, bool has_strides) {
    bool is_empty = false;
    for (int axis = 0; axis < view->axes; axis++)
        is_empty |= !view->shape[axis];
    bool is_c = !has_strides || is_empty || is_packed(view, item_bytes, false);
    view->layout = is_c ? 'C' : is_packed(view, item_bytes, true) ? 'F' : 'A';
    for (int axis = view->axes - 1; is_c && axis >= 0; axis--, item_bytes *= view->shape[axis + 1])
        view->strides[axis] = item_bytes;
}

static bool read_tensor(View *view, const DLTensor *tensor, const Plan *plan) {
    int code = tensor->code, bytes = tensor->bits / 8;
    view->element = code == 4 ? BF : code == 10 ? E4 : code == 12 ? E5 : element_of(code < 7 ? "iuf??cb"[code] : '?', bytes);
    bool is_here = tensor->device_type == 2 && (plan->is_alone || tensor->device_id == plan->ordinal);
    bool is_reached = tensor->device_type == 3 || tensor->device_type == 13;  /* pinned, managed */
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

/* Numba's device array: the type that it keeps says element, axes and layout at once. */
static bool read_numba(View *view, PyObject *value, const Slot *slot, const Launch *launch) {
    PyObject *type = PyObject_GetAttr(value, n__numba_type_), *stream;
    bool fits = false;
    for (int each = 0; type && each < FITTING; each++)
        fits |= __atomic_load_n(&slot->types[each], __ATOMIC_ACQUIRE) == type;
    Py_XDECREF(type);
    if (fits && !(slot->row.flags & IS_EXACT)) {  /* Numba's own kernels heed no stream of an array */
        stream = PyObject_GetAttr(value, n_stream);
        fits = stream && (stream == launch->given || (PyLong_CheckExact(stream) && !PyObject_IsTrue(stream)));
        Py_XDECREF(stream);
    }
    if (fits && !launch->plan->is_alone)
        fits = is_it(part(value, 3, n_gpu_data, n__view, n_context), launch->context);
    fits = fits && word_of(part(value, 3, n_gpu_data, n_device_ctypes_pointer, n_value), &view->address);
    return fits && (!(slot->row.flags & IS_EXACT) || lies_as_said(view, value));
}

static bool read_cupy(View *view, PyObject *value, const Slot *slot, const Plan *plan) {
    PyObject *dtype = slot->row.accepts + 1 ? PyObject_GetAttr(value, n_dtype) : NULL;
    Known *place;
    int what = dtype ? what_is(dtype, &place) : 0;
    uint64_t device = (uint64_t)plan->ordinal;
    Py_XDECREF(dtype);
    view->element = what >= 256 ? what - 256 : UNKNOWN;
    bool is_c = is_it(PyObject_GetAttr(value, n__c_contiguous), Py_True);
    view->layout = is_c ? 'C' : is_it(PyObject_GetAttr(value, n__f_contiguous), Py_True) ? 'F' : 'A';
    if (!plan->is_alone && (!word_of(part(value, 2, n_data, n_device_id), &device) || device != (uint64_t)plan->ordinal))
        return false;
    if (!word_of(part(value, 2, n_data, n_ptr), &view->address))
        return false;
    if (!(slot->row.flags & IS_EXACT))
        return true;
    bool is_read = lies_as_said(view, value);
    if (is_read && is_c)
        settle_layout(view, slot->row.size, false);
    return is_read;
}

/* A type with DLPack's C exchange API, PyTorch's tensors, which does not tell those that are negated on paper only. */
static bool read_exchange(View *view, PyObject *value, const Plan *plan, const Known *type) {
    DLTensor tensor;
    if (((const DLExchange *)type->more)->tensor_of(value, &tensor) || tensor.device_type != 2 || !read_tensor(view, &tensor, plan))
        return false;
    bool is_complex = view->element == C4 || view->element == C8;
    return is_it(PyObject_CallFunctionObjArgs(type->first, value, NULL), Py_False) &&
           (!is_complex || is_it(PyObject_CallFunctionObjArgs(type->second, value, NULL), Py_False));
}

/* `__cuda_array_interface__`, the dictionary that it is. */
static bool read_interface(View *view, PyObject *value, const Launch *launch) {
    enum { MASK, TYPE, DATA, SHAPE, STRIDES, STREAM, ITEMS };
    PyObject *names[] = {n_mask, n_typestr, n_data, n_shape, n_strides, n_stream}, *item[ITEMS] = {NULL};
    PyObject *interface = launch->plan->is_alone ? PyObject_GetAttr(value, n___cuda_array_interface__) : NULL;
    uint64_t producer = launch->identity;
    int same = UNKNOWN, bytes;
    Py_ssize_t length = 0;
    bool is_read = interface && PyDict_CheckExact(interface);
    for (int each = 0; is_read && each < ITEMS; each++) {
        item[each] = item_of(interface, names[each]);
        if (is_it(Py_XNewRef(item[each]), Py_None))
            Py_CLEAR(item[each]);
    }
    const char *text = item[TYPE] && PyUnicode_CheckExact(item[TYPE]) ? PyUnicode_AsUTF8AndSize(item[TYPE], &length) : NULL;
    is_read = text && length >= 3 && length <= 4 && !item[MASK] && item[DATA] && PyTuple_CheckExact(item[DATA]) &&
              PyTuple_Size(item[DATA]) == 2;
    if (is_read) {
        PyObject *readonly = PyTuple_GetItem(item[DATA], 1);
        bytes = length == 3 ? text[2] - '0' : 10 * (text[2] - '0') + text[3] - '0';
        view->element = text[0] == '<' || (text[0] == '|' && bytes == 1) ? element_of(text[1], bytes) : UNKNOWN;
        view->is_readonly = readonly == Py_True, view->is_strided = item[STRIDES] != NULL;
        is_read = view->element != UNKNOWN && PyBool_Check(readonly) &&
                  word_of(Py_NewRef(PyTuple_GetItem(item[DATA], 0)), &view->address) &&
                  axes_of(Py_XNewRef(item[SHAPE]), view->shape, &view->axes) &&
                  (!item[STREAM] || word_of(Py_NewRef(item[STREAM]), &producer)) &&
                  (!item[STRIDES] || (axes_of(Py_NewRef(item[STRIDES]), view->strides, &same) && same == view->axes));
    }
    if (is_read)
        settle_layout(view, element_bytes[view->element], item[STRIDES] != NULL);
    for (int each = 0; each < ITEMS; each++)
        Py_XDECREF(item[each]);
    Py_XDECREF(interface);
    return is_read && (producer == 1 ? 0 : producer) == launch->identity;
}

/* `__dlpack__`, called with the stream of the launch; the capsule is kept until that is queued, and not consumed. */
static bool read_exporter(View *view, PyObject *value, Launch *launch) {
    PyObject *method = launch->held_count < MOST_HELD - 1 ? PyObject_GetAttr(value, n___dlpack__) : NULL, *none = PyTuple_New(0);
    if (!launch->held_count)  /* before all of them what each is called with */
        launch->held[launch->held_count++] = Py_BuildValue("{OKO(ii)}", n_stream, launch->stream + !launch->stream, n_max_version, 1, 0);
    PyObject *capsule = method && none && launch->held[0] ? PyObject_Call(method, none, launch->held[0]) : NULL;
    Py_XDECREF(method), Py_XDECREF(none);
    if (!capsule)
        return false;
    launch->held[launch->held_count++] = capsule;
    if (PyCapsule_IsValid(capsule, "dltensor"))
        return read_tensor(view, PyCapsule_GetPointer(capsule, "dltensor"), launch->plan);
    const DLVersioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    view->is_readonly = managed && managed->flags & 1;
    return managed && managed->major == 1 && read_tensor(view, &managed->tensor, launch->plan);
}

static bool take_array(const Slot *slot, PyObject *value, Launch *launch) {
    View view = {.element = UNKNOWN, .axes = UNKNOWN, .layout = slot->row.layout};
    const Plan *plan = launch->plan;
    Known *type;
    bool is_exact = slot->row.flags & IS_EXACT, is_const = slot->row.flags & IS_CONST, is_read = false;
    int what = what_is(Py_TYPE(value), &type);
    switch (what) {
    case 'N': is_read = read_numba(&view, value, slot, launch); break;
    case 'C': is_read = read_cupy(&view, value, slot, plan), launch->cupy = type; break;
    case 'T': is_read = read_exchange(&view, value, plan, type), launch->tensor = type; break;
    case 'I': is_read = read_interface(&view, value, launch); break;
    case 'D': is_read = read_exporter(&view, value, launch); break;
    case 'P': is_read = plan->is_alone && word_of(PyObject_GetAttr(value, n_value), &view.address); break;
    case 'w': is_read = plan->is_alone && word_of(Py_NewRef(value), &view.address); break;
    case 'H': is_read = plan->is_alone && word_of(PyObject_GetAttr(value, n_handle), &view.address) && view.address; break;
    default: is_read = value == Py_None;
    }
    if (!is_read || view.address & slot->row.alignment_mask)
        return false;
    if (what && strchr(is_exact ? "CTI" : "CTID", what)) {
        bool fits = !(slot->row.accepts + 1) || (view.element != UNKNOWN && slot->row.accepts >> view.element & 1);
        if (is_exact)
            fits &= view.is_readonly == is_const && view.axes == slot->row.axes && slot->row.layout != 'F' &&
                    (slot->row.layout == 'C') == (view.layout == 'C') && !(view.is_strided && slot->row.flags & IS_PLAIN);
        else
            fits &= (is_const || !view.is_readonly) && (view.layout != 'A' || slot->row.flags & IS_STRIDED);
        if (!fits)
            return false;
    } else if (is_exact && what != 'N')
        return false;
    int64_t items = 1;
    for (int axis = 0; axis < view.axes; axis++)
        items *= view.shape[axis];
    for (int each = 0; each < slot->row.field_count; each++) {
        int axis = slot->row.fields[each].axis;
        uint64_t word = 0;
        switch (slot->row.fields[each].what) {
        case 'a': word = view.address; break;
        case 'n': word = (uint64_t)items; break;
        case 'i': word = slot->row.size; break;
        case 's': word = (uint64_t)view.shape[axis]; break;
        case 'b': word = (uint64_t)view.strides[axis]; break;
        case 'e': word = (uint64_t)(view.strides[axis] / slot->row.size); break;
        }
        memcpy(launch->buffer + slot->row.fields[each].offset, &word, 8);
    }
    return true;
}

/* Rounds to the nearest float of few bits, ties to even; false where it would not be finite. */
static bool small_float(double value, int exponent_bits, int mantissa_bits, uint64_t *bits) {
    int exponent, bias = (1 << (exponent_bits - 1)) - 1;
    if (!isfinite(value))
        return false;
    frexp(value, &exponent);
    exponent = value == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    double scaled = ldexp(fabs(value), mantissa_bits - exponent), below = floor(scaled), rest = scaled - below;
    uint64_t steps = (uint64_t)below, most = ((1u << exponent_bits) - 1) << mantissa_bits;
    steps += rest > 0.5 || (rest == 0.5 && steps & 1);
    if (steps >> mantissa_bits)
        steps += (uint64_t)(exponent + bias - 1) << mantissa_bits;
    *bits = steps | (uint64_t)!!signbit(value) << (exponent_bits + mantissa_bits);
    return exponent_bits == 4 ? steps < 0x7f : steps < most;
}

static bool put_real(char *at, int element, double value) {
    static const uint8_t exponent_and_mantissa[ELEMENTS][2] = {[F2] = {5, 10}, [BF] = {8, 7}, [E4] = {4, 3}, [E5] = {5, 2}};
    const uint8_t *bits = exponent_and_mantissa[element];
    uint64_t found = 0;
    float narrow = (float)value;
    if (element == F8 || element == F4)
        return memcpy(at, element == F8 ? (void *)&value : &narrow, element_bytes[element]) &&
               (element == F8 || !isinf(narrow) || isinf(value));
    return small_float(value, bits[0], bits[1], &found) && memcpy(at, &found, element_bytes[element]);
}

static bool real_of(PyObject *number, double *found) {
    *found = number ? PyFloat_AsDouble(number) : -1;
    Py_XDECREF(number);
    return number && !(*found == -1 && PyErr_Occurred());
}

/* 'i'nteger, 'f'loat, 'c'omplex or 'b'ool; 0 for what is no number that is known. */
static int number_kind(PyObject *value) {
    Known *place;
    int is = PyFloat_CheckExact(value) ? 'f' : PyLong_CheckExact(value) ? 'i' : PyBool_Check(value) ? 'b' : 0;
    is = is ? is : PyComplex_CheckExact(value) ? 'c' : what_is(Py_TYPE(value), &place);
    return is == 'w' ? 'i' : is && strchr("ifcb", is) ? is : 0;
}

static bool take_number(const Slot *slot, PyObject *value, Launch *launch) {
    char *at = launch->buffer + slot->row.offset, letter = elements[2 * slot->row.element];
    int kind = number_kind(value), size = element_bytes[slot->row.element];
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (!kind || (slot->types[FITTING] && type != slot->types[FITTING] && type != slot->types[FITTING + 1]))
        return false;
    double real, imaginary = 0;
    int half = size == 8 ? F4 : F8;
    if (letter == 'c') {
        bool is_read = kind == 'c' ? real_of(PyObject_GetAttr(value, n_real), &real) && real_of(PyObject_GetAttr(value, n_imag), &imaginary)
                                   : kind != 'b' && real_of(Py_NewRef(value), &real);
        return is_read && put_real(at, half, real) && put_real(at + size / 2, half, imaginary);
    }
    if (slot->row.element == 0)
        return kind == 'b' && (*at = (char)PyObject_IsTrue(value), true);
    if (kind == 'c' || (kind == 'b' && !PyBool_Check(value)))
        return false;
    if (strchr("fe", letter) || slot->row.element == BF)
        return real_of(Py_NewRef(value), &real) && put_real(at, slot->row.element, real);
    if (kind == 'f')
        return false;
    PyObject *whole = PyNumber_Index(value);
    int64_t word, above = size == 8 ? 0 : (int64_t)1 << (8 * size - (letter == 'i'));
    bool fits = integer_of(whole, &word);
    if (fits)
        fits = (!above || word < above) && (letter == 'i' ? !above || word >= -above : word >= 0);
    else if (whole && letter == 'u' && size == 8 && !PyErr_Occurred())
        fits = word_of(Py_NewRef(whole), (uint64_t *)&word);
    Py_XDECREF(whole);
    if (fits)
        memcpy(at, &word, (size_t)size);
    return fits;
}

static bool take_bytes(const Slot *slot, PyObject *value, Launch *launch) {
    Known *place;
    Py_buffer bytes;
    bool is_known = PyBytes_CheckExact(value) || what_is(Py_TYPE(value), &place) == 's';
    if (!is_known || PyObject_GetBuffer(value, &bytes, PyBUF_SIMPLE))
        return false;
    bool fits = bytes.len == slot->row.size;
    if (fits)
        memcpy(launch->buffer + slot->row.offset, bytes.buf, slot->row.size);
    PyBuffer_Release(&bytes);
    return fits;
}

#define IS_SET(flag) (PyList_GetItem(PyTuple_GetItem(launch->bound, flag), 0) == Py_True)

/* Whether what the libraries of a tensor and of CuPy's arrays queue now is in the stream of the launch. */
static bool is_in_stream(Launch *launch) {
    uint64_t tensors = launch->identity, cupys = tensors;
    void *current = NULL;
    if (launch->tensor && ((const DLExchange *)launch->tensor->more)->stream_of(2, launch->plan->ordinal, &current))
        return false;
    tensors = launch->tensor ? (uintptr_t)current : tensors;
    if (launch->cupy && launch->cupy->more)
        cupys = (uint64_t)((intptr_t (*)(void))launch->cupy->more)();
    else if (launch->cupy) {
        PyObject *stream = PyObject_CallNoArgs(launch->cupy->first);
        bool is_read = stream && word_of(PyObject_GetAttr(stream, n_ptr), &cupys);
        Py_XDECREF(stream);
        if (!is_read)
            return false;
    }
    return (tensors == 1 ? 0 : tensors) == launch->identity && (cupys == 1 ? 0 : cupys) == launch->identity;
}

typedef int (*Configured)(void *, uint64_t, void **, void *);
typedef int (*Plain)(uint64_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uint64_t, void **, void *);

/* The CUresult of a launch, or -1 where the interpreted path has to make it. */
static int try_launch(Launch *launch, PyObject *const *args) {
    const Plan *plan = launch->plan;
    void *parameters[MOST_PARAMETERS], *config = NULL;
    int here, capturing = 0, code;
    if (!IS_SET(LIVE) || (IS_SET(AWAITS_NUMBA) && PyDict_Contains(PyImport_GetModuleDict(), n_devices)) ||
        (plan->get_device && (((int (*)(int *))(uintptr_t)plan->get_device)(&here) || here != plan->ordinal)))
        return -1;
    for (int each = 0; each < plan->slot_count; each++) {
        const Slot *slot = &plan->slots[each];
        if (!(slot->row.kind == 'a' ? take_array : slot->row.kind == 'n' ? take_number : take_bytes)(slot, args[each], launch))
            return -1;
    }
    if ((launch->tensor || launch->cupy) && !is_in_stream(launch))
        return -1;
    for (int each = 0; each < plan->parameter_count; each++)
        parameters[each] = launch->buffer + plan->offsets[each];
    if ((launch->identity && ((int (*)(uint64_t, int *))(uintptr_t)plan->is_capturing)(launch->stream, &capturing)) ||
        (capturing && PyList_SetItem(PyTuple_GetItem(launch->bound, STAYS), 0, Py_NewRef(Py_True))))
        return -1;
    if (PyTuple_GetItem(launch->bound, CONFIG) != Py_None)
        config = PyBytes_AsString(PyTuple_GetItem(launch->bound, CONFIG));
    const unsigned *to = launch->extents;
    Py_BEGIN_ALLOW_THREADS
    if (config)
        code = ((Configured)(uintptr_t)plan->configured)(config, plan->function, parameters, NULL);
    else
        code = ((Plain)(uintptr_t)plan->launch)(plan->function, to[0], to[1], to[2], to[3], to[4], to[5], to[6],
                                                launch->stream, parameters, NULL);
    Py_END_ALLOW_THREADS
    return code;
}

static PyObject *launch_call(PyObject *bound, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Launch launch;
    uint64_t buffer[MOST_BYTES / 8];
    memcpy(&launch, PyBytes_AsString(PyTuple_GetItem(bound, SHAPE)), sizeof launch);
    launch.bound = bound, launch.buffer = (char *)buffer;
    bool is_known = !names && __atomic_load_n(&launch.plan->slot_count, __ATOMIC_ACQUIRE) == count;
    int code = is_known ? try_launch(&launch, args) : -1;
    while (launch.held_count)
        Py_XDECREF(launch.held[--launch.held_count]);
    if (!code)
        Py_RETURN_NONE;
    if (PyErr_Occurred()) {  /* the interpreted path comes to it again, and words it; what ends a program passes */
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyErr_Clear();
    }
    const unsigned *to = launch.extents;
    PyObject *given, *answer = NULL, *first = names ? Py_NewRef(names) : PyLong_FromLong(code < 0 ? 0 : code);
    count += names ? PyTuple_Size(names) : 0;  /* the values of what is named come last */
    given = PyTuple_New(count);
    for (Py_ssize_t each = 0; given && each < count; each++)
        PyTuple_SetItem(given, each, Py_NewRef(args[each]));
    if (given)
        answer = PyObject_CallFunction(PyTuple_GetItem(bound, names ? BY_NAME : SLOW), "NN((III)(III)I)KO", given, first, to[0],
                                       to[1], to[2], to[3], to[4], to[5], to[6], launch.stream, launch.given);
    return answer;
}

static PyMethodDef launch_method = {"launch", (PyCFunction)(void (*)(void))launch_call, METH_FASTCALL | METH_KEYWORDS, NULL};

static void free_plan(PyObject *capsule) {
    Plan *plan = PyCapsule_GetPointer(capsule, "plan");
    for (int each = 0; plan->slots && each < plan->slot_count; each++)
        for (int kept = 0; kept < FITTING + 2; kept++)
            Py_XDECREF(plan->slots[each].types[kept]);
    PyMem_Free(plan->slots);
    PyMem_Free(plan);
}

static PyObject *make_plan(PyObject *module, PyObject *args) {
    Plan made = {.slot_count = UNKNOWN}, *plan;
    if (!PyArg_ParseTuple(args, "KKKKKip", &made.function, &made.launch, &made.configured, &made.get_device,
                          &made.is_capturing, &made.ordinal, &made.is_alone) || !(plan = PyMem_Malloc(sizeof made)))
        return NULL;
    *plan = made;
    return PyCapsule_New(plan, "plan", free_plan);
}

/* Says what each argument is to be, and where each parameter lies; until then every launch is made by `slow`. */
static PyObject *fill(PyObject *module, PyObject *args) {
    PyObject *capsule, *types;
    const char *rows, *offsets;
    Py_ssize_t size, offsets_size;
    if (!PyArg_ParseTuple(args, "Oy#O!y#", &capsule, &rows, &size, &PyTuple_Type, &types, &offsets, &offsets_size))
        return NULL;
    Plan *plan = PyCapsule_GetPointer(capsule, "plan");
    Py_ssize_t count = size / (Py_ssize_t)sizeof(Row);
    Slot *slots = PyMem_Calloc(count + 1, sizeof(Slot)), *nobody = NULL;
    if (!plan || !slots || PyTuple_Size(types) != 2 * count || offsets_size > (Py_ssize_t)sizeof plan->offsets)
        return PyErr_NoMemory();
    for (Py_ssize_t each = 0; each < count; each++) {
        memcpy(&slots[each].row, rows + each * sizeof(Row), sizeof(Row));
        for (int only = 0; only < 2 && PyTuple_GetItem(types, 2 * each) != Py_None; only++)
            slots[each].types[FITTING + only] = Py_NewRef(PyTuple_GetItem(types, 2 * each + only));
    }
    memcpy(plan->offsets, offsets, offsets_size);
    plan->parameter_count = (int)(offsets_size / 2);
    if (__atomic_compare_exchange_n(&plan->slots, &nobody, slots, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        __atomic_store_n(&plan->slot_count, (int)count, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

static PyObject *bind(PyObject *module, PyObject *args) {
    Launch launch = {0};
    unsigned *to = launch.extents;
    PyObject *kernel, *config;
    if (!PyArg_ParseTuple(args, "O!((III)(III)I)KOO", &PyTuple_Type, &kernel, &to[0], &to[1], &to[2], &to[3], &to[4], &to[5],
                          &to[6], &launch.stream, &launch.given, &config))
        return NULL;
    launch.plan = PyCapsule_GetPointer(PyTuple_GetItem(kernel, PLAN), "plan");
    launch.context = PyTuple_GetItem(kernel, CONTEXT);
    launch.identity = launch.stream == 1 ? 0 : launch.stream;
    PyObject *more = Py_BuildValue("(y#OO)", &launch, (Py_ssize_t)sizeof launch, launch.given, config);
    PyObject *bound = launch.plan && more ? PySequence_Concat(kernel, more) : NULL;
    PyObject *made = bound ? PyCFunction_NewEx(&launch_method, bound, NULL) : NULL;
    Py_XDECREF(more), Py_XDECREF(bound);
    return made;
}

/* Notes that arrays of a Numba type fit a slot; four of them are enough. */
static PyObject *fits(PyObject *module, PyObject *args) {
    int position, each = 0;
    PyObject *capsule, *type, *there = Py_None;
    if (!PyArg_ParseTuple(args, "OiO", &capsule, &position, &type))
        return NULL;
    Plan *plan = PyCapsule_GetPointer(capsule, "plan");
    for (; there && there != type && position < plan->slot_count && each < FITTING; each++) {
        PyObject **place = &plan->slots[position].types[each];
        there = NULL;
        if (__atomic_compare_exchange_n(place, &there, type, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            Py_INCREF(type);
    }
    Py_RETURN_NONE;
}

typedef struct { uint64_t address; char pattern[16]; } Function;
typedef int (*Words)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

/* Called with its inputs; returns the CUresult and what came out, by the letters of `devices.Driver`. */
static PyObject *function_call(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const Function *function = PyCapsule_GetPointer(self, "function");
    uint64_t words[16] = {0}, in[16] = {0};
    Py_ssize_t given = 0, status;
    for (int each = 0; function->pattern[each]; each++) {
        char way = function->pattern[each];
        PyObject *value = (way == 'i' || way == 'x') && given < count ? args[given++] : NULL;
        if (value && PyBytes_CheckExact(value))
            words[each] = (uintptr_t)PyBytes_AsString(value);
        else if (value && !word_of(Py_NewRef(value), &words[each]))
            return NULL;
        in[each] = way == 'i' ? words[each] : (uintptr_t)&words[each];
    }
    Py_BEGIN_ALLOW_THREADS
    status = ((Words)(uintptr_t)function->address)(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], in[8], in[9], in[10]);
    Py_END_ALLOW_THREADS
    PyObject *answers = Py_BuildValue("[n]", status), *answer;
    for (int each = 0; function->pattern[each]; each++) {
        char way = function->pattern[each], *text = (char *)(uintptr_t)words[each];
        PyObject *next = way == 'i' ? NULL : way == 'w' ? PyLong_FromUnsignedLongLong(words[each])
                       : way == 't' ? PyUnicode_FromString(text ? text : "") : PyLong_FromLong((int32_t)words[each]);
        if (next)
            PyList_Append(answers, next);
        Py_XDECREF(next);
    }
    answer = PyList_AsTuple(answers);
    Py_DECREF(answers);
    return answer;
}

static PyMethodDef function_method = {"function", (PyCFunction)(void (*)(void))function_call, METH_FASTCALL, NULL};

/* A function of the driver and its address, or None where there is no such function, or no driver. */
static PyObject *make_function(PyObject *module, PyObject *args) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    const char *name, *pattern;
    if (!PyArg_ParseTuple(args, "ss", &name, &pattern))
        return NULL;
    void *address = library ? dlsym(library, name) : NULL;
    Function *function = address ? PyMem_Calloc(1, sizeof *function) : NULL;  /* for as long as the process */
    if (!function)
        Py_RETURN_NONE;
    function->address = (uintptr_t)address;
    strncpy(function->pattern, pattern, 15);
    PyObject *capsule = PyCapsule_New(function, "function", NULL);
    return capsule ? Py_BuildValue("NK", PyCFunction_NewEx(&function_method, capsule, NULL), function->address) : NULL;
}

static PyObject *address_of(PyObject *module, PyObject *object) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE))
        return NULL;
    PyBuffer_Release(&buffer);  /* it is only asked where it lies */
    return PyLong_FromVoidPtr(buffer.buf);
}

static PyMethodDef methods[] = {
    {"know", know, METH_VARARGS, NULL}, {"plan", make_plan, METH_VARARGS, NULL}, {"fill", fill, METH_VARARGS, NULL},
    {"bind", bind, METH_VARARGS, NULL}, {"fits", fits, METH_VARARGS, NULL}, {"function", make_function, METH_VARARGS, NULL},
    {"address_of", address_of, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void) {
    PyObject *module = PyModule_Create(&definition);
#define INTERN(name) n_##name = PyUnicode_InternFromString(#name);
    NAMES(INTERN)
    n_devices = PyUnicode_InternFromString("numba.cuda.core.config");
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
