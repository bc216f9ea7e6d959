/* The parts that every call of the fake driver uses: handles, the log, faults, the table of served functions.
 *
 * Promise     A handle that was never given out, or is dead, or whose context has ended, is recognised and
 *             never followed. A call that a rule of KC_FAKE_FAIL names fails before it does anything.
 * Method      Handles point into one array whose slots are never used twice. A definition with SERVE leaves
 *             its name and address in a section of its own, and cuGetProcAddress searches that section.
 * Not here    The calls themselves (fake_driver.c, fake_device.h), and how images are read (fake_cubin.h).
 * Source      The errors of dead handles are those of driver 580. In cases in which that driver crashed (a library
 *             unloaded twice, a stream of an ended context, a handle that never existed) this one gives an error.
 */
#define _GNU_SOURCE
#include "fake_cubin.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

enum result {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
    INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209,
    FILE_NOT_FOUND = 301, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500,
    CONTEXT_IS_DESTROYED = 709, HOST_MEMORY_NOT_REGISTERED = 713,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, NOT_SUPPORTED = 801, STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901, STREAM_CAPTURE_IMPLICIT = 906, INVALID_CLUSTER_SIZE = 912,
};
enum { MAX_OBJECTS = 1 << 18, MAX_CONTEXTS = 32, MAX_UNSERVED = 1000, MAX_FAULTS = 32 };
enum { THREAD_STREAM = 2 };  /* without an object, like 0 and 1 (the legacy stream): every context has it */
enum { RELAXED = 2 };  /* mode of a capture, of a thread; 0: global, 1: of one thread */
typedef unsigned long long address;

/* ---- objects, to which handles point ---- */

enum kind { NOTHING, CONTEXT, STREAM, EVENT, LIBRARY, MODULE, KERNEL, FUNCTION, GRAPH, GRAPH_EXEC, POOL };

typedef struct object {
    enum kind kind;
    bool is_dead, is_active;    /* active: a context between its first retain and its end; a graph during its capture */
    bool is_spoiled;            /* a graph: a forbidden call was made during its capture */
    int device, priority;
    pthread_t thread;           /* graph: the thread that began its capture */
    unsigned flags, epoch;      /* flags of a graph: the mode of its capture; epoch: that of its context when it was made; a context's grows when it ends */
    long count;                 /* context: references; graph: launches */
    address recorded_ns;        /* event: time of the record */
    struct object *context;     /* the object is dead when this context has ended; NULL: no context */
    struct object *parent;      /* function: kernel; kernel, module: library; exec: graph; graph: stream */
    struct object *capture;     /* stream, event: the graph that is being captured */
    struct image *image;        /* library */
    struct entry *entry;        /* kernel, function */
    char *text;                 /* graph: names of the kernels launched in it, as JSON */
} *handle;

static struct object objects[MAX_OBJECTS];
static handle primaries[MAX_DEVICES];
static int captures;  /* begun and not ended */
static size_t objects_made;
static int compute_capabilities[MAX_DEVICES], device_count, driver_version;
static __thread handle contexts_here[MAX_CONTEXTS];
static __thread int depth_here, capture_mode_here;
static handle here;  /* the current context of the call in progress; enter() sets it, under the lock */

static handle make(enum kind kind, handle context)
{
    if (objects_made == MAX_OBJECTS)
        return NULL;
    handle object = &objects[objects_made++];
    object->kind = kind, object->context = context;
    if (context)
        object->epoch = context->epoch, object->device = context->device;
    return object;
}

/* SUCCESS, or the error that a call with this handle returns. */
static int state_of(const void *handle, enum kind kind)
{
    size_t offset = (size_t)((const char *)handle - (const char *)objects);
    const struct object *object = handle;
    if (object < objects || offset >= objects_made * sizeof *objects || offset % sizeof *objects
        || object->kind != kind)
        return kind == CONTEXT ? INVALID_CONTEXT : INVALID_HANDLE;
    const struct object *context = object->context;
    if (!object->is_dead && (!context || (!context->is_dead && context->epoch == object->epoch)))
        return SUCCESS;
    switch (kind) {
    case CONTEXT: return CONTEXT_IS_DESTROYED;
    case STREAM: return object->is_dead ? INVALID_CONTEXT : CONTEXT_IS_DESTROYED;
    case EVENT: return CONTEXT_IS_DESTROYED;
    default: return INVALID_HANDLE;
    }
}

