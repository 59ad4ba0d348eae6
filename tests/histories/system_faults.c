/* A library for LD_PRELOAD: faults of the disk, and a system clock that is wrong, while a process runs.
 *
 * The process calls faults_open() with a file of 32 bytes, which another process changes:
 *   0  int64  nanoseconds by which the system clock is ahead
 *   8  int32  the fault, see below; 0 for none
 *  12  int32  how many calls of its kind still succeed
 *  16  int32  how often a fault struck
 * Only regular files count, and not the log, which is standard output and error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NONE, KILL_IN_WRITE, FULL_DISK, FAILED_SYNC, KILL_AT_SYNC, KILL_AFTER_SYNC };

struct control { volatile int64_t ahead_ns; volatile int32_t fault, countdown, struck; };
static struct control *control;

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int faults_open(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *found = fd < 0 ? MAP_FAILED : mmap(0, 32, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    control = found == MAP_FAILED ? 0 : found;
    return control ? 0 : -1;
}

static int strikes(int fd, int first, int last) {
    struct stat status;
    if (!control || control->fault < first || control->fault > last || fd <= 2) return NONE;
    if (fstat(fd, &status) || !S_ISREG(status.st_mode)) return NONE;
    if (__sync_fetch_and_sub(&control->countdown, 1) > 0) return NONE;
    control->struck++;
    return control->fault;
}

static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(write);
    int fault = strikes(fd, KILL_IN_WRITE, FULL_DISK);
    if (fault == KILL_IN_WRITE) { next(fd, data, size / 2); die(); }
    if (fault == FULL_DISK) { errno = ENOSPC; return -1; }
    return next(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(writev);
    int fault = strikes(fd, KILL_IN_WRITE, FULL_DISK);
    if (fault == KILL_IN_WRITE) { if (count > 1) next(fd, parts, count / 2); die(); }
    if (fault == FULL_DISK) { errno = ENOSPC; return -1; }
    return next(fd, parts, count);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    NEXT(pwrite);
    int fault = strikes(fd, KILL_IN_WRITE, FULL_DISK);
    if (fault == KILL_IN_WRITE) { next(fd, data, size / 2, at); die(); }
    if (fault == FULL_DISK) { errno = ENOSPC; return -1; }
    return next(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    NEXT(pwrite64);
    int fault = strikes(fd, KILL_IN_WRITE, FULL_DISK);
    if (fault == KILL_IN_WRITE) { next(fd, data, size / 2, at); die(); }
    if (fault == FULL_DISK) { errno = ENOSPC; return -1; }
    return next(fd, data, size, at);
}

static int synced(int fd, int (*sync)(int)) {
    int fault = strikes(fd, FAILED_SYNC, KILL_AFTER_SYNC);
    if (fault == FAILED_SYNC) { errno = EIO; return -1; }
    if (fault == KILL_AT_SYNC) die();
    int result = sync(fd);
    if (fault == KILL_AFTER_SYNC) die();
    return result;
}

/* The journal's write, which also syncs by a flag. */
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    NEXT(pwritev64v2);
    int fault = strikes(fd, KILL_IN_WRITE, FULL_DISK);
    if (fault == KILL_IN_WRITE) { if (count > 1) next(fd, parts, count / 2, at, 0); die(); }
    if (fault == FULL_DISK) { errno = ENOSPC; return -1; }
    fault = flags & (RWF_DSYNC | RWF_SYNC) ? strikes(fd, FAILED_SYNC, KILL_AFTER_SYNC) : NONE;
    ssize_t result = next(fd, parts, count, at, fault == FAILED_SYNC || fault == KILL_AT_SYNC ? 0 : flags);
    if (fault == FAILED_SYNC) { errno = EIO; return -1; }
    if (fault != NONE) die();
    return result;
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return pwritev64v2(fd, parts, count, at, flags);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    return pwritev64v2(fd, parts, count, at, 0);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return pwritev64v2(fd, parts, count, at, 0);
}

int fsync(int fd) { NEXT(fsync); return synced(fd, next); }
int fdatasync(int fd) { NEXT(fdatasync); return synced(fd, next); }

int clock_gettime(clockid_t clock, struct timespec *time) {
    NEXT(clock_gettime);
    int result = next(clock, time);
    if (control && control->ahead_ns && !result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = time->tv_sec * 1000000000LL + time->tv_nsec + control->ahead_ns;
        time->tv_sec = ns / 1000000000LL;
        time->tv_nsec = ns % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}
