/* The half of the fake driver without libraries and kernels: devices, contexts, streams, events, captures, memory.
 *
 * Promise     Memory keeps the bytes that were copied there, and no copy goes beyond a live allocation. The end of
 *             a context ends its streams, events, modules and memory.
 * Method      An allocation is host memory and an element of one array; work on a stream is done when a call returns.
 * Not here    Libraries, kernels, launches: fake_driver.c.
 * Source      See fake_driver.c.
 */
#include "fake_call.h"

/* ---- driver, devices ---- */

SERVE(cuInit, UNLESS_FORKED, (unsigned flags),
    CHECK(device_count, NOTE("init", NO_DEVICE, " "));
    is_initialised = true;
    return NOTE("init", SUCCESS, ",\"devices\":%d", device_count);)

SERVE(cuDriverGetVersion, ALWAYS, (int *version), *version = driver_version;)

SERVE_SINCE(12000, cuGetProcAddress_v2, ALWAYS,
    (const char *name, void **function, int version, uint64_t flags, int *status),
    const struct served *best = NULL;
    size_t length = strlen(name);
    int index = 0;
    for (const struct served *const *at = __start_served; at < __stop_served; at++)
        if (!strncmp((*at)->name, name, length)
            && (!(*at)->name[length] || !strncmp((*at)->name + length, "_v", 2))
            && (*at)->since <= version && (!best || best->since < (*at)->since))
            best = *at;
    while (!best && index < unserved_count && strcmp(unserved_names[index], name))
        index++;
    if (!best && index == unserved_count && unserved_count < MAX_UNSERVED)
        unserved_names[unserved_count++] = strdup(name);
    *function = best ? best->function : index < unserved_count ? (void *)unserved_bodies[index] : NULL;
    if (status)
        *status = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;)

SERVE_SINCE(11030, cuGetProcAddress, ALWAYS,
    (const char *name, void **function, int version, uint64_t flags),
    int result;
    OUTSIDE_THE_LOCK(result = cuGetProcAddress_v2(name, function, version, flags, NULL));
    return result;)

SERVE(cuGetExportTable, UNLESS_FORKED, (const void **table, const unsigned char *uuid),
    *table = NULL;
    begin("unknown", NOT_FOUND);
    add(",\"table\":\"");
    add_hex(uuid, 16);
    add("\"");
    return end(NOT_FOUND);)

#define NAMED(code, name) {code, "CUDA_" #name},
static const struct { int code; const char *name; } errors[] = {
    NAMED(0, SUCCESS) NAMED(1, ERROR_INVALID_VALUE) NAMED(2, ERROR_OUT_OF_MEMORY)
    NAMED(3, ERROR_NOT_INITIALIZED) NAMED(4, ERROR_DEINITIALIZED) NAMED(46, ERROR_DEVICE_UNAVAILABLE)
    NAMED(100, ERROR_NO_DEVICE) NAMED(101, ERROR_INVALID_DEVICE) NAMED(200, ERROR_INVALID_IMAGE)
    NAMED(201, ERROR_INVALID_CONTEXT) NAMED(209, ERROR_NO_BINARY_FOR_GPU) NAMED(218, ERROR_INVALID_PTX)
    NAMED(222, ERROR_UNSUPPORTED_PTX_VERSION) NAMED(301, ERROR_FILE_NOT_FOUND)
    NAMED(400, ERROR_INVALID_HANDLE) NAMED(401, ERROR_ILLEGAL_STATE) NAMED(500, ERROR_NOT_FOUND)
    NAMED(600, ERROR_NOT_READY) NAMED(700, ERROR_ILLEGAL_ADDRESS) NAMED(701, ERROR_LAUNCH_OUT_OF_RESOURCES)
    NAMED(709, ERROR_CONTEXT_IS_DESTROYED) NAMED(713, ERROR_HOST_MEMORY_NOT_REGISTERED)
    NAMED(719, ERROR_LAUNCH_FAILED) NAMED(720, ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    NAMED(800, ERROR_NOT_PERMITTED) NAMED(801, ERROR_NOT_SUPPORTED)
    NAMED(900, ERROR_STREAM_CAPTURE_UNSUPPORTED) NAMED(901, ERROR_STREAM_CAPTURE_INVALIDATED)
    NAMED(906, ERROR_STREAM_CAPTURE_IMPLICIT) NAMED(912, ERROR_INVALID_CLUSTER_SIZE)
    NAMED(999, ERROR_UNKNOWN)
};

static int error_name(int code, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        *name = errors[i].code == code ? errors[i].name : *name;
    return *name ? SUCCESS : INVALID_VALUE;
}

SERVE(cuGetErrorName, ALWAYS, (int code, const char **name), return error_name(code, name);)
SERVE(cuGetErrorString, ALWAYS, (int code, const char **text), return error_name(code, text);)

#define DEVICE(device) CHECK((device) >= 0 && (device) < device_count, INVALID_DEVICE)
static const size_t total_bytes = 150109880320;

/* Attributes that are not 0 on an H200, and their values; the limits of textures and surfaces are left out. */
static const int attributes[][2] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
    {10, 32}, {11, 2147483647}, {12, 65536}, {13, 1980000}, {14, 512}, {15, 1}, {16, 132}, {19, 1}, {30, 512},
    {31, 1}, {32, 1}, {36, 3201000}, {37, 6016}, {38, 62914560}, {39, 2048}, {40, 3}, {41, 1}, {51, 32},
    {78, 1}, {79, 1}, {80, 1}, {82, 65536}, {83, 1}, {87, 2}, {89, 1}, {90, 1}, {91, 1}, {95, 1}, {96, 1},
    {99, 1}, {106, 32}, {108, 39321600}, {109, 134217728}, {113, 1}, {115, 1}, {126, 4}, {129, 1}, {131, -1},
};

