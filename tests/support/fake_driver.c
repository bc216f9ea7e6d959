/* A libcuda.so.1 without a GPU: the host side of the CUDA driver, for tests.
 *
 * Promise     numba-cuda, cuda.core and cuda.bindings run on it unchanged: devices, contexts, memory,
 *             streams, events, libraries, kernels, occupancy, launches, small captures. A launch reads as many
 *             bytes of each parameter as the cubin says. Calls are logged, one JSON object in a line.
 * Method      Device memory is host memory, streams finish at once, one mutex guards everything.
 * Not here    No kernel runs, so no result can be checked. No PTX, fatbin, linker, IPC, arrays, textures,
 *             peer copies, virtual memory or green contexts; an error does not make its context unusable. A call
 *             that is not served returns CUDA_ERROR_NOT_SUPPORTED and is logged by name.
 * Settings    KC_FAKE_DEVICES, KC_FAKE_CC<n>, KC_FAKE_DRIVER_VERSION, KC_FAKE_LOG, KC_FAKE_FAIL,
 *             KC_FAKE_ACCEPT_PTX, KC_FAKE_EAGER_LOADING. fake_driver.py sets and explains them; most are read at
 *             the first call.
 * Source      cuda.h 13.0 for names, numbers and layouts. Attributes, limits and error codes are those of driver
 *             580 on an H200, also the surprising ones: a library may be loaded from any bytes, frees need no
 *             context, a reset keeps the references of a primary context.
 */
#include "fake_device.h"

/* ---- libraries, modules, kernels ---- */

static int error_of(const struct image *image)
{
    bool is_fitting = false;
    for (int i = 0; i < device_count; i++)
        is_fitting |= (!here || here->device == i) && fits(image, compute_capabilities[i]);
    return image->error ? image->error : is_fitting ? SUCCESS : NO_BINARY_FOR_GPU;
}

/* Load a library, lazily as the driver does: its errors come when a kernel or variable is first requested from it. */
static int load(handle *library, const void *code, bool is_lazy)
{
    CHECK(code, INVALID_VALUE);
    UNSAFE;
    struct image *image = read_image(code, setting("KC_FAKE_ACCEPT_PTX", 0));
    int error = error_of(image), result = is_lazy && !image->is_malformed ? SUCCESS : error;
    NOTE("load", result, ",\"image_error\":%d,\"device\":%d,\"bytes\":%zu,\"crc32\":%u,\"sm\":%d", error,
         here ? here->device : -1, image->size, image->crc32, image->sm);
    CHECK(!result, result);
    CHECK(*library = make(LIBRARY, NULL), OUT_OF_MEMORY);
    (*library)->image = image;
    for (int i = 0; i < image->entry_count; i++) {
        handle kernel = image->entries[i].kernel = make(KERNEL, NULL);
        CHECK(kernel, OUT_OF_MEMORY);
        kernel->parent = *library, kernel->entry = &image->entries[i];
    }
    return SUCCESS;
}

static int load_file(handle *library, const char *path, bool is_lazy)
{
    FILE *file = fopen(path, "rb");
    CHECK(file, FILE_NOT_FOUND);
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    char *bytes = calloc(1, size + 1);
    rewind(file);
    int result = fread(bytes, 1, size, file) == size ? load(library, bytes, is_lazy) : INVALID_IMAGE;
    fclose(file);
    free(bytes);
    return result;
}

static int load_module(handle *module, const void *code, const char *path)
{
    handle library;
    TRY(path ? load_file(&library, path, false) : load(&library, code, false));
    CHECK(*module = make(MODULE, here), OUT_OF_MEMORY);
    (*module)->parent = library;
    return SUCCESS;
}

static int unload(handle library)
{
    TRY(state_of(library, LIBRARY));
    UNSAFE;
    library->is_dead = true;
    for (size_t i = 0; i < objects_made; i++)  /* parents have smaller indices */
        if (objects[i].kind >= MODULE && objects[i].kind <= FUNCTION)
            objects[i].is_dead |= objects[i].parent->is_dead;
    forget(NULL, library);
    return NOTE("unload", SUCCESS, ",\"crc32\":%u", library->image->crc32);
}