/* ---- the log ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1;
static char calling[96], *line;
static size_t line_used, line_room;

__attribute__((format(printf, 1, 2))) static void add(const char *format, ...)
{
    for (;;) {
        va_list arguments;
        va_start(arguments, format);
        char *to = line ? line + line_used : NULL;
        size_t length = (size_t)vsnprintf(to, line_room - line_used, format, arguments);
        va_end(arguments);
        if (line_used + length < line_room) {
            line_used += length;
            return;
        }
        line_room = 2 * (line_used + length + 256);
        line = realloc(line, line_room);
    }
}

static void add_text(const char *name, const char *value)
{
    add(",\"%s\":\"", name);
    for (; *value; value++)
        if (*value == '"' || *value == '\\')
            add("\\%c", *value);
        else if ((unsigned char)*value < ' ' || (unsigned char)*value > '~')
            add("\\u%04x", (unsigned char)*value);
        else
            add("%c", *value);
    add("\"");
}

static void add_hex(const unsigned char *bytes, size_t size)
{
    for (; size >= 8; size -= 8, bytes += 8)  /* eight at a time: launches stay fast */
        add("%02x%02x%02x%02x%02x%02x%02x%02x", bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5],
            bytes[6], bytes[7]);
    while (size--)
        add("%02x", *bytes++);
}

static void begin(const char *event, int result)
{
    line_used = 0;
    add("{\"event\":\"%s\",\"call\":\"%s\",\"pid\":%d,\"result\":%d", event, calling, (int)getpid(), result);
}

static int end(int result)
{
    add("}\n");
    if (log_file >= 0 && write(log_file, line, line_used) < 0)  /* one write: lines of several processes do not mix */
        log_file = -1;
    return result;
}

#define NOTE(event, result, ...) (begin(event, result), add(__VA_ARGS__), end(result))

/* ---- entering and leaving a call ---- */

static struct fault { char name[64]; int code; long nth, seen; } faults[MAX_FAULTS];  /* nth: which call; 0: all */
static int fault_count;
static bool is_configured, is_initialised, is_forked;

static void after_fork(void)
{
    pthread_mutex_init(&lock, NULL);  /* a thread that holds it is not in the child */
    is_forked = is_initialised;
    is_configured = is_initialised;  /* before cuInit, a child may have set other variables */
}

static int setting(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value && *value ? atoi(value) : otherwise;
}

static void read_faults(const char *rules)
{
    while (rules && *rules) {
        struct fault *fault = &faults[fault_count++];
        size_t length = strcspn(rules, ",");
        char nth[24] = "*";
        if (fault_count == MAX_FAULTS || length > 100
            || sscanf(rules, "%63[^:,]:%d@%23[^,]", fault->name, &fault->code, nth) < 2) {
            fprintf(stderr, "cannot use KC_FAKE_FAIL: '%s' is no rule\n  hint: function:code@n\n", rules);
            abort();
        }
        fault->nth = *nth == '*' ? 0 : atol(nth);
        rules += length + (rules[length] == ',');
    }
}

static void configure(void)
{
    static bool is_known_to_forks;
    const char *path = getenv("KC_FAKE_LOG");
    is_configured = true;
    fault_count = 0;
    log_file = path && *path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    driver_version = setting("KC_FAKE_DRIVER_VERSION", 13000);
    device_count = setting("KC_FAKE_DEVICES", 1);
    device_count = device_count < 0 ? 0 : device_count > MAX_DEVICES ? MAX_DEVICES : device_count;
    for (int i = 0; i < device_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "KC_FAKE_CC%d", i);
        compute_capabilities[i] = setting(name, 90);
        primaries[i] = make(CONTEXT, NULL);
        primaries[i]->device = i;
    }
    read_faults(getenv("KC_FAKE_FAIL"));
    if (!is_known_to_forks)
        is_known_to_forks = !pthread_atfork(NULL, NULL, after_fork);
}

