/*
 * A wrong wall clock for one process. LD_PRELOAD loads this library before the C library.
 *
 * PostgreSQL reads the clock in its signal handlers, so these functions may only use functions that
 * POSIX defines as async-signal-safe. They must not allocate memory, open a file or take a lock.
 * Monotonic clocks stay correct, because a jump of the wall clock does not change them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The error of the clock in seconds. Another process may write this value at any time. */
static const volatile int64_t *wrong_by;

__attribute__((constructor)) static void map_the_file(void)
{
	const char *name = getenv("WRONG_CLOCK_FILE");
	int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void *mapped =
		file < 0 ? MAP_FAILED : mmap(NULL, sizeof *wrong_by, PROT_READ, MAP_SHARED, file, 0);

	if (mapped == MAP_FAILED) {
		perror("cannot map the file of the wrong clock");
		_exit(1);
	}
	close(file);
	wrong_by = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = (int) syscall(SYS_clock_gettime, clock, now);

	if (result == 0 && wrong_by && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += *wrong_by;
	return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void) zone;
	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now)
{
	struct timespec precise = {0};

	clock_gettime(CLOCK_REALTIME, &precise);
	if (now)
		*now = precise.tv_sec;
	return precise.tv_sec;
}