#define USABLE(library) TRY(state_of(library, LIBRARY)); TRY(error_of(library->image))
#define MODULE_OF(module) TRY(state_of(module, MODULE)); here = module->context
#define CODE_PARAMETERS \
    void *jit, void **jit_values, unsigned jit_count, void *options, void **values, unsigned count
#define IS_LAZY !setting("KC_FAKE_EAGER_LOADING", 0)

SERVE(cuLibraryLoadData, READY, (handle *library, const void *code, CODE_PARAMETERS),
    return load(library, code, IS_LAZY);)
SERVE(cuLibraryLoadFromFile, READY, (handle *library, const char *path, CODE_PARAMETERS),
    return load_file(library, path, IS_LAZY);)
SERVE(cuLibraryUnload, READY, (handle library), return unload(library);)

static int get_kernel(handle *kernel, handle library, const char *name)
{
    int error = error_of(library->image);
    const struct entry *entry = entry_named(library->image, name);
    int result = error ? error : entry ? SUCCESS : NOT_FOUND;
    begin("get_kernel", result);
    add_text("kernel", name);
    *kernel = result ? NULL : entry->kernel;
    return end(result);
}

/* A CUkernel is valid in every context, a CUfunction belongs to one; most calls accept either. */
static int function_of(handle *function, handle kernel, handle context)
{
    handle *kept = &kernel->entry->functions[context->device];
    if (!*kept || state_of(*kept, FUNCTION) || (*kept)->context != context) {
        CHECK(*kept = make(FUNCTION, context), OUT_OF_MEMORY);
        (*kept)->parent = kernel, (*kept)->entry = kernel->entry;
    }
    *function = *kept;
    return SUCCESS;
}

/* A variable has a buffer in each context, initialised with the bytes in the cubin or with zeros. */
static int get_variable(address *base, size_t *bytes, handle library, const char *name)
{
    const struct variable *variable = NULL;
    struct allocation *found = NULL;
    void *memory;
    TRY(error_of(library->image));
    CHECK(!entry_named(library->image, name), INVALID_VALUE);
    for (int i = 0; i < library->image->variable_count; i++)
        variable = strcmp(library->image->variables[i].name, name) ? variable : &library->image->variables[i];
    CHECK(variable, NOT_FOUND);
    for (size_t i = 0; i < allocation_count; i++)
        if (allocations[i].variable == variable && allocations[i].context == here)
            found = &allocations[i];
    if (!found) {
        CHECK(!posix_memalign(&memory, 512, variable->bytes + 1), OUT_OF_MEMORY);
        memset(memory, 0, variable->bytes);
        if (variable->initial)
            memcpy(memory, variable->initial, variable->bytes);
        found = hand_out(memory, variable->bytes, 'v');
        found->library = library, found->variable = variable;
    }
    if (base)
        *base = (uintptr_t)found->base;
    if (bytes)
        *bytes = found->bytes;
    return SUCCESS;
}

SERVE(cuLibraryGetKernel, READY, (handle *kernel, handle library, const char *name),
    TRY(state_of(library, LIBRARY)); return get_kernel(kernel, library, name);)
SERVE(cuLibraryGetKernelCount, READY, (unsigned *count, handle library),
    TRY(state_of(library, LIBRARY));
    *count = error_of(library->image) ? 0 : (unsigned)library->image->entry_count;)
SERVE(cuLibraryEnumerateKernels, READY, (handle *kernels, unsigned count, handle library),
    USABLE(library);
    for (unsigned i = 0; i < count && i < (unsigned)library->image->entry_count; i++)
        kernels[i] = library->image->entries[i].kernel;)
SERVE(cuLibraryGetGlobal, IN_CONTEXT, (address *base, size_t *bytes, handle library, const char *name),
    TRY(state_of(library, LIBRARY)); return get_variable(base, bytes, library, name);)
SERVE(cuLibraryGetModule, IN_CONTEXT, (handle *module, handle library),
    USABLE(library); CHECK(*module = make(MODULE, here), OUT_OF_MEMORY); (*module)->parent = library;)

SERVE(cuModuleLoad, IN_CONTEXT, (handle *module, const char *path), return load_module(module, NULL, path);)
SERVE(cuModuleLoadData, IN_CONTEXT, (handle *module, const void *code),
    return load_module(module, code, NULL);)
SERVE(cuModuleLoadDataEx, IN_CONTEXT,
    (handle *module, const void *code, unsigned count, void *options, void **values),
    return load_module(module, code, NULL);)
