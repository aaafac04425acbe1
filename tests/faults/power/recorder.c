/* Records what a process does to the files under $MPIFL_RECORD_ROOT, for a library that is preloaded.
 *
 * Each call that changes a file or a folder, or syncs one, appends a record to $MPIFL_RECORD_LOG, with a single write to
 * a file that is opened for appending: the records of all processes and threads are in one order. A call is recorded
 * after it was made and before it returns, so it precedes what its caller does next. A sync has a record before the call
 * too: it covers what was recorded by then.
 *
 *     operation  1 byte: C create, T truncate, W write, R rename, L link, U unlink, M mkdir, B sync begins, E sync ends
 *     thread     4 bytes
 *     inode, offset, length of the data, length of the first path, of the second: 8 bytes each
 *     paths and data
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>


struct __attribute__((packed)) header {
    char operation;
    int32_t thread;
    int64_t inode, offset, length, first, second;
};

static const char *root(void) { return getenv("MPIFL_RECORD_ROOT"); }

static int log_fd(void) {
    static int fd = -1;
    if (fd < 0 && getenv("MPIFL_RECORD_LOG"))
        fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("MPIFL_RECORD_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    return fd;
}

static void record(char operation, int64_t inode, int64_t offset, const char *first, const char *second,
                   const void *data, size_t length) {
    int saved = errno;
    struct header h = {operation, (int32_t)syscall(SYS_gettid), inode, offset, (int64_t)length,
                       first ? (int64_t)strlen(first) : 0, second ? (int64_t)strlen(second) : 0};
    struct iovec parts[] = {{&h, sizeof h}, {(void *)first, h.first}, {(void *)second, h.second}, {(void *)data, length}};
    if (syscall(SYS_writev, log_fd(), parts, 4) != (long)(sizeof h + h.first + h.second + length))
        abort();
    errno = saved;
}

static int under(const char *absolute) {
    size_t n = strlen(root());
    return !strncmp(absolute, root(), n) && (absolute[n] == '/' || !absolute[n]);
}

/* Whether a path is under the root; it is absolute afterwards. */
static int inside(const char *path, char *absolute) {
    int saved = errno;
    if (!root() || !path)
        return 0;
    absolute[0] = 0;
    if (path[0] != '/') {
        if (!getcwd(absolute, PATH_MAX))
            absolute[0] = 0;
        strncat(absolute, "/", PATH_MAX - strlen(absolute) - 1);
    }
    strncat(absolute, path, PATH_MAX - strlen(absolute) - 1);
    errno = saved;
    return under(absolute);
}

/* The path of an open file under the root, its inode in `info`; whether it is one. */
static int opened(int fd, char *path, struct stat *info) {
    char link[64];
    int saved = errno;
    if (!root() || fd < 0 || fd == log_fd())
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = 0;
    int found = under(path) && !fstat(fd, info);
    errno = saved;
    return found;
}

/* -- opening ------------------------------------------------------------------------------------------------------- */
static int open_recorded(int fd_of_folder, const char *path, int flags, mode_t mode) {
    char absolute[PATH_MAX];
    struct stat info;
    int saved = errno, mine = inside(path, absolute), there = mine && !stat(absolute, &info);
    errno = saved;
    int fd = (int)syscall(SYS_openat, fd_of_folder, path, flags, mode);
    if (fd >= 0 && mine && !fstat(fd, &info) && S_ISREG(info.st_mode)) {
        if (!there && (flags & O_CREAT))
            record('C', info.st_ino, 0, absolute, NULL, NULL, 0);
        else if (flags & O_TRUNC)
            record('T', info.st_ino, 0, absolute, NULL, NULL, 0);
    }
    return fd;
}

#define MODE(last)                                    \
    mode_t mode = 0;                                  \
    if (flags & (O_CREAT | __O_TMPFILE)) {            \
        va_list more;                                 \
        va_start(more, last);                         \
        mode = va_arg(more, mode_t);                  \
        va_end(more);                                 \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_recorded(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_recorded(AT_FDCWD, path, flags, mode); }
int openat(int fd, const char *path, int flags, ...) { MODE(flags) return open_recorded(fd, path, flags, mode); }
int openat64(int fd, const char *path, int flags, ...) { MODE(flags) return open_recorded(fd, path, flags, mode); }

/* -- contents ------------------------------------------------------------------------------------------------------ */
static void wrote(int fd, const void *data, ssize_t length, off_t offset) {
    char path[PATH_MAX];
    struct stat info;
    if (length > 0 && opened(fd, path, &info) && S_ISREG(info.st_mode)) {
        if (offset < 0)
            offset = lseek(fd, 0, SEEK_CUR) - length;
        record('W', info.st_ino, offset, path, NULL, data, (size_t)length);
    }
}

ssize_t write(int fd, const void *data, size_t length) {
    ssize_t done = syscall(SYS_write, fd, data, length);
    wrote(fd, data, done, -1);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    ssize_t done = syscall(SYS_pwrite64, fd, data, length, offset);
    wrote(fd, data, done, offset);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return pwrite(fd, data, length, offset); }

/* Callers fall back to what is recorded. */
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
    (void)in, (void)from, (void)out, (void)to, (void)length, (void)flags;
    errno = ENOSYS;
    return -1;
}

ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    (void)out, (void)in, (void)offset, (void)count;
    errno = ENOSYS;
    return -1;
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) { return sendfile(out, in, offset, count); }

int ftruncate(int fd, off_t length) {
    char path[PATH_MAX];
    struct stat info;
    int done = (int)syscall(SYS_ftruncate, fd, length);
    if (!done && opened(fd, path, &info))
        record('T', info.st_ino, length, path, NULL, NULL, 0);
    return done;
}

int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

/* -- syncs --------------------------------------------------------------------------------------------------------- */
/* The record says what a sync is for; no disk is waited for, but other threads get time for what they do meanwhile. */
static int synced(int fd, long call) {
    char path[PATH_MAX];
    struct stat info;
    if (!opened(fd, path, &info))
        return (int)syscall(call, fd);
    record('B', info.st_ino, 0, path, NULL, NULL, 0);
    usleep(2000);
    record('E', info.st_ino, 0, path, NULL, NULL, 0);
    return 0;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* -- names --------------------------------------------------------------------------------------------------------- */
static int named(char operation, const char *first, const char *second, int done) {
    char from[PATH_MAX], to[PATH_MAX];
    if (!done && inside(first, from) && (!second || inside(second, to)))
        record(operation, 0, 0, from, second ? to : NULL, NULL, 0);
    return done;
}

int rename(const char *from, const char *to) { return named('R', from, to, (int)syscall(SYS_rename, from, to)); }
int link(const char *from, const char *to) { return named('L', from, to, (int)syscall(SYS_link, from, to)); }
int unlink(const char *path) { return named('U', path, NULL, (int)syscall(SYS_unlink, path)); }
int rmdir(const char *path) { return named('U', path, NULL, (int)syscall(SYS_rmdir, path)); }
int mkdir(const char *path, mode_t mode) { return named('M', path, NULL, (int)syscall(SYS_mkdir, path, mode)); }

int unlinkat(int fd, const char *path, int flags) {
    return named('U', path, NULL, (int)syscall(SYS_unlinkat, fd, path, flags));
}
