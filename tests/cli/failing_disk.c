/* A disk that fails when it is told to, under a process that knows nothing of it: LD_PRELOAD=failing_disk.so.

   FAILING_DISK names a file. Each of its lines is a call, an errno and a part of a path: «fdatasync 5 /commitlog/».
   Calls on files with that in their path fail with that errno, as long as the line stands there. What the kernel has
   is not touched: a write that fails has written nothing, a sync that fails has synced nothing. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(kind, name) ((kind)dlsym(RTLD_NEXT, name))

typedef int (*open_call)(const char *, int, ...);
typedef int (*sync_call)(int);
typedef int (*truncate_call)(int, off_t);
typedef int (*allocate_call)(int, off_t, off_t);
typedef ssize_t (*pwrite_call)(int, const void *, size_t, off_t);
typedef ssize_t (*pread_call)(int, void *, size_t, off_t);

/* The errno with which this call fails now; 0 if it does not. */
static int failure(const char *call, const char *path) {
    const char *orders = getenv("FAILING_DISK");
    char text[1024], *line, *rest = text;
    if (orders == NULL)
        return 0;
    int fd = REAL(open_call, "open")(orders, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length < 0 ? 0 : length] = 0;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char name[32], part[256];
        int number;
        if (sscanf(line, "%31s %d %255s", name, &number, part) == 3 && !strcmp(name, call) && strstr(path, part))
            return number;
    }
    return 0;
}

static int failure_of(const char *call, int fd) {
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return failure(call, path);
}

#define FAIL_OR(call, fd, otherwise)              \
    int number = failure_of(call, fd);            \
    if (number != 0) {                            \
        errno = number;                           \
        return -1;                                \
    }                                             \
    return otherwise

int fdatasync(int fd) { FAIL_OR("fdatasync", fd, REAL(sync_call, "fdatasync")(fd)); }
int fsync(int fd) { FAIL_OR("fsync", fd, REAL(sync_call, "fsync")(fd)); }
int ftruncate(int fd, off_t length) { FAIL_OR("ftruncate", fd, REAL(truncate_call, "ftruncate")(fd, length)); }
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }
ssize_t pwrite(int fd, const void *data, size_t count, off_t at) {
    FAIL_OR("pwrite", fd, REAL(pwrite_call, "pwrite")(fd, data, count, at));
}
ssize_t pwrite64(int fd, const void *data, size_t count, off_t at) { return pwrite(fd, data, count, at); }
ssize_t pread(int fd, void *data, size_t count, off_t at) {
    FAIL_OR("pread", fd, REAL(pread_call, "pread")(fd, data, count, at));
}
ssize_t pread64(int fd, void *data, size_t count, off_t at) { return pread(fd, data, count, at); }
int posix_fallocate(int fd, off_t at, off_t length) {
    int number = failure_of("fallocate", fd); /* This one returns its errno. */
    return number != 0 ? number : REAL(allocate_call, "posix_fallocate")(fd, at, length);
}
int posix_fallocate64(int fd, off_t at, off_t length) { return posix_fallocate(fd, at, length); }

/* «create» is an open that may make a file; «open» is any. */
int open(const char *path, int how, ...) {
    va_list rest;
    va_start(rest, how);
    mode_t mode = how & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    int number = failure("open", path);
    if (number == 0 && how & O_CREAT)
        number = failure("create", path);
    if (number != 0) {
        errno = number;
        return -1;
    }
    return REAL(open_call, "open")(path, how, mode);
}
int open64(const char *path, int how, ...) {
    va_list rest;
    va_start(rest, how);
    mode_t mode = how & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open(path, how, mode);
}