SERVE(cuModuleLoadFatBinary, IN_CONTEXT, (handle *module, const void *code),
    return load_module(module, code, NULL);)
SERVE(cuModuleUnload, READY, (handle module),
    TRY(state_of(module, MODULE)); return unload(module->parent);)
SERVE(cuModuleGetLoadingMode, READY, (int *mode), *mode = 2;)  /* lazy */
SERVE(cuModuleGetFunction, READY, (handle *function, handle module, const char *name),
    handle kernel;
    MODULE_OF(module); TRY(get_kernel(&kernel, module->parent, name));
    return function_of(function, kernel, here);)
SERVE(cuModuleGetFunctionCount, READY, (unsigned *count, handle module),
    MODULE_OF(module); *count = (unsigned)module->parent->image->entry_count;)
SERVE(cuModuleEnumerateFunctions, READY, (handle *functions, unsigned count, handle module),
    MODULE_OF(module);
    for (unsigned i = 0; i < count && i < (unsigned)module->parent->image->entry_count; i++)
        TRY(function_of(&functions[i], module->parent->image->entries[i].kernel, here));)
SERVE(cuModuleGetGlobal_v2, READY, (address *base, size_t *bytes, handle module, const char *name),
    MODULE_OF(module); return get_variable(base, bytes, module->parent, name);)

#define EITHER(kernel) CHECK(!state_of(kernel, KERNEL) || !state_of(kernel, FUNCTION), INVALID_HANDLE)

static const struct image *image_of(handle kernel)
{
    return (kernel->kind == KERNEL ? kernel : kernel->parent)->parent->image;
}

static int parameter_info(handle kernel, size_t index, size_t *offset, size_t *size)
{
    EITHER(kernel);
    CHECK(index < (size_t)kernel->entry->parameter_count, INVALID_VALUE);
    *offset = kernel->entry->parameters[index].offset;
    if (size)
        *size = kernel->entry->parameters[index].size;
    return SUCCESS;
}

SERVE(cuKernelGetFunction, IN_CONTEXT, (handle *function, handle kernel),
    TRY(state_of(kernel, KERNEL)); return function_of(function, kernel, here);)
SERVE(cuKernelGetLibrary, READY, (handle *library, handle kernel),
    TRY(state_of(kernel, KERNEL)); *library = kernel->parent;)
SERVE(cuFuncGetModule, IN_CONTEXT, (handle *module, handle function),
    TRY(state_of(function, FUNCTION)); CHECK(*module = make(MODULE, here), OUT_OF_MEMORY);
    (*module)->parent = function->parent->parent;)
SERVE(cuKernelGetName, READY, (const char **name, handle kernel),
    EITHER(kernel); *name = kernel->entry->name;)
SERVE(cuFuncGetName, READY, (const char **name, handle kernel), EITHER(kernel); *name = kernel->entry->name;)
SERVE(cuKernelGetParamInfo, READY, (handle kernel, size_t index, size_t *offset, size_t *size),
    return parameter_info(kernel, index, offset, size);)
SERVE(cuFuncGetParamInfo, READY, (handle kernel, size_t index, size_t *offset, size_t *size),
    return parameter_info(kernel, index, offset, size);)
SERVE(cuKernelSetCacheConfig, IN_CONTEXT, (handle kernel, int config, int device), EITHER(kernel);)
SERVE(cuFuncSetCacheConfig, IN_CONTEXT, (handle kernel, int config), EITHER(kernel);)
SERVE(cuFuncLoad, IN_CONTEXT, (handle kernel), EITHER(kernel);)
SERVE(cuFuncIsLoaded, IN_CONTEXT, (int *state, handle kernel), EITHER(kernel); *state = 1;)

static int least(int a, int b) { return a < b ? a : b; }

static int threads_max(const struct entry *entry)
{
    int registers = entry->registers > 64 ? (entry->registers + 7) / 8 * 8 : 64;
    return least(entry->threads_max, 65536 / registers / 32 * 32);
}

enum { DYNAMIC_SHARED = 8, CARVEOUT = 9, CLUSTER_IS_NEEDED = 10, CLUSTER_X = 11, NON_PORTABLE_CLUSTER = 14 };