static int attribute_of(int device, int attribute)
{
    int cc = compute_capabilities[device];
    int shared_bytes = cc >= 120 || cc == 86 || cc == 89 ? 101376 : cc >= 90 ? 232448
        : cc >= 80 ? 166912 : 65536;
    switch (attribute) {
    case 33: return device + 1;  /* PCI bus */
    case 75: return cc / 10;
    case 76: return cc % 10;
    case 81: return shared_bytes + (cc >= 80 ? 1024 : 0);  /* shared memory of a multiprocessor */
    case 97: return shared_bytes;                          /* of a block, with opt-in */
    case 111: return cc >= 80 ? 1024 : 0;                  /* of each block, reserved for the system */
    case 120: case 127: return cc >= 90;                   /* clusters, tensor maps */
    }
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i][0] == attribute)
            return attributes[i][1];
    return 0;
}

SERVE(cuDeviceGetCount, READY, (int *count), *count = device_count;)
SERVE(cuDeviceGet, READY, (int *device, int ordinal), DEVICE(ordinal); *device = ordinal;)
SERVE(cuDeviceGetName, READY, (char *name, int size, int device),
    DEVICE(device); snprintf(name, (size_t)size, "Fake GPU sm_%d", compute_capabilities[device]);)
SERVE(cuDeviceGetUuid_v2, READY, (char *uuid, int device),
    DEVICE(device); memcpy(uuid, "kc-fake-device-", 15); uuid[15] = (char)device;)
SERVE(cuDeviceGetPCIBusId, READY, (char *text, int size, int device),
    DEVICE(device); snprintf(text, (size_t)size, "0000:%02X:00.0", device + 1);)
SERVE(cuDeviceTotalMem_v2, READY, (size_t *bytes, int device), DEVICE(device); *bytes = total_bytes;)
SERVE(cuDeviceGetAttribute, READY, (int *value, int attribute, int device),
    DEVICE(device); CHECK(attribute > 0 && attribute < 160, INVALID_VALUE);
    *value = attribute_of(device, attribute);)
SERVE(cuDeviceComputeCapability, READY, (int *major, int *minor, int device),
    DEVICE(device); *major = compute_capabilities[device] / 10; *minor = compute_capabilities[device] % 10;)
SERVE(cuDeviceCanAccessPeer, READY, (int *can, int device, int peer), DEVICE(device); DEVICE(peer); *can = 0;)

/* ---- allocations ---- */

struct allocation {
    char *base;
    size_t bytes;
    char what;                /* d: device, m: managed, h: pinned, r: registered, v: variable of a library */
    handle context, library;
    const struct variable *variable;
};
static struct allocation *allocations;
static size_t allocation_count, allocation_room;

static struct allocation *allocation_of(address at, size_t bytes)
{
    for (size_t i = allocation_count; i-- > 0;) {
        address base = (uintptr_t)allocations[i].base;
        if (at >= base && at - base < allocations[i].bytes)
            return bytes <= allocations[i].bytes - (at - base) ? &allocations[i] : NULL;
    }
    return NULL;
}

