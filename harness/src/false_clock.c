/* A false time of day for one process: LD_PRELOAD it, and LONGSHORE_TEST_CLOCK_OFFSET says by how many seconds the clock
   is ahead. Monotonic clocks stay as they are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset;

__attribute__((constructor)) static void begin(void) {
    const char *asked = getenv("LONGSHORE_TEST_CLOCK_OFFSET");
    offset = asked ? atol(asked) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += offset;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