static int attribute_of_kernel(handle kernel, int attribute, int device)
{
    const struct entry *entry = kernel->entry;
    int set = entry->set[device][attribute];
    switch (attribute) {
    case 0: return threads_max(entry);
    case 1: return entry->shared_bytes;
    case 2: return entry->const_bytes;
    case 3: return entry->local_bytes;
    case 4: return entry->registers;
    case 5: case 6: return image_of(kernel)->sm;  /* architecture of the PTX, of the binary */
    case DYNAMIC_SHARED: return set ? set : 49152 - entry->shared_bytes;
    case CARVEOUT: return set - 1;  /* stored plus 1: -1 is the default */
    case CLUSTER_IS_NEEDED: return entry->cluster[0] > 0;
    case 11: case 12: case 13: return set ? set : entry->cluster[attribute - CLUSTER_X];
    }
    return set;
}

static int set_attribute(handle kernel, int attribute, int value, int device)
{
    DEVICE(device);
    EITHER(kernel);
    int most = attribute_of(device, 97) - kernel->entry->shared_bytes;
    bool is_settable = attribute >= DYNAMIC_SHARED && attribute < KERNEL_ATTRIBUTES
        && attribute != CLUSTER_IS_NEEDED;
    bool is_in_range = attribute == DYNAMIC_SHARED ? value >= 0 && value <= most
        : attribute == CARVEOUT ? value >= -1 && value <= 100 : value >= 0;
    begin("set_attribute", is_settable && is_in_range ? SUCCESS : INVALID_VALUE);
    add(",\"attribute\":%d,\"value\":%d,\"device\":%d", attribute, value, device);
    add_text("kernel", kernel->entry->name);
    if (is_settable && is_in_range)
        kernel->entry->set[device][attribute] = value + (attribute == CARVEOUT);
    return end(is_settable && is_in_range ? SUCCESS : INVALID_VALUE);
}

static int get_attribute(int *value, int attribute, handle kernel, int device)
{
    DEVICE(device);
    EITHER(kernel);
    CHECK(attribute >= 0 && attribute < KERNEL_ATTRIBUTES, INVALID_VALUE);
    *value = attribute_of_kernel(kernel, attribute, device);
    return SUCCESS;
}

SERVE(cuKernelGetAttribute, READY, (int *value, int attribute, handle kernel, int device),
    return get_attribute(value, attribute, kernel, device);)
SERVE(cuFuncGetAttribute, IN_CONTEXT, (int *value, int attribute, handle kernel),
    return get_attribute(value, attribute, kernel, here->device);)
SERVE(cuKernelSetAttribute, READY, (int attribute, int value, handle kernel, int device),
    return set_attribute(kernel, attribute, value, device);)
SERVE(cuFuncSetAttribute, IN_CONTEXT, (handle kernel, int attribute, int value),
    return set_attribute(kernel, attribute, value, here->device);)

/* ---- occupancy and launches ---- */

static int blocks_per_multiprocessor(handle kernel, int threads, size_t shared_bytes)
{
    int warps = (threads + 31) / 32, registers = (kernel->entry->registers + 7) / 8 * 8;
    size_t shared = shared_bytes + (size_t)(kernel->entry->shared_bytes + attribute_of(here->device, 111));
    if (threads < 1 || threads > threads_max(kernel->entry))
        return 0;
    int blocks = least(attribute_of(here->device, 106), attribute_of(here->device, 39) / (warps * 32));
    blocks = registers ? least(blocks, 65536 / (registers * warps * 32)) : blocks;
    return shared ? least(blocks, (int)((size_t)attribute_of(here->device, 81) / shared)) : blocks;
}

static int best_block(int *grid, int *threads, handle kernel, size_t (*shared_for)(int), size_t shared_bytes,
                      int limit)
{
    EITHER(kernel);
    int best = 0, most = threads_max(kernel->entry);
    for (int size = limit > 0 ? least(limit, most) : most; size > 0; size = (size - 1) / 32 * 32) {
        if (shared_for)
            OUTSIDE_THE_LOCK(shared_bytes = shared_for(size));
        TRY(state_of_here());
        int blocks = blocks_per_multiprocessor(kernel, size, shared_bytes);
        if (blocks * size > best) {
            best = blocks * size;
            *threads = size, *grid = blocks * attribute_of(here->device, 16);
        }
    }
    return best ? SUCCESS : INVALID_VALUE;
}