static size_t bytes_in_use(int device)
{
    size_t bytes = 0;
    for (size_t i = 0; i < allocation_count; i++)
        if (allocations[i].context->device == device && strchr("dmv", allocations[i].what))
            bytes += allocations[i].bytes;
    return bytes;
}

static struct allocation *hand_out(void *base, size_t bytes, char what)
{
    if (allocation_count == allocation_room)
        allocations = realloc(allocations, (allocation_room += allocation_room + 64) * sizeof *allocations);
    allocations[allocation_count] = (struct allocation){base, bytes, what, here, NULL, NULL};
    NOTE("alloc", SUCCESS, ",\"address\":%llu,\"bytes\":%zu,\"what\":\"%c\",\"device\":%d",
         (address)(uintptr_t)base, bytes, what, here->device);
    return &allocations[allocation_count++];
}

/* Some calls are unsafe during a capture: forbidden unless the mode of their thread allows them. Calls on the legacy
 * stream are forbidden in every mode if it would have to wait for the captured stream. A forbidden call spoils the
 * capture. */
static bool spoils_capture(bool is_on_legacy_stream)
{
    bool spoils = false;
    for (size_t i = 0; captures && i < objects_made; i++) {
        handle graph = &objects[i];
        if (graph->kind != GRAPH || !graph->is_active)
            continue;
        if (state_of(graph->parent, STREAM)) {
            graph->is_active = false, captures--;  /* its stream is gone */
            continue;
        }
        bool is_own = pthread_equal(graph->thread, pthread_self());
        bool is_forbidden = is_on_legacy_stream ? !graph->parent->flags && graph->parent->context == here
            : capture_mode_here != RELAXED && (is_own ? graph->flags != RELAXED : !graph->flags && !capture_mode_here);
        graph->is_spoiled |= is_forbidden, spoils |= is_forbidden;
    }
    if (spoils)
        NOTE("forbidden", STREAM_CAPTURE_UNSUPPORTED, " ");
    return spoils;
}

#define UNSAFE CHECK(!spoils_capture(false), STREAM_CAPTURE_UNSUPPORTED)

static int allocate(void **base, size_t bytes, char what)
{
    CHECK(bytes, INVALID_VALUE);
    CHECK(bytes <= total_bytes - bytes_in_use(here->device), OUT_OF_MEMORY);
    CHECK(!posix_memalign(base, 512, bytes), OUT_OF_MEMORY);
    memset(*base, 0xa5, bytes < 1 << 20 ? bytes : 1 << 20);  /* fresh memory is not zero on a GPU either */
    hand_out(*base, bytes, what);
    return SUCCESS;
}

static int give_back(address at, const char *what)
{
    struct allocation *allocation = allocation_of(at, 0);
    CHECK(at, SUCCESS);
    CHECK(allocation && (uintptr_t)allocation->base == at && strchr(what, allocation->what), INVALID_VALUE);
    NOTE("free", SUCCESS, ",\"address\":%llu,\"bytes\":%zu", at, allocation->bytes);
    if (allocation->what != 'r')
        free(allocation->base);
    *allocation = allocations[--allocation_count];
    return SUCCESS;
}

/* Remove the allocations of a context or a library, and do not free them: a later use does not crash the test. */
static void forget(handle context, handle library)
{
    for (size_t i = allocation_count; i-- > 0;)
        if (context ? allocations[i].context == context : allocations[i].library == library)
            allocations[i] = allocations[--allocation_count];
}

/* ---- contexts ---- */

static int push(handle context)
{
    CHECK(depth_here < MAX_CONTEXTS, ILLEGAL_STATE);
    contexts_here[depth_here++] = context;
    return SUCCESS;
}

static int end_context(handle context)
{
    context->epoch++, context->is_active = false;  /* a reset keeps the references */
    forget(context, NULL);
    return NOTE("context_end", SUCCESS, ",\"device\":%d", context->device);
}

static int create_context(handle *context, unsigned flags, int device)
{
    DEVICE(device);
    CHECK(*context = make(CONTEXT, NULL), OUT_OF_MEMORY);
    (*context)->device = device, (*context)->flags = flags, (*context)->is_active = true;
    return push(*context);
}

#define CONTEXT_OR_HERE(context) context = context ? context : here; TRY(state_of(context, CONTEXT))

SERVE(cuDevicePrimaryCtxRetain, READY, (handle *context, int device),
    DEVICE(device); *context = primaries[device]; (*context)->count++; (*context)->is_active = true;)
SERVE(cuDevicePrimaryCtxRelease_v2, READY, (int device),
    DEVICE(device); CHECK(primaries[device]->count, INVALID_CONTEXT);
    return --primaries[device]->count ? SUCCESS : end_context(primaries[device]);)
