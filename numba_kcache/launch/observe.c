/* Record what NVRTC asks the file system on one thread, and hand over what it reads from private copies of the bytes.
 *
 * Promise  Between `watch` and `unwatch` each file that a hooked NVRTC opens, and each path that it looks up, on this thread
 *          is in the list that `unwatch` returns, with the answer that it got. The bytes in the list are the bytes that it
 *          read. Outside of that, and on other threads, a hooked library behaves as before.
 * Method   The functions that the library imports are replaced in its global offset table. A replacement calls what stood in
 *          the slot before, so that other hooks and sanitizers stay in force. A slot is written once; a page that was made
 *          read-only after relocation (full RELRO) is so again afterwards. The library is never unmapped, and neither is
 *          this module (-z nodelete).
 * Refuses  A library that imports a function which is in none of the lists below could read a file unseen: `observe` returns
 *          the function's name, and writes nothing. A call that reads in a way which cannot be recorded is in the list, as 'o'.
 * Source   System V ABI, AMD64 and AArch64 supplements: relocations; memfd_create(2). Imports of NVRTC 12.9.86,
 *          13.0.88 and 13.5.37. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MOST_BYTES (256l << 20)  /* of a file that is copied */
#define MOST_KEPT (1l << 30)     /* of all files that one watch copies */
#define MOST_EVENTS (1 << 18)
#define MOST_TRIES 3             /* to read a file that changes meanwhile */
#define BUCKETS 1024             /* of paths, since NVRTC asks for each of them several times */

typedef struct Event {
    struct Event *next, *in_bucket;
    char kind;        /* 'r' read, 'm' missing when it was opened, 'l' looked up, 'o' a call that cannot be recorded */
    int error;        /* errno of a call that failed */
    struct stat stat;
    char *data;
    size_t size;
    char path[];
} Event;

typedef struct Watch {
    struct Watch *outer;
    Event *first, **end, *buckets[BUCKETS];
    int count;
    size_t kept;
    bool is_edited, is_lost;
    char *left_out;   /* the folder, with a slash, whose files are not recorded */
} Watch;

static _Thread_local Watch *watch;

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec && a->st_dev == b->st_dev &&
           a->st_ino == b->st_ino && a->st_mode == b->st_mode;
}

static Event **bucket_of(const char *path) {
    unsigned number = 0;
    while (*path)
        number = number * 31 + (unsigned char)*path++;
    return &watch->buckets[number % BUCKETS];
}

static bool is_left_out(const char *path) {
    return watch->left_out && !strncmp(path, watch->left_out, strlen(watch->left_out)) && !strstr(path, "/../");
}

/* The same question with the same answer, if it is in the list already. */
static Event *known(char kind, const char *path, int error, const struct stat *stat) {
    static const struct stat none;
    for (Event *each = *bucket_of(path); each; each = each->in_bucket)
        if (each->kind == kind && each->error == error && is_same(&each->stat, stat ? stat : &none) && !strcmp(each->path, path))
            return each;
    return NULL;
}

/* Add a question to the list, once for each answer. */
static Event *note(char kind, const char *path, int error, const struct stat *stat) {
    path = path ? path : "";
    if (is_left_out(path))
        return NULL;
    Event *same = known(kind, path, error, stat), **bucket = bucket_of(path);
    if (same)
        return same;
    if (watch->count > MOST_EVENTS)  /* of a watch that nobody ended: what it has cannot be used */
        return NULL;
    if (++watch->count > MOST_EVENTS)
        kind = 'o', error = EOVERFLOW;
    size_t length = strlen(path);
    Event *event = calloc(1, sizeof *event + length + 1);
    if (!event) {
        watch->is_lost = true;
        return NULL;
    }
    event->kind = kind, event->error = error;
    if (stat)
        event->stat = *stat;
    memcpy(event->path, path, length);
    *watch->end = event, watch->end = &event->next;
    event->in_bucket = *bucket, *bucket = event;
    return event;
}

