/* Functions of the C library that fail on request, for files below one directory.
 *
 * Promise     Other paths and other functions work as always, and so does everything while nothing is armed.
 * Method      The library is preloaded, so its functions are found first; they call those of the C library.
 *             The path of a file descriptor is read from /proc/self/fd.
 * Use         fail_calls(directory, call, error, every): from now on, every `every`-th call of the function
 *             `call`, a number in the enum below, fails with errno `error`. fail_calls("", -1, 0, 1) disarms.
 *             failed_calls() is the number of failures since then.
 * Source      ld.so(8), LD_PRELOAD. glibc 2.33 and later: stat and its like are functions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, FDATASYNC, RENAME, UNLINK, STAT, MKDIR };

static char root[4096];
static int armed = -1, error_code, interval;  /* armed: a number of the enum, -1 for none */
static long matching, failed;                 /* calls since it was armed */

void fail_calls(const char *directory, int call, int error, int every) {
    snprintf(root, sizeof root, "%s", directory);
    armed = call, error_code = error, interval = every;
    matching = failed = 0;
}

long failed_calls(void) { return failed; }

static int fails(int call, const char *path) {
    if (call != armed || strncmp(path, root, strlen(root)) != 0) return 0;
    if (__atomic_add_fetch(&matching, 1, __ATOMIC_RELAXED) % interval != 0) return 0;
    __atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);
    errno = error_code;
    return 1;
}

static int fails_at(int call, int fd) {
    char link[64], path[4096];
    if (call != armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return fails(call, path);
}

/* The path of a name in an open directory, into `path`. */
static const char *below(int directory, const char *name, char *path, size_t size) {
    char link[64];
    if (name[0] == '/' || directory == AT_FDCWD) return name;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return name;
    snprintf(path + length, size - (size_t)length, "/%s", name);
    return path;
}

#define NEXT(type, name, ...)                                            \
    static type (*next)(__VA_ARGS__);                                    \
    if (next == NULL) next = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPENS(name)                                                      \
    int name(const char *path, int flags, ...) {                         \
        NEXT(int, #name, const char *, int, ...);                        \
        va_list rest;                                                    \
        va_start(rest, flags);                                           \
        mode_t mode = va_arg(rest, mode_t);                              \
        va_end(rest);                                                    \
        return fails(OPEN, path) ? -1 : next(path, flags, mode);         \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                   \
    int name(int directory, const char *path, int flags, ...) {          \
        NEXT(int, #name, int, const char *, int, ...);                   \
        char whole[8192];                                                \
        va_list rest;                                                    \
        va_start(rest, flags);                                           \
        mode_t mode = va_arg(rest, mode_t);                              \
        va_end(rest);                                                    \
        if (fails(OPEN, below(directory, path, whole, sizeof whole))) return -1; \
        return next(directory, path, flags, mode);                       \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t read(int fd, void *data, size_t size) {
    NEXT(ssize_t, "read", int, void *, size_t);
    return fails_at(READ, fd) ? -1 : next(fd, data, size);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    NEXT(ssize_t, "pread64", int, void *, size_t, off64_t);
    return fails_at(READ, fd) ? -1 : next(fd, data, size, at);
}

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(ssize_t, "write", int, const void *, size_t);
    return fails_at(WRITE, fd) ? -1 : next(fd, data, size);
}

int fdatasync(int fd) {
    NEXT(int, "fdatasync", int);
    return fails_at(FDATASYNC, fd) ? -1 : next(fd);
}

int rename(const char *from, const char *to) {
    NEXT(int, "rename", const char *, const char *);
    return fails(RENAME, from) ? -1 : next(from, to);
}

int renameat(int first, const char *from, int second, const char *to) {
    NEXT(int, "renameat", int, const char *, int, const char *);
    char whole[8192];
    return fails(RENAME, below(first, from, whole, sizeof whole)) ? -1 : next(first, from, second, to);
}

int unlinkat(int directory, const char *path, int flags) {
    NEXT(int, "unlinkat", int, const char *, int);
    char whole[8192];
    return fails(UNLINK, below(directory, path, whole, sizeof whole)) ? -1 : next(directory, path, flags);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    NEXT(int, "mkdirat", int, const char *, mode_t);
    char whole[8192];
    return fails(MKDIR, below(directory, path, whole, sizeof whole)) ? -1 : next(directory, path, mode);
}

int fstatat64(int directory, const char *path, struct stat64 *status, int flags) {
    NEXT(int, "fstatat64", int, const char *, struct stat64 *, int);
    char whole[8192];
    return fails(STAT, below(directory, path, whole, sizeof whole)) ? -1 : next(directory, path, status, flags);
}

int unlink(const char *path) {
    NEXT(int, "unlink", const char *);
    return fails(UNLINK, path) ? -1 : next(path);
}

int mkdir(const char *path, mode_t mode) {
    NEXT(int, "mkdir", const char *, mode_t);
    return fails(MKDIR, path) ? -1 : next(path, mode);
}

int stat64(const char *path, struct stat64 *status) {
    NEXT(int, "stat64", const char *, struct stat64 *);
    return fails(STAT, path) ? -1 : next(path, status);
}

int lstat64(const char *path, struct stat64 *status) {
    NEXT(int, "lstat64", const char *, struct stat64 *);
    return fails(STAT, path) ? -1 : next(path, status);
}

int fstat64(int fd, struct stat64 *status) {
    NEXT(int, "fstat64", int, struct stat64 *);
    return fails_at(STAT, fd) ? -1 : next(fd, status);
}