SERVE(cuDevicePrimaryCtxReset_v2, READY, (int device), DEVICE(device); return end_context(primaries[device]);)
SERVE(cuDevicePrimaryCtxGetState, READY, (int device, unsigned *flags, int *is_active),
    DEVICE(device); *flags = primaries[device]->flags; *is_active = primaries[device]->is_active;)
SERVE(cuDevicePrimaryCtxSetFlags_v2, READY, (int device, unsigned flags),
    DEVICE(device); primaries[device]->flags = flags;)
SERVE_SINCE(3020, cuCtxCreate_v2, READY, (handle *context, unsigned flags, int device),
    return create_context(context, flags, device);)
SERVE_SINCE(12050, cuCtxCreate_v4, READY, (handle *context, void *parameters, unsigned flags, int device),
    CHECK(!parameters, NOT_SUPPORTED); return create_context(context, flags, device);)
SERVE(cuCtxDestroy_v2, READY, (handle context),
    TRY(state_of(context, CONTEXT));
    depth_here -= here == context;
    context->is_dead = context != primaries[context->device];
    return end_context(context);)
SERVE(cuCtxPushCurrent_v2, READY, (handle context), TRY(state_of(context, CONTEXT)); return push(context);)
SERVE(cuCtxPopCurrent_v2, READY, (handle *context),
    CHECK(depth_here, INVALID_CONTEXT); depth_here--; if (context) *context = here;)
SERVE(cuCtxSetCurrent, READY, (handle context),
    TRY(context ? state_of(context, CONTEXT) : SUCCESS); depth_here -= depth_here > 0;
    return context ? push(context) : SUCCESS;)
SERVE(cuCtxGetCurrent, READY, (handle *context), *context = here;)
SERVE(cuCtxGetDevice, READY, (int *device), CHECK(here, INVALID_CONTEXT); *device = here->device;)
SERVE_SINCE(13000, cuCtxGetDevice_v2, READY, (int *device, handle context),
    CONTEXT_OR_HERE(context); *device = context->device;)
SERVE(cuCtxGetFlags, IN_CONTEXT, (unsigned *flags), *flags = here->flags;)
SERVE(cuCtxGetId, READY, (handle context, address *id),  /* a primary context may end and start again */
    CONTEXT_OR_HERE(context); *id = (address)(context - objects) << 32 | context->epoch;)
SERVE(cuCtxGetApiVersion, READY, (handle context, unsigned *version),
    CONTEXT_OR_HERE(context); *version = 3020;)
SERVE(cuCtxGetStreamPriorityRange, IN_CONTEXT, (int *lowest, int *highest), *lowest = 0; *highest = -5;)
SERVE(cuCtxGetLimit, IN_CONTEXT, (size_t *value, int limit), *value = limit ? 8 << 20 : 1024;)
SERVE(cuCtxSetLimit, IN_CONTEXT, (int limit, size_t value),
    return NOTE("set_limit", SUCCESS, ",\"limit\":%d,\"value\":%zu", limit, value);)
SERVE(cuCtxSynchronize, IN_CONTEXT, (void),
    UNSAFE; return NOTE("synchronize", SUCCESS, ",\"device\":%d", here->device);)
SERVE_SINCE(13000, cuCtxSynchronize_v2, READY, (handle context),
    CONTEXT_OR_HERE(context); UNSAFE;
    return NOTE("synchronize", SUCCESS, ",\"device\":%d", context->device);)
SERVE(cuProfilerStart, READY, (void), )
SERVE(cuProfilerStop, READY, (void), )

/* ---- streams, events, captures ---- */

static int stream_of(uintptr_t queue, handle *stream)
{
    *stream = queue <= THREAD_STREAM ? NULL : (handle)queue;
    return *stream ? state_of(*stream, STREAM) : state_of_here();
}

/* LOOK_UP finds the stream and thereby the context of the call. QUEUE_ON is for calls that queue work: on the legacy
 * stream, which waits for the others, they spoil a capture. WAIT_FOR is for calls that wait for a stream: for a
 * captured one they are an error. */
#define LOOK_UP(queue) handle stream; TRY(stream_of(queue, &stream)); here = stream ? stream->context : here
#define QUEUE_ON(queue) LOOK_UP(queue); \
    CHECK(stream || queue == THREAD_STREAM || !spoils_capture(true), STREAM_CAPTURE_IMPLICIT); \
    CHECK(!IS_CAPTURING || !stream->capture->is_spoiled, STREAM_CAPTURE_INVALIDATED)