/* Replace the words that expand to the time, by others that are not defined. */
static void without_clock(char *data, size_t size) {
    static const char *const words[] = {"__DATE__", "__TIME__", "__TIMESTAMP__"};
    for (int word = 0; word < 3; word++)
        for (char *at = data; (at = memmem(at, size - (at - data), words[word], strlen(words[word]))); at++)
            at[2] = 'X';
}

static char *content(int file, size_t size) {
    char *data = malloc(size + 1);
    size_t at = 0;
    for (ssize_t more = 1; data && more > 0 && at <= size; at += more > 0 ? more : 0) {
        more = pread(file, data + at, size + 1 - at, at);
        if (more < 0 && errno == EINTR)
            more = 1, at--;
    }
    if (data && at != size)
        free(data), data = NULL;
    return data;
}

static bool write_all(int file, const char *data, size_t size) {
    for (size_t at = 0; at < size;) {
        ssize_t more = write(file, data + at, size - at);
        if (more <= 0 && errno != EINTR)
            return false;
        at += more > 0 ? more : 0;
    }
    return lseek(file, 0, SEEK_SET) == 0;
}

/* Record an opened file, and return a private file of its bytes; -1 if the file itself has to be used. */
static int copied(int file, const char *path) {
    struct stat before, after;
    if (is_left_out(path))
        return -1;
    if (fstat(file, &before))
        return note('o', path, errno, NULL), -1;
    if (S_ISDIR(before.st_mode))
        return note('l', path, 0, &before), -1;
    if (!S_ISREG(before.st_mode))
        return note('o', path, ENXIO, &before), -1;
    Event *read = known('r', path, 0, &before);
    char *data = read ? read->data : NULL;  /* it reads the bytes that are in the list once more */
    for (int try = 0; !read && try < MOST_TRIES; try++, before = after) {
        data = content(file, before.st_size);
        if (fstat(file, &after) == 0 && data && is_same(&before, &after))
            break;
        free(data), data = NULL;
    }
    if (!data)
        return note('o', path, EBUSY, &before), -1;
    int copy = (int)syscall(SYS_memfd_create, "header", 1u);  /* MFD_CLOEXEC; glibc has a function from 2.27 on */
    size_t size = before.st_size;
    if (watch->is_edited && !read)
        without_clock(data, size);
    if (copy < 0 || !write_all(copy, data, size)) {
        note('o', path, errno ? errno : EIO, &before), free(read ? NULL : data);
        if (copy >= 0)
            close(copy);
        return -1;
    }
    if (read)
        return copy;
    bool is_kept = (watch->kept += size) <= MOST_KEPT;
    Event *event = note(is_kept ? 'r' : 'o', path, is_kept ? 0 : EFBIG, &before);
    if (!event || !is_kept)
        return free(data), close(copy), -1;
    event->data = data, event->size = size;
    return copy;
}

/* Check whether a file would be read without end: NVRTC would wait at a FIFO, and read a device or 4 GB into memory. */
static bool is_endless(const char *path) {
    struct stat found;
    if (stat(path, &found))
        return false;
    bool is_device = S_ISCHR(found.st_mode) && found.st_rdev != makedev(1, 3), is_large = S_ISREG(found.st_mode) && found.st_size > MOST_BYTES;
    if (!is_device && !is_large && !S_ISFIFO(found.st_mode) && !S_ISBLK(found.st_mode))
        return false;
    note('o', path, is_large ? EFBIG : ENXIO, &found);
    errno = is_large ? EFBIG : ENXIO;
    return true;
}

typedef long (*Call)(long, long, long, long, long, long);

static FILE *on_fopen(Call before, const char *path, const char *mode) {
    FILE *(*open_)(const char *, const char *) = (FILE *(*)(const char *, const char *))before;
    if (!watch || *mode != 'r' || strchr(mode, '+'))
        return open_(path, mode);
    if (is_endless(path))
        return NULL;
    FILE *file = open_(path, mode);
    if (!file) {
        int error = errno;
        note('m', path, error, NULL);
        errno = error;
        return NULL;
    }
    int copy = copied(fileno(file), path);
    FILE *private = copy < 0 ? NULL : fdopen(copy, "r");
    if (private)
        fclose(file);
    else if (copy >= 0)
        close(copy), note('o', path, ENOMEM, NULL);
    return private ? private : file;
}