SERVE(cuOccupancyMaxActiveBlocksPerMultiprocessor, IN_CONTEXT,
    (int *blocks, handle kernel, int threads, size_t shared_bytes),
    EITHER(kernel); CHECK(threads > 0, INVALID_VALUE);
    *blocks = blocks_per_multiprocessor(kernel, threads, shared_bytes);)
SERVE(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, IN_CONTEXT,
    (int *blocks, handle kernel, int threads, size_t shared_bytes, unsigned flags),
    EITHER(kernel); CHECK(threads > 0, INVALID_VALUE);
    *blocks = blocks_per_multiprocessor(kernel, threads, shared_bytes);)
SERVE(cuOccupancyMaxPotentialBlockSize, IN_CONTEXT,
    (int *grid, int *threads, handle kernel, size_t (*shared_for)(int), size_t shared_bytes, int limit),
    return best_block(grid, threads, kernel, shared_for, shared_bytes, limit);)
SERVE(cuOccupancyMaxPotentialBlockSizeWithFlags, IN_CONTEXT,
    (int *grid, int *threads, handle kernel, size_t (*shared_for)(int), size_t shared_bytes, int limit,
     unsigned flags),
    return best_block(grid, threads, kernel, shared_for, shared_bytes, limit);)
SERVE(cuOccupancyAvailableDynamicSMemPerBlock, IN_CONTEXT,
    (size_t *bytes, handle kernel, int blocks, int threads),
    EITHER(kernel); CHECK(blocks > 0 && threads > 0, INVALID_VALUE);
    int taken = attribute_of(here->device, 111) + kernel->entry->shared_bytes;
    int each = least(attribute_of(here->device, 81) / blocks - taken,
                     attribute_of_kernel(kernel, DYNAMIC_SHARED, here->device));
    *bytes = each > 0 ? (size_t)each : 0;)
SERVE(cuOccupancyMaxPotentialClusterSize, IN_CONTEXT, (int *blocks, handle kernel, const void *launch),
    EITHER(kernel); *blocks = attribute_of(here->device, 120) ? 8 : 0;)
SERVE(cuOccupancyMaxActiveClusters, IN_CONTEXT, (int *clusters, handle kernel, const void *launch),
    EITHER(kernel); *clusters = attribute_of(here->device, 120) ? attribute_of(here->device, 16) / 8 : 0;)

struct launch_attribute { int id, padding; union { int is_on; unsigned dimensions[3]; char bytes[64]; }; };
struct launch {
    unsigned grid[3], block[3], shared_bytes;
    uintptr_t stream;
    const struct launch_attribute *attributes;
    unsigned attribute_count;
};

static int check_launch(const struct launch *launch, handle kernel, const unsigned cluster[3],
                        bool is_cooperative)
{
    int device = here->device, shared_most = attribute_of_kernel(kernel, DYNAMIC_SHARED, device);
    int most_clustered = attribute_of_kernel(kernel, NON_PORTABLE_CLUSTER, device) ? 16 : 8;
    uint64_t threads = 1, blocks = 1, clustered = (uint64_t)cluster[0] * cluster[1] * cluster[2];
    for (int i = 0; i < 3; i++) {
        CHECK(launch->block[i] && launch->block[i] <= (unsigned)attribute_of(device, 2 + i), INVALID_VALUE);
        CHECK(launch->grid[i] && launch->grid[i] <= (unsigned)attribute_of(device, 5 + i), INVALID_VALUE);
        CHECK(clustered == 1 || attribute_of(device, 120), INVALID_CLUSTER_SIZE);
        CHECK(launch->grid[i] % cluster[i] == 0, INVALID_CLUSTER_SIZE);
        threads *= launch->block[i], blocks *= launch->grid[i];
    }
    CHECK(threads <= (uint64_t)threads_max(kernel->entry), INVALID_VALUE);
    CHECK(launch->shared_bytes <= (unsigned)shared_most, INVALID_VALUE);
    CHECK(clustered <= (uint64_t)most_clustered, INVALID_CLUSTER_SIZE);
    int resident = attribute_of(device, 16)
        * blocks_per_multiprocessor(kernel, (int)threads, launch->shared_bytes);
    return is_cooperative && blocks > (uint64_t)resident ? COOPERATIVE_LAUNCH_TOO_LARGE : SUCCESS;
}

