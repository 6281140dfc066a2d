/* Loaded by LD_PRELOAD: writes and syncs of RocksDB's logs fail as those of a bad disk do.
 *
 * FAULTS names a file with as many bytes as there are faults to come, each of which takes one byte away. ERRNO: the
 * error, EIO without it. Only its log of writes (NUMBER.log) and of files (MANIFEST-NUMBER) are concerned. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd) {
  const char* faults = getenv("FAULTS");
  const char* error = getenv("ERRNO");
  struct stat status;
  char link[64], path[4096];
  if (faults == NULL || stat(faults, &status) != 0 || status.st_size == 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 4) return 0;
  path[length] = 0;
  if (strcmp(path + length - 4, ".log") != 0 && strstr(path, "/MANIFEST-") == NULL) return 0;
  if (truncate(faults, status.st_size - 1) != 0) return 0;
  errno = error == NULL ? EIO : atoi(error);
  return 1;
}

#define REAL(name, ...) ((ssize_t(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

ssize_t write(int fd, const void* data, size_t size) {
  return fails(fd) ? -1 : REAL("write", int, const void*, size_t)(fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  return fails(fd) ? -1 : REAL("pwrite", int, const void*, size_t, off_t)(fd, data, size, at);
}

int fsync(int fd) { return fails(fd) ? -1 : (int)REAL("fsync", int)(fd); }

int fdatasync(int fd) { return fails(fd) ? -1 : (int)REAL("fdatasync", int)(fd); }