static int on_open(Call before, const char *path, int flags, int mode) {
    int (*open_)(const char *, int, int) = (int (*)(const char *, int, int))before;
    if (!watch || (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_DIRECTORY | O_PATH))
        return open_(path, flags, mode);
    if (is_endless(path))
        return -1;
    int file = open_(path, flags, mode);
    if (file < 0) {
        int error = errno;
        note('m', path, error, NULL);
        errno = error;
        return file;
    }
    int copy = copied(file, path);
    if (copy >= 0)
        close(file);
    return copy >= 0 ? copy : file;
}

static int looked(int status, const char *path, const struct stat *found) {
    int error = errno;
    if (watch)
        note('l', path, status ? error : 0, status ? NULL : found);
    errno = error;
    return status;
}

static long on_access(Call before, long path, long mode) {
    long status = before(path, mode, 0, 0, 0, 0);
    struct stat found;
    int error = errno;
    if (watch && stat((const char *)path, &found) == (int)status)
        note('l', (const char *)path, status ? error : 0, status ? NULL : &found);
    else if (watch)  /* there, but not accessible */
        note('o', (const char *)path, error, NULL);
    errno = error;
    return status;
}

/* The functions that are replaced. Of `OTHERS` only the call is recorded: what they read is not known. */
#define FILES(use) use(fopen) use(fopen64)
#define OPENS(use) use(open) use(open64)
#define STATS(use) use(stat) use(stat64) use(lstat) use(lstat64)
#define XSTATS(use) use(__xstat) use(__xstat64) use(__lxstat) use(__lxstat64)
#define OTHERS(use) \
    use(opendir) use(readlink) use(realpath) use(statfs) use(fork) use(execve) use(execv) use(execvp) use(popen) use(system) \
    use(mkstemp) use(socket) use(shmget) use(getaddrinfo) use(gethostbyname)
#define ALL(use) FILES(use) OPENS(use) STATS(use) XSTATS(use) OTHERS(use) use(access) use(syscall)
#define NUMBER(name) AT_##name,
enum { ALL(NUMBER) COUNT };
#define LIBRARIES 4

static Call previous[LIBRARIES][COUNT];

#define FILE_IN(library, name) \
    static FILE *name##_in_##library(const char *path, const char *mode) { return on_fopen(previous[library][AT_##name], path, mode); }