/* A launch passes parameters as pointers, or as one buffer in `extra`: 1, buffer, 2, pointer to its size, 0. */
static int find_parameters(const struct entry *entry, void **pointers, void **extra,
                           const unsigned char **found)
{
    const unsigned char *buffer = NULL;
    size_t buffer_bytes = 0;
    for (; !pointers && extra && *extra; extra += 2)
        if ((uintptr_t)*extra == 1)
            buffer = extra[1];
        else
            buffer_bytes = *(size_t *)extra[1];
    for (int i = 0; i < entry->parameter_count; i++) {
        const struct parameter *parameter = &entry->parameters[i];
        CHECK(pointers || (buffer && parameter->offset + parameter->size <= buffer_bytes), INVALID_VALUE);
        found[i] = pointers ? pointers[i] : buffer + parameter->offset;
    }
    return SUCCESS;
}

#define TRUTH(condition) (condition ? "true" : "false")

static int launch_kernel(const struct launch *launch, handle kernel, void **pointers, void **extra)
{
    EITHER(kernel);
    QUEUE_ON(launch->stream);
    CHECK(kernel->kind == KERNEL || kernel->context == here, INVALID_HANDLE);
    const struct entry *entry = kernel->entry;
    const unsigned char *parameters[entry->parameter_count + 1];
    unsigned cluster[3] = {1, 1, 1};
    bool is_cooperative = false, is_programmatic = false;
    for (int i = 0; i < 3 && entry->cluster[0]; i++)
        cluster[i] = (unsigned)entry->cluster[i];
    for (unsigned i = 0; i < launch->attribute_count; i++) {
        const struct launch_attribute *attribute = &launch->attributes[i];
        is_cooperative |= attribute->id == 2 && attribute->is_on;
        is_programmatic |= attribute->id == 6 && attribute->is_on;
        for (int d = 0; d < 3 && attribute->id == 4; d++)
            cluster[d] = attribute->dimensions[d] ? attribute->dimensions[d] : 1;
    }
    int result = error_of(image_of(kernel));
    result = result ? result : check_launch(launch, kernel, cluster, is_cooperative);
    result = result ? result : find_parameters(entry, pointers, extra, parameters);
    begin("launch", result);
    add_text("kernel", entry->name);
    add(",\"grid\":[%u,%u,%u]", launch->grid[0], launch->grid[1], launch->grid[2]);
    add(",\"block\":[%u,%u,%u]", launch->block[0], launch->block[1], launch->block[2]);
    add(",\"cluster\":[%u,%u,%u]", cluster[0], cluster[1], cluster[2]);
    add(",\"shared_bytes\":%u,\"stream\":%llu,\"device\":%d", launch->shared_bytes, (address)launch->stream,
        here->device);
    add(",\"cooperative\":%s,\"programmatic\":%s", TRUTH(is_cooperative), TRUTH(is_programmatic));
    add(",\"captured\":%s,\"parameters\":[", TRUTH(IS_CAPTURING));
    for (int i = 0; !result && i < entry->parameter_count; i++) {
        add(i ? ",\"" : "\"");
        add_hex(parameters[i], entry->parameters[i].size);
        add("\"");
    }
    add("]");
    if (!result && IS_CAPTURING) {
        handle graph = stream->capture;
        char *text;
        if (asprintf(&text, "%s%s\"%s\"", graph->text, graph->count++ ? "," : "", entry->name) > 0)
            graph->text = text;
    }
    return end(result);
}

SERVE(cuLaunchKernel, READY,
    (handle kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
     unsigned shared_bytes, uintptr_t stream, void **parameters, void **extra),
    struct launch launch = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, stream, NULL, 0};
    return launch_kernel(&launch, kernel, parameters, extra);)
SERVE(cuLaunchCooperativeKernel, READY,
    (handle kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
     unsigned shared_bytes, uintptr_t stream, void **parameters),
    struct launch_attribute cooperative = {2, 0, {1}};
    struct launch launch = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, stream, &cooperative, 1};
    return launch_kernel(&launch, kernel, parameters, NULL);)
SERVE(cuLaunchKernelEx, READY, (const struct launch *launch, handle kernel, void **parameters, void **extra),
    return launch_kernel(launch, kernel, parameters, extra);)