#define WAIT_FOR(queue) LOOK_UP(queue); \
    CHECK(stream || queue == THREAD_STREAM || !spoils_capture(true), STREAM_CAPTURE_IMPLICIT); \
    CHECK(!IS_CAPTURING || !(stream->capture->is_spoiled = true), STREAM_CAPTURE_UNSUPPORTED)
#define IS_CAPTURING (stream && stream->capture)
#define STREAM_AND_EVENT ",\"stream\":%llu,\"event_handle\":%llu", (address)queue, (address)(uintptr_t)event

static int create_stream(handle *stream, unsigned flags, int priority)
{
    CHECK(flags <= 1, INVALID_VALUE);
    CHECK(*stream = make(STREAM, here), OUT_OF_MEMORY);
    (*stream)->flags = flags, (*stream)->priority = priority;
    return SUCCESS;
}

SERVE(cuStreamCreate, IN_CONTEXT, (handle *stream, unsigned flags), return create_stream(stream, flags, 0);)
SERVE(cuStreamCreateWithPriority, IN_CONTEXT, (handle *stream, unsigned flags, int priority),
    return create_stream(stream, flags, priority);)
SERVE(cuStreamDestroy_v2, READY, (handle stream), TRY(state_of(stream, STREAM)); stream->is_dead = true;)
SERVE(cuStreamSynchronize, READY, (uintptr_t queue),
    WAIT_FOR(queue); return NOTE("synchronize", SUCCESS, ",\"stream\":%llu", (address)queue);)
SERVE(cuStreamQuery, READY, (uintptr_t queue), WAIT_FOR(queue);)
SERVE(cuStreamGetFlags, READY, (uintptr_t queue, unsigned *flags),
    LOOK_UP(queue); *flags = stream ? stream->flags : 0;)
SERVE(cuStreamGetPriority, READY, (uintptr_t queue, int *priority),
    LOOK_UP(queue); *priority = stream ? stream->priority : 0;)
SERVE(cuStreamGetId, READY, (uintptr_t queue, address *id),
    LOOK_UP(queue); *id = stream ? (address)(stream - objects) : queue;)
SERVE(cuStreamGetDevice, READY, (uintptr_t queue, int *device),
    LOOK_UP(queue); *device = here->device;)
SERVE_SINCE(9020, cuStreamGetCtx, READY, (uintptr_t queue, handle *context),
    LOOK_UP(queue); *context = here;)
SERVE_SINCE(12050, cuStreamGetCtx_v2, READY, (uintptr_t queue, handle *context, void **green),
    LOOK_UP(queue); *context = here; if (green) *green = NULL;)
SERVE(cuStreamWaitEvent, READY, (uintptr_t queue, handle event, unsigned flags),
    QUEUE_ON(queue); TRY(state_of(event, EVENT));
    if (stream && event->capture)
        stream->capture = event->capture;  /* it joins the capture */
    return NOTE("stream_wait", SUCCESS, STREAM_AND_EVENT);)
SERVE(cuStreamAddCallback, READY,
    (uintptr_t queue, void (*callback)(uintptr_t, int, void *), void *data, unsigned flags),
    WAIT_FOR(queue); OUTSIDE_THE_LOCK(callback(queue, SUCCESS, data));)
SERVE(cuLaunchHostFunc, READY, (uintptr_t queue, void (*callback)(void *), void *data),
    QUEUE_ON(queue); if (!IS_CAPTURING) OUTSIDE_THE_LOCK(callback(data));)

SERVE(cuEventCreate, IN_CONTEXT, (handle *event, unsigned flags),
    CHECK(*event = make(EVENT, here), OUT_OF_MEMORY); (*event)->flags = flags;)
SERVE(cuEventDestroy_v2, READY, (handle event), TRY(state_of(event, EVENT)); event->is_dead = true;)
SERVE(cuEventQuery, READY, (handle event), TRY(state_of(event, EVENT)); UNSAFE;)
SERVE(cuEventSynchronize, READY, (handle event), TRY(state_of(event, EVENT));)

static int record(handle event, uintptr_t queue)
{
    struct timespec now;
    QUEUE_ON(queue);
    TRY(state_of(event, EVENT));
    CHECK(event->context == here, INVALID_HANDLE);
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->recorded_ns = (address)now.tv_sec * 1000000000u + (address)now.tv_nsec;
    event->capture = stream ? stream->capture : NULL;
    return NOTE("event_record", SUCCESS, STREAM_AND_EVENT);
}