enum needs { ALWAYS, UNLESS_FORKED, READY, IN_CONTEXT };

static int state_of_here(void)
{
    here = depth_here ? contexts_here[depth_here - 1] : NULL;
    return !here ? INVALID_CONTEXT : here->is_dead || !here->is_active ? CONTEXT_IS_DESTROYED : SUCCESS;
}

static int enter(const char *name, enum needs needs)
{
    pthread_mutex_lock(&lock);
    if (!is_configured)
        configure();
    const char *suffix = strstr(name, "_v");  /* rules and the log have names without the ABI's version */
    snprintf(calling, sizeof calling, "%.*s", suffix ? (int)(suffix - name) : 90, name);
    if (is_forked && needs)
        return NOT_INITIALIZED;
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].name, calling) && (++faults[i].seen == faults[i].nth || !faults[i].nth))
            return NOTE("fault", faults[i].code, ",\"seen\":%ld", faults[i].seen);
    int state = state_of_here();
    return needs >= READY && !is_initialised ? NOT_INITIALIZED : needs == IN_CONTEXT ? state : SUCCESS;
}

static void leave(const int *entered) { (void)entered; pthread_mutex_unlock(&lock); }

/* Define a function that the driver serves. The definition also adds its name, its address and the driver version
 * that introduced it to the table that cuGetProcAddress searches. A body without `return` returns SUCCESS. */
struct served { const char *name; int since; void *function; };
extern const struct served *const __start_served[], *const __stop_served[];
#define SERVE_SINCE(version, name, needs, parameters, ...)                                                   \
    __attribute__((visibility("default"))) int name parameters;                                              \
    static const struct served served_##name = {#name, version, (void *)name};                               \
    static const struct served *const listed_##name                                                          \
        __attribute__((used, section("served"))) = &served_##name;                                           \
    int name parameters                                                                                      \
    {                                                                                                        \
        __attribute__((cleanup(leave))) int entered = enter(#name, needs);                                   \
        if (entered)                                                                                         \
            return entered;                                                                                  \
        __VA_ARGS__                                                                                          \
        return SUCCESS;                                                                                      \
    }
#define SERVE(name, needs, parameters, ...) SERVE_SINCE(0, name, needs, parameters, __VA_ARGS__)
#define CHECK(condition, result) do { if (!(condition)) return result; } while (0)
#define TRY(call) do { int tried = call; if (tried) return tried; } while (0)
/* For callbacks, which may be Python functions that call the driver. */
#define OUTSIDE_THE_LOCK(call) (pthread_mutex_unlock(&lock), call, pthread_mutex_lock(&lock))

/* Functions that were requested and are not served. Each has a body of its own: the body knows which one was called. */
static char *unserved_names[MAX_UNSERVED];
static int unserved_count;

static int unserved(int index)
{
    __attribute__((cleanup(leave))) int entered = enter(unserved_names[index], UNLESS_FORKED);
    return entered ? entered : NOTE("unknown", NOT_SUPPORTED, " ");
}

#define ONE(a, b, c) static int unserved_##a##b##c(void) { return unserved(1##a##b##c - 1000); }
#define TEN(a, b) ONE(a, b, 0) ONE(a, b, 1) ONE(a, b, 2) ONE(a, b, 3) ONE(a, b, 4) ONE(a, b, 5) ONE(a, b, 6) \
    ONE(a, b, 7) ONE(a, b, 8) ONE(a, b, 9)
#define HUNDRED(a) TEN(a, 0) TEN(a, 1) TEN(a, 2) TEN(a, 3) TEN(a, 4) TEN(a, 5) TEN(a, 6) TEN(a, 7) TEN(a, 8) \
    TEN(a, 9)
#define THOUSAND HUNDRED(0) HUNDRED(1) HUNDRED(2) HUNDRED(3) HUNDRED(4) HUNDRED(5) HUNDRED(6) HUNDRED(7) \
    HUNDRED(8) HUNDRED(9)
THOUSAND
#undef ONE
#define ONE(a, b, c) unserved_##a##b##c,
static int (*const unserved_bodies[MAX_UNSERVED])(void) = {THOUSAND};
