// Shifts the wall clock of a process by FAULTS_CLOCK_S seconds; other clocks stay as they are. Loaded by LD_PRELOAD.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long long shift_ns(void) {
  static long long shift;
  static int known;
  if (!known) {
    const char* text = getenv("FAULTS_CLOCK_S");
    shift = text == NULL ? 0 : (long long)(strtod(text, NULL) * 1e9);
    known = 1;
  }
  return shift;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (real == NULL) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int failed = real(clock, now);
  if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
  const long long shifted = (long long)now->tv_sec * 1000000000 + now->tv_nsec + shift_ns();
  now->tv_sec = shifted / 1000000000;
  now->tv_nsec = shifted % 1000000000;
  return 0;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec precise;
  const int failed = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return failed;
}

time_t time(time_t* out) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (out != NULL) *out = precise.tv_sec;
  return precise.tv_sec;
}