SERVE(cuEventRecord, READY, (handle event, uintptr_t queue), return record(event, queue);)
SERVE(cuEventRecordWithFlags, READY, (handle event, uintptr_t queue, unsigned flags),
    return record(event, queue);)
static int elapsed(float *milliseconds, handle from, handle to)
{
    TRY(state_of(from, EVENT)); TRY(state_of(to, EVENT));
    CHECK(from->recorded_ns && to->recorded_ns, INVALID_HANDLE);
    CHECK(!((from->flags | to->flags) & 2), INVALID_HANDLE);  /* CU_EVENT_DISABLE_TIMING */
    *milliseconds = (float)((double)(int64_t)(to->recorded_ns - from->recorded_ns) / 1e6);
    return SUCCESS;
}

SERVE(cuEventElapsedTime, READY, (float *milliseconds, handle from, handle to), return elapsed(milliseconds, from, to);)
SERVE(cuEventElapsedTime_v2, READY, (float *milliseconds, handle from, handle to), return elapsed(milliseconds, from, to);)

SERVE(cuStreamBeginCapture_v2, READY, (uintptr_t queue, int mode),
    LOOK_UP(queue);
    CHECK(stream, STREAM_CAPTURE_UNSUPPORTED);
    CHECK(!stream->capture, ILLEGAL_STATE);
    CHECK(stream->capture = make(GRAPH, NULL), OUT_OF_MEMORY);
    stream->capture->text = strdup("");
    stream->capture->parent = stream;
    stream->capture->flags = (unsigned)mode, stream->capture->thread = pthread_self();
    stream->capture->is_active = true, captures++;
    return NOTE("capture_begin", SUCCESS, ",\"stream\":%llu", (address)queue);)
SERVE(cuStreamEndCapture, READY, (uintptr_t queue, handle *graph),
    LOOK_UP(queue);
    CHECK(IS_CAPTURING && stream->capture->parent == stream, ILLEGAL_STATE);
    handle capture = stream->capture;
    *graph = capture->is_spoiled ? NULL : capture;
    captures -= capture->is_active, capture->is_active = false;
    for (size_t i = 0; i < objects_made; i++)
        objects[i].capture = objects[i].capture == capture ? NULL : objects[i].capture;
    return NOTE("capture_end", capture->is_spoiled ? STREAM_CAPTURE_INVALIDATED : SUCCESS,
                ",\"stream\":%llu,\"kernels\":[%s]", (address)queue, capture->text);)
SERVE(cuStreamIsCapturing, READY, (uintptr_t queue, int *status),
    LOOK_UP(queue);
    for (size_t i = 0; i < objects_made && !stream && queue != THREAD_STREAM; i++)  /* the legacy stream waits for it */
        CHECK(objects[i].kind != STREAM || objects[i].context != here || objects[i].flags || !objects[i].capture,
              STREAM_CAPTURE_IMPLICIT);
    *status = IS_CAPTURING ? 1 + stream->capture->is_spoiled : 0;)

static int capture_info(uintptr_t queue, int *status, address *id, handle *graph, const void **nodes,
                        size_t *count)
{
    LOOK_UP(queue);
    *status = IS_CAPTURING ? 1 + stream->capture->is_spoiled : 0;
    if (id)
        *id = IS_CAPTURING ? (address)(stream->capture - objects) : 0;
    if (graph)
        *graph = IS_CAPTURING ? stream->capture : NULL;
    if (nodes)
        *nodes = NULL;
    if (count)
        *count = 0;
    return SUCCESS;
}

SERVE_SINCE(11030, cuStreamGetCaptureInfo_v2, READY,
    (uintptr_t queue, int *status, address *id, handle *graph, const void **nodes, size_t *count),
    return capture_info(queue, status, id, graph, nodes, count);)
SERVE_SINCE(12030, cuStreamGetCaptureInfo_v3, READY,
    (uintptr_t queue, int *status, address *id, handle *graph, const void **nodes, const void **edges,
     size_t *count),
    if (edges) *edges = NULL; return capture_info(queue, status, id, graph, nodes, count);)
SERVE(cuThreadExchangeStreamCaptureMode, READY, (int *mode),
    int before = capture_mode_here; capture_mode_here = *mode; *mode = before;)

static int instantiate(handle *exec, handle graph)
{
    TRY(state_of(graph, GRAPH));
    CHECK(*exec = make(GRAPH_EXEC, NULL), OUT_OF_MEMORY);
    (*exec)->parent = graph;
    return SUCCESS;
}

