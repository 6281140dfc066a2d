/* Preloaded into a process, this makes every pread wait while a file exists, as a disk that others use up does.
 *
 * SLOW_READS_WHILE: the path of that file. SLOW_READS_MS: how long each read waits. io_uring, whose reads nobody sees,
 * is refused: then the same reads are made by pread.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name)                                                             \
  ({                                                                           \
    static __typeof__(&name) next_;                                            \
    if (next_ == NULL) next_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);     \
    next_;                                                                     \
  })

static void wait_a_while(void) {
  const char* const path = getenv("SLOW_READS_WHILE");
  const char* const ms = getenv("SLOW_READS_MS");
  const int before = errno;
  if (path != NULL && ms != NULL && access(path, F_OK) == 0) {
    const long wait = atol(ms);
    const struct timespec time = {wait / 1000, wait % 1000 * 1000000};
    nanosleep(&time, NULL);
  }
  errno = before;
}

ssize_t pread(int fd, void* data, size_t n, off_t at) {
  wait_a_while();
  return NEXT(pread)(fd, data, n, at);
}

ssize_t pread64(int fd, void* data, size_t n, off64_t at) {
  wait_a_while();
  return NEXT(pread64)(fd, data, n, at);
}

long syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_io_uring_setup) {
    errno = ENOSYS;
    return -1;
  }
  return NEXT(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