#define OPEN_IN(library, name) \
    static int name##_in_##library(const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; \
        va_end(more); \
        return on_open(previous[library][AT_##name], path, flags, mode); \
    }
#define STAT_IN(library, name) \
    static int name##_in_##library(const char *path, struct stat *found) { \
        return looked((int)previous[library][AT_##name]((long)path, (long)found, 0, 0, 0, 0), path, found); \
    }
#define XSTAT_IN(library, name) \
    static int name##_in_##library(int version, const char *path, struct stat *found) { \
        return looked((int)previous[library][AT_##name](version, (long)path, (long)found, 0, 0, 0), path, found); \
    }
#define OTHER_IN(library, name) \
    static long name##_in_##library(long a, long b, long c, long d, long e, long f) { \
        if (watch) \
            note('o', #name, 0, NULL); \
        return previous[library][AT_##name](a, b, c, d, e, f); \
    }
#define ADDRESS_IN(library, name) (void *)name##_in_##library,

static bool is_of_files(long number) {
    switch (number) {
    case SYS_openat: case SYS_execve: case SYS_newfstatat: case SYS_readlinkat: case SYS_faccessat: case SYS_statx:
    case SYS_name_to_handle_at: case SYS_getdents64: case SYS_process_vm_readv:
#ifdef SYS_open
    case SYS_open: case SYS_stat: case SYS_lstat: case SYS_access: case SYS_readlink: case SYS_fork: case SYS_vfork:
#endif
#ifdef SYS_openat2
    case SYS_openat2:
#endif
        return true;
    }
    return false;
}

#define LIBRARY(library) \
    FILES(FILE_##library) OPENS(OPEN_##library) STATS(STAT_##library) XSTATS(XSTAT_##library) OTHERS(OTHER_##library) \
    static long access_in_##library(long path, long mode) { return on_access(previous[library][AT_access], path, mode); } \
    static long syscall_in_##library(long number, long a, long b, long c, long d, long e, long f) { \
        if (watch && is_of_files(number)) \
            note('o', "syscall", 0, NULL); \
        return ((long (*)(long, long, long, long, long, long, long))previous[library][AT_syscall])(number, a, b, c, d, e, f); \
    }
#define FILE_0(name) FILE_IN(0, name)
#define FILE_1(name) FILE_IN(1, name)
#define FILE_2(name) FILE_IN(2, name)
#define FILE_3(name) FILE_IN(3, name)
#define OPEN_0(name) OPEN_IN(0, name)
#define OPEN_1(name) OPEN_IN(1, name)
#define OPEN_2(name) OPEN_IN(2, name)
#define OPEN_3(name) OPEN_IN(3, name)
#define STAT_0(name) STAT_IN(0, name)
#define STAT_1(name) STAT_IN(1, name)
#define STAT_2(name) STAT_IN(2, name)
#define STAT_3(name) STAT_IN(3, name)
#define XSTAT_0(name) XSTAT_IN(0, name)
#define XSTAT_1(name) XSTAT_IN(1, name)
#define XSTAT_2(name) XSTAT_IN(2, name)
#define XSTAT_3(name) XSTAT_IN(3, name)
#define OTHER_0(name) OTHER_IN(0, name)
#define OTHER_1(name) OTHER_IN(1, name)
#define OTHER_2(name) OTHER_IN(2, name)
#define OTHER_3(name) OTHER_IN(3, name)
#define ADDRESS_0(name) ADDRESS_IN(0, name)
#define ADDRESS_1(name) ADDRESS_IN(1, name)
#define ADDRESS_2(name) ADDRESS_IN(2, name)
#define ADDRESS_3(name) ADDRESS_IN(3, name)
LIBRARY(0)
LIBRARY(1)
LIBRARY(2)
LIBRARY(3)

static void *const replacements[LIBRARIES][COUNT] = {{ALL(ADDRESS_0)}, {ALL(ADDRESS_1)}, {ALL(ADDRESS_2)}, {ALL(ADDRESS_3)}};
#define NAME(name) #name,
static const char *const names[COUNT] = {ALL(NAME)};

/* Functions that read nothing by its path, sorted. Those that read an opened file are here: opening it was seen. */
static const char harmless[] =
    "_IO_getc _IO_putc _ITM_RU1 _ITM_RU8 _ITM_addUserCommitAction _ITM_deregisterTMCloneTable _ITM_memcpyRnWt _ITM_memcpyRtWn "
    "_ITM_registerTMCloneTable _ZGTtdlPv _ZGTtnam __ctype_b_loc __ctype_get_mb_cur_max __ctype_tolower_loc __cxa_atexit "
    "__cxa_finalize __duplocale __errno_location __freelocale __fxstat __fxstat64 __gmon_start__ __isnan __isoc99_fscanf "
    "__isoc99_sscanf __iswctype_l __newlocale __nl_langinfo_l __pthread_key_create __sched_cpucount __stack_chk_fail __strcoll_l "
    "__strdup __strftime_l __strtod_l __strtof_l __strtok_r __strxfrm_l __tls_get_addr __towlower_l __towupper_l __uselocale "
    "__wcscoll_l __wcsftime_l __wcsxfrm_l __wctype_l __xpg_strerror_r _exit _setjmp abort accept acos alarm asin atan atan2 bind "
    "bind_textdomain_codeset bindtextdomain bsearch btowc calloc ceil chdir chmod clock close closedir connect cos cosh ctime "
    "dgettext difftime dl_iterate_phdr dladdr dlclose dlerror dlopen dlsym dup dup2 erf exit exp exp2 expf fabs fclose fcntl fdopen "
    "feclearexcept fegetenv feof ferror fesetenv fetestexcept fflush fgetc fgets fileno flock floor fmod fprintf fputc fputs fread "
    "free freeaddrinfo freelocale frexpl fscanf fseek fseeko64 fstatfs ftell ftello64 ftruncate fwrite gai_strerror get_nprocs getc "
    "getcwd getegid getentropy getenv geteuid getgid gethostname getnameinfo getpagesize getpeername getpid getpwnam getpwnam_r "
    "getpwuid getpwuid_r getrlimit getrusage getsockname getsockopt gettext gettimeofday getuid getwc gmtime gmtime_r iconv "
    "iconv_close iconv_open ioctl isalnum isalpha isatty iscntrl islower isprint ispunct isspace isupper iswalpha iswdigit isxdigit "
    "kill link listen localeconv localtime_r log log10 log1p log2 log2f logb longjmp lseek lseek64 mallinfo malloc mblen mbrtowc "
    "mbsnrtowcs mbsrtowcs mbtowc memchr memcmp memcpy memmove memset mkdir mlock mmap modf mprotect munmap nanosleep newlocale "
    "nextafter perror pipe poll posix_madvise posix_memalign pow printf pthread_attr_destroy pthread_attr_init "
    "pthread_attr_setdetachstate pthread_attr_setinheritsched pthread_attr_setschedparam pthread_attr_setschedpolicy "
    "pthread_attr_setstacksize pthread_cond_broadcast pthread_cond_destroy pthread_cond_init pthread_cond_signal "
    "pthread_cond_timedwait pthread_cond_wait pthread_create pthread_detach pthread_exit pthread_getspecific pthread_join "
    "pthread_key_create pthread_key_delete pthread_kill pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock "
    "pthread_mutex_trylock pthread_mutex_unlock pthread_mutexattr_destroy pthread_mutexattr_init pthread_mutexattr_settype "
    "pthread_once pthread_rwlock_destroy pthread_rwlock_init pthread_rwlock_rdlock pthread_rwlock_unlock pthread_rwlock_wrlock "
    "pthread_self pthread_setspecific pthread_sigmask putc putchar puts putwc qsort raise rand rand_r read readdir realloc recvfrom "
    "recvmsg remove rename rewind rmdir round sched_get_priority_max sched_get_priority_min sched_getaffinity select sem_destroy "
    "sem_init sem_post sem_trywait sem_wait sendmsg sendto setenv setlocale setrlimit setsid setsockopt setvbuf shmat shmdt shutdown "
    "sigaction sigaddset sigaltstack sigemptyset sigfillset signal sigprocmask sin sinh snprintf sprintf sqrt srand sscanf stderr "
    "stdin stdout stpcpy strcasecmp strcat strchr strcmp strcpy strcspn strdup strerror strerror_r strftime strlen strncat strncmp "
    "strncpy strnlen strpbrk strrchr strsep strsignal strspn strstr strtod strtof strtok strtok_r strtol strtold_l strtoll strtoul "
    "strtoull symlink sysconf tan tanh tcgetattr tcsetattr time tolower toupper trunc uname ungetc ungetwc unlink uselocale usleep "
    "vfprintf vsnprintf vsprintf wait wait4 waitpid wcrtomb wcscmp wcslen wcsnrtombs wctob wmemchr wmemcmp wmemcpy wmemmove wmemset "
    "write writev ";

static bool is_harmless(const char *name) {
    if (!strncmp(name, "__nvrtc_builtins_", 17) || !strncmp(name, "_ZTH", 4))
        return true;
    char word[64];
    int length = snprintf(word, sizeof word, " %s ", name);
    return length < (int)sizeof word && (strstr(harmless, word) || !strncmp(harmless, word + 1, length - 1));
}

typedef struct {
    uintptr_t address, base;  /* of a function of the library; where the library is mapped */
    const ElfW(Phdr) *headers;
    int count;
} Found;

static int is_its(struct dl_phdr_info *info, size_t size, void *data) {
    Found *found = data;
    for (int each = 0; each < info->dlpi_phnum; each++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[each];
        if (header->p_type == PT_LOAD && found->address - info->dlpi_addr - header->p_vaddr < header->p_memsz) {
            found->base = info->dlpi_addr, found->headers = info->dlpi_phdr, found->count = info->dlpi_phnum;
            return 1;
        }
    }
    return 0;
}

static bool is_in(const Found *found, int kind, uintptr_t address) {
    for (int each = 0; each < found->count; each++)
        if ((int)found->headers[each].p_type == kind &&
            address - found->base - found->headers[each].p_vaddr < found->headers[each].p_memsz)
            return true;
    return false;
}

#if defined(__x86_64__)
#define IS_OF_SYMBOL(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT || (type) == R_X86_64_64)
#elif defined(__aarch64__)
#define IS_OF_SYMBOL(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT || (type) == R_AARCH64_ABS64)
#endif

typedef struct {
    const ElfW(Rela) *rows;
    size_t count;
} Table;

/* Write one slot of the library of a number. */
static bool write_slot(const Found *found, int number, void **slot, int which) {
    void *there = *slot, *replacement = replacements[number][which];
    Call *known = &previous[number][which];  /* the function that stood in slots of this name before */
    if (there == replacement)
        return true;
    if (is_in(found, PT_LOAD, (uintptr_t)there) || !there) {  /* not bound yet: the stub would overwrite the slot */
        there = dlsym(RTLD_DEFAULT, names[which]);
        if (!there)
            return false;
    }
    if (*known && *known != (Call)there)
        return false;
    *known = (Call)there;
    uintptr_t page = sysconf(_SC_PAGESIZE), start = (uintptr_t)slot & ~(page - 1);
    bool is_read_only = is_in(found, PT_GNU_RELRO, (uintptr_t)slot);
    if (is_read_only && mprotect((void *)start, page, PROT_READ | PROT_WRITE))
        return false;
    __atomic_store_n(slot, replacement, __ATOMIC_RELEASE);
    if (is_read_only)
        mprotect((void *)start, page, PROT_READ);
    return true;
}

#define MOST_SLOTS 128

static struct Hooked {  /* a library that stays mapped: where it is, and its slots that were written */
    uintptr_t base;
    int count;
    void **slots[MOST_SLOTS];
    int which[MOST_SLOTS];
} libraries[LIBRARIES];
static int library_count;

/* Replace the functions of the library that contains an address. Returns the reason why not; "" if they are replaced. */
static const char *hook(uintptr_t address, char *reason, size_t size) {
#ifdef IS_OF_SYMBOL
    Found found = {.address = address};
    int number = 0;
    if (!dl_iterate_phdr(is_its, &found))
        return "no library is mapped there";
    while (number < library_count && libraries[number].base != found.base)
        number++;
    if (number == LIBRARIES)
        return "the process has more NVRTCs than can be observed";
    struct Hooked *hooked = &libraries[number];
    if (number < library_count) {  /* another hooker may have written its slots since */
        for (int each = 0; each < hooked->count; each++)
            if (!write_slot(&found, number, hooked->slots[each], hooked->which[each]))
                return snprintf(reason, size, "its import %s cannot be replaced", names[hooked->which[each]]), reason;
        return "";
    }
    Dl_info its;
    if (!dladdr((void *)address, &its) || !dlopen(its.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE))
        return "it cannot be kept mapped";
    const ElfW(Dyn) *dynamic = NULL;
    for (int each = 0; each < found.count; each++)
        if (found.headers[each].p_type == PT_DYNAMIC)
            dynamic = (const void *)(found.base + found.headers[each].p_vaddr);
    const ElfW(Sym) *symbols = NULL;
    const char *texts = NULL;
    Table tables[2] = {{0}};
    size_t relative = 0;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t value = dynamic->d_un.d_val, place = value < found.base ? found.base + value : value;
        switch (dynamic->d_tag) {  /* glibc adds the base to addresses, other linkers do not */
        case DT_SYMTAB: symbols = (const void *)place; break;
        case DT_STRTAB: texts = (const void *)place; break;
        case DT_JMPREL: tables[0].rows = (const void *)place; break;
        case DT_PLTRELSZ: tables[0].count = value / sizeof(ElfW(Rela)); break;
        case DT_RELA: tables[1].rows = (const void *)place; break;
        case DT_RELASZ: tables[1].count = value / sizeof(ElfW(Rela)); break;
        case DT_RELACOUNT: relative = value; break;
        }
    }
    if (!symbols || !texts || !(tables[0].rows || tables[1].rows))
        return "it has no table of its imports";
    hooked->count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int table = 0; table < 2; table++)
            for (size_t each = table ? relative : 0; tables[table].rows && each < tables[table].count; each++) {
                const ElfW(Rela) *row = &tables[table].rows[each];
                const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(row->r_info)];
                const char *name = texts + symbol->st_name;
                int which = 0;
                if (!IS_OF_SYMBOL(ELF64_R_TYPE(row->r_info)) || symbol->st_shndx != SHN_UNDEF || !*name)
                    continue;
                while (which < COUNT && strcmp(name, names[which]))
                    which++;
                if (pass == 0 && which == COUNT && !is_harmless(name))
                    return snprintf(reason, size, "it imports %s", name), reason;
                if (pass == 0 || which == COUNT)
                    continue;
                void **slot = (void **)(found.base + row->r_offset);
                if (hooked->count == MOST_SLOTS || !write_slot(&found, number, slot, which))
                    return snprintf(reason, size, "its import %s cannot be replaced", name), reason;
                hooked->slots[hooked->count] = slot, hooked->which[hooked->count++] = which;
            }
    if (!hooked->count)
        return "it imports no function that opens a file";
    hooked->base = found.base;
    library_count = number < library_count ? library_count : number + 1;  /* another thread may have done the same */
    return "";
#else
    return "this processor is not supported";
#endif
}

/* observe(address) -> the reason why the library that contains the address cannot be observed; "" if it can. */
PyObject *observe(PyObject *module, PyObject *address) {
    char reason[128];
    unsigned long long number = PyLong_AsUnsignedLongLong(address);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(hook(number, reason, sizeof reason));
}

/* watch(is_edited) begins to record on this thread; with `is_edited` headers are handed over without __DATE__ and __TIME__. */
PyObject *begin_watch(PyObject *module, PyObject *is_edited) {
    Watch *begun = calloc(1, sizeof *begun);
    if (!begun)
        return PyErr_NoMemory();
    begun->outer = watch, begun->end = &begun->first, begun->is_edited = PyObject_IsTrue(is_edited);
    watch = begun;
    Py_RETURN_NONE;
}

/* leave_out(folder) records nothing of files below a folder, given with a slash, in the innermost watch of this thread. */
PyObject *leave_out(PyObject *module, PyObject *folder) {
    const char *text = PyBytes_AsString(folder);
    if (!text || !watch)
        return text ? PyErr_SetString(PyExc_RuntimeError, "nothing is recorded on this thread"), NULL : NULL;
    free(watch->left_out);
    watch->left_out = strdup(text);
    Py_RETURN_NONE;
}

static PyObject *event_row(const Event *event) {
    const struct stat *stat = &event->stat;
    return Py_BuildValue("(Cyi(LLLKKi)y#)", event->kind, event->path, event->error, (long long)stat->st_size,
                         stat->st_mtim.tv_sec * 1000000000ll + stat->st_mtim.tv_nsec,
                         stat->st_ctim.tv_sec * 1000000000ll + stat->st_ctim.tv_nsec, (unsigned long long)stat->st_dev,
                         (unsigned long long)stat->st_ino, (int)stat->st_mode, event->data ? event->data : "",
                         (Py_ssize_t)event->size);
}

/* unwatch() -> rows (kind, path, errno, (size, mtime, ctime, device, inode, mode), bytes), of the innermost watch. */
PyObject *end_watch(PyObject *module, PyObject *unused) {
    Watch *ended = watch;
    if (!ended)
        return PyErr_SetString(PyExc_RuntimeError, "nothing is recorded on this thread"), NULL;
    watch = ended->outer;
    PyObject *rows = ended->is_lost ? PyErr_NoMemory() : PyList_New(0);
    for (Event *event = ended->first, *next; event; event = next) {
        PyObject *row = rows ? event_row(event) : NULL;
        if (rows && (!row || PyList_Append(rows, row)))
            Py_CLEAR(rows);
        Py_XDECREF(row);
        next = event->next;
        free(event->data), free(event);
    }
    free(ended->left_out), free(ended);
    return rows;
}