SERVE(cuGraphInstantiateWithFlags, IN_CONTEXT, (handle *exec, handle graph, uint64_t flags),
    return instantiate(exec, graph);)
SERVE(cuGraphInstantiateWithParams, IN_CONTEXT, (handle *exec, handle graph, uint64_t parameters[4]),
    parameters[2] = parameters[3] = 0;  /* result: no failed node, success */
    return instantiate(exec, graph);)
SERVE(cuGraphUpload, READY, (handle exec, uintptr_t queue),
    LOOK_UP(queue); TRY(state_of(exec, GRAPH_EXEC));)
SERVE(cuGraphLaunch, READY, (handle exec, uintptr_t queue),
    QUEUE_ON(queue); TRY(state_of(exec, GRAPH_EXEC));
    return NOTE("graph_launch", SUCCESS, ",\"stream\":%llu,\"kernels\":[%s]", (address)queue,
                exec->parent->text);)
SERVE(cuGraphDestroy, READY, (handle graph), TRY(state_of(graph, GRAPH)); graph->is_dead = true;)
SERVE(cuGraphExecDestroy, READY, (handle exec), TRY(state_of(exec, GRAPH_EXEC)); exec->is_dead = true;)

/* ---- memory ---- */

SERVE(cuMemGetInfo_v2, IN_CONTEXT, (size_t *free_bytes, size_t *total),
    *total = total_bytes; *free_bytes = total_bytes - bytes_in_use(here->device);)
SERVE(cuMemAlloc_v2, IN_CONTEXT, (void **base, size_t bytes), UNSAFE; return allocate(base, bytes, 'd');)
SERVE(cuMemAllocManaged, IN_CONTEXT, (void **base, size_t bytes, unsigned flags), UNSAFE;
    return allocate(base, bytes, 'm');)
SERVE(cuMemAllocPitch_v2, IN_CONTEXT,
    (void **base, size_t *pitch, size_t width_bytes, size_t height, unsigned element_bytes), UNSAFE;
    *pitch = (width_bytes + 511) / 512 * 512; return allocate(base, *pitch * height, 'd');)
SERVE(cuMemAllocHost_v2, IN_CONTEXT, (void **base, size_t bytes), UNSAFE; return allocate(base, bytes, 'h');)
SERVE(cuMemHostAlloc, IN_CONTEXT, (void **base, size_t bytes, unsigned flags), UNSAFE;
    return allocate(base, bytes, 'h');)
SERVE(cuMemFree_v2, READY, (address at), UNSAFE; return give_back(at, "dm");)
SERVE(cuMemFreeHost, READY, (address at), UNSAFE; return give_back(at, "h");)
SERVE(cuMemHostRegister_v2, IN_CONTEXT, (void *base, size_t bytes, unsigned flags), UNSAFE;
    CHECK(base && bytes, INVALID_VALUE); hand_out(base, bytes, 'r');)
SERVE(cuMemHostUnregister, READY, (address at),
    return give_back(at, "r") ? HOST_MEMORY_NOT_REGISTERED : SUCCESS;)
SERVE(cuMemHostGetDevicePointer_v2, IN_CONTEXT, (address *device, address host, unsigned flags),
    CHECK(allocation_of(host, 0), INVALID_VALUE); *device = host;)
SERVE(cuMemGetAddressRange_v2, IN_CONTEXT, (address *base, size_t *bytes, address at),
    struct allocation *found = allocation_of(at, 0);
    CHECK(found, NOT_FOUND);
    if (base) *base = (uintptr_t)found->base;
    if (bytes) *bytes = found->bytes;)

/* The value of an attribute, or all bits set if it has none. */
static address pointer_attribute(int attribute, address at)
{
    const struct allocation *found = allocation_of(at, 0);
    switch (found ? attribute : 0) {
    case 1: return (uintptr_t)found->context;
    case 2: return found->what == 'h' || found->what == 'r' ? 1 : 2;  /* host memory, device memory */
    case 3: return at;
    case 4: return strchr("hrm", found->what) ? at : ~(address)0;
    case 7: case 11: return (uintptr_t)found->base;
    case 8: return found->what == 'm';
    case 9: return (address)found->context->device;
    case 10: case 13: return 1;
    case 12: return found->bytes;
    case 6: case 17: return 0;
    }
    return ~(address)0;
}

static void store_attribute(void *value, int attribute, address number)
{
    bool is_int = attribute == 2 || attribute == 6 || (attribute > 7 && attribute < 11) || attribute == 13;
    memcpy(value, &number, is_int ? 4 : 8);
}

SERVE(cuPointerGetAttribute, READY, (void *value, int attribute, address at),
    address number = pointer_attribute(attribute, at);
    CHECK(~number, INVALID_VALUE);
    store_attribute(value, attribute, number);)
SERVE(cuPointerGetAttributes, READY, (unsigned count, const int *wanted, void **values, address at),
    for (unsigned i = 0; i < count; i++) {
        address number = pointer_attribute(wanted[i], at);
        store_attribute(values[i], wanted[i], ~number ? number : 0);
    })
SERVE(cuPointerSetAttribute, IN_CONTEXT, (const void *value, int attribute, address at),
    CHECK(allocation_of(at, 0), INVALID_VALUE);)

/* Copy bytes. A side is checked against the allocations if it is device memory by the name of the call. */
static int copy(const char *direction, address to, address from, size_t bytes, uintptr_t queue)
{
    QUEUE_ON(queue);
    CHECK(!bytes || direction[3] != 'D' || allocation_of(to, bytes), INVALID_VALUE);
    CHECK(!bytes || direction[0] != 'D' || allocation_of(from, bytes), INVALID_VALUE);
    if (!IS_CAPTURING)
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return NOTE("memcpy", SUCCESS, ",\"direction\":\"%s\",\"bytes\":%zu,\"stream\":%llu", direction, bytes,
                (address)queue);
}

static int fill(address at, uint32_t value, size_t width, size_t count, uintptr_t queue)
{
    QUEUE_ON(queue);
    CHECK(!count || allocation_of(at, count * width), INVALID_VALUE);
    for (size_t i = 0; i < count && !IS_CAPTURING; i++)
        memcpy((char *)(uintptr_t)at + i * width, &value, width);  /* little endian, as the cubins are */
    return NOTE("memset", SUCCESS, ",\"bytes\":%zu,\"stream\":%llu", count * width, (address)queue);
}

#define COPY(now, later, direction)                                                                          \
    SERVE(now, IN_CONTEXT, (address to, address from, size_t bytes),                                         \
        return copy(direction, to, from, bytes, 0);)                                                         \
    SERVE(later, READY, (address to, address from, size_t bytes, uintptr_t stream),                          \
        return copy(direction, to, from, bytes, stream);)
#define FILL(now, later, type)                                                                               \
    SERVE(now, IN_CONTEXT, (address at, type value, size_t count),                                           \
        return fill(at, value, sizeof value, count, 0);)                                                     \
    SERVE(later, READY, (address at, type value, size_t count, uintptr_t stream),                            \
        return fill(at, value, sizeof value, count, stream);)
COPY(cuMemcpy, cuMemcpyAsync, "any")
COPY(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, "HtoD")
COPY(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, "DtoH")
COPY(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, "DtoD")
FILL(cuMemsetD8_v2, cuMemsetD8Async, uint8_t)
FILL(cuMemsetD16_v2, cuMemsetD16Async, uint16_t)
FILL(cuMemsetD32_v2, cuMemsetD32Async, uint32_t)

static int pool_of(handle *pool, int device)
{
    static handle pools[MAX_DEVICES];
    DEVICE(device);
    pools[device] = pools[device] ? pools[device] : make(POOL, NULL);
    return (*pool = pools[device]) ? SUCCESS : OUT_OF_MEMORY;
}

SERVE(cuDeviceGetDefaultMemPool, READY, (handle *pool, int device), return pool_of(pool, device);)
SERVE(cuDeviceGetMemPool, READY, (handle *pool, int device), return pool_of(pool, device);)
SERVE(cuMemPoolGetAttribute, READY, (handle pool, int attribute, void *value),
    TRY(state_of(pool, POOL)); memset(value, 0, attribute < 4 ? 4 : 8);)
SERVE(cuMemPoolSetAttribute, READY, (handle pool, int attribute, void *value), TRY(state_of(pool, POOL));)
SERVE(cuMemAllocAsync, READY, (void **base, size_t bytes, uintptr_t queue),
    QUEUE_ON(queue); return allocate(base, bytes, 'd');)
SERVE(cuMemAllocFromPoolAsync, READY, (void **base, size_t bytes, handle pool, uintptr_t queue),
    QUEUE_ON(queue); TRY(state_of(pool, POOL)); return allocate(base, bytes, 'd');)
SERVE(cuMemFreeAsync, READY, (address at, uintptr_t queue), QUEUE_ON(queue); return give_back(at, "dm");)
