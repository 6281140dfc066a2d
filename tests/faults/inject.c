/* Preloaded into a process, this makes chosen file calls fail, and lists those that are made.
 *
 * Only calls on files below the watched prefixes count. A rule names a kind of call, a path, an occurrence and what
 * happens instead: an errno, or a read or write of half the bytes. The functions at the end are called through ctypes;
 * the environment variables FAULTS_* set the same for a process that knows nothing of this.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ROOM = 2 * PATH_MAX, MAX_PREFIXES = 8 };
enum { SHORT = -1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char prefixes[MAX_PREFIXES][PATH_MAX];
static int prefix_count;
static int log_fd = -1;
static int uring_forbidden;
static struct {
  char kind[16], path[PATH_MAX];
  int exact, error;
  long nth, times, seen, fired;
} rule;

#define NEXT(name)                                                             \
  ({                                                                           \
    static __typeof__(&name) next_;                                            \
    if (next_ == NULL) next_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);     \
    next_;                                                                     \
  })

static int is_watched(const char* path) {
  for (int i = 0; i < prefix_count; ++i) {
    const size_t n = strlen(prefixes[i]);
    if (strncmp(path, prefixes[i], n) == 0 && (path[n] == '\0' || path[n] == '/')) return 1;
  }
  return 0;
}

static int is_meant(const char* kind, const char* path) {
  if (rule.times == 0 || (rule.kind[0] != '\0' && strcmp(rule.kind, kind) != 0)) return 0;
  return rule.exact ? strcmp(path, rule.path) == 0 : strncmp(path, rule.path, strlen(rule.path)) == 0;
}

/* What becomes of a call: 0: it is made, SHORT, or an errno. */
static int judge(const char* kind, const char* path) {
  int verdict = 0;
  if (!is_watched(path)) return 0;
  pthread_mutex_lock(&lock);
  if (log_fd >= 0) {
    char line[ROOM + 64];
    const int n = snprintf(line, sizeof line, "%s\t%s\n", kind, path);
    NEXT(syscall)(SYS_write, log_fd, line, (size_t)n);
  }
  if (is_meant(kind, path)) {
    const long which = ++rule.seen;
    if (which >= rule.nth && which < rule.nth + rule.times) {
      ++rule.fired;
      verdict = rule.error;
    }
  }
  pthread_mutex_unlock(&lock);
  return verdict;
}

static int read_link(const char* link, char* path) {
  const long n = NEXT(syscall)(SYS_readlink, link, path, (size_t)PATH_MAX - 1);
  if (n <= 0) return 0;
  path[n] = '\0';
  static const char gone[] = " (deleted)";
  const size_t end = sizeof gone - 1;
  if ((size_t)n > end && strcmp(path + n - end, gone) == 0) path[n - (long)end] = '\0';
  return 1;
}

static int judge_fd(const char* kind, int fd) {
  if (prefix_count == 0 || fd < 0) return 0;
  const int before = errno;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const int verdict = read_link(link, path) ? judge(kind, path) : 0;
  errno = before;
  return verdict;
}

static int judge_at(const char* kind, int folder, const char* name) {
  if (prefix_count == 0 || name == NULL) return 0;
  const int before = errno;
  char link[64] = "/proc/self/cwd", path[ROOM] = "";
  if (folder != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  if (name[0] != '/' && read_link(link, path) && name[0] != '\0') strcat(path, "/");
  strncat(path, name, PATH_MAX);
  const int verdict = judge(kind, path);
  errno = before;
  return verdict;
}

static int judge_two(const char* kind, int folder, const char* name, int folder2, const char* name2) {
  const int verdict = judge_at(kind, folder, name);
  return verdict != 0 ? verdict : judge_at(kind, folder2, name2);
}

static size_t part(int verdict, size_t bytes) { return verdict == SHORT && bytes > 1 ? bytes / 2 : bytes; }

#define FAIL(verdict, result)  \
  if ((verdict) > 0) {         \
    errno = (verdict);         \
    return (result);           \
  }

#define MODE(flags, last)                                         \
  mode_t mode = 0;                                                \
  if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
    va_list rest;                                                 \
    va_start(rest, last);                                         \
    mode = (mode_t)va_arg(rest, int);                             \
    va_end(rest);                                                 \
  }

#define PATH_CALL(kind, folder, name, failure, call) \
  const int verdict = judge_at(kind, folder, name);  \
  FAIL(verdict, failure)                             \
  return call;
#define FD_CALL(kind, fd, failure, call)     \
  const int verdict = judge_fd(kind, fd);    \
  FAIL(verdict, failure)                     \
  return call;
#define TWO_CALL(kind, folder, name, folder2, name2, call)                  \
  const int verdict = judge_two(kind, folder, name, folder2, name2);        \
  FAIL(verdict, -1)                                                         \
  return call;

#define OPENS(flags) ((flags) & O_CREAT ? "create" : "open")
int open(const char* p, int flags, ...) { MODE(flags, flags) PATH_CALL(OPENS(flags), AT_FDCWD, p, -1, NEXT(open)(p, flags, mode)) }
int open64(const char* p, int flags, ...) { MODE(flags, flags) PATH_CALL(OPENS(flags), AT_FDCWD, p, -1, NEXT(open64)(p, flags, mode)) }
int openat(int d, const char* p, int flags, ...) { MODE(flags, flags) PATH_CALL(OPENS(flags), d, p, -1, NEXT(openat)(d, p, flags, mode)) }
int openat64(int d, const char* p, int flags, ...) { MODE(flags, flags) PATH_CALL(OPENS(flags), d, p, -1, NEXT(openat64)(d, p, flags, mode)) }
int creat(const char* p, mode_t m) { PATH_CALL("create", AT_FDCWD, p, -1, NEXT(creat)(p, m)) }
int creat64(const char* p, mode_t m) { PATH_CALL("create", AT_FDCWD, p, -1, NEXT(creat64)(p, m)) }
FILE* fopen(const char* p, const char* m) { PATH_CALL("open", AT_FDCWD, p, NULL, NEXT(fopen)(p, m)) }
FILE* fopen64(const char* p, const char* m) { PATH_CALL("open", AT_FDCWD, p, NULL, NEXT(fopen64)(p, m)) }
int mkstemp(char* p) { PATH_CALL("create", AT_FDCWD, p, -1, NEXT(mkstemp)(p)) }
int mkstemp64(char* p) { PATH_CALL("create", AT_FDCWD, p, -1, NEXT(mkstemp64)(p)) }

#define MOVES(kind, name, buffer, data_type)                          \
  ssize_t name(int fd, data_type buffer, size_t n) {                  \
    FD_CALL(kind, fd, -1, NEXT(name)(fd, buffer, part(verdict, n)))   \
  }
#define MOVES_AT(kind, name, data_type, offset_type)                             \
  ssize_t name(int fd, data_type data, size_t n, offset_type at) {               \
    FD_CALL(kind, fd, -1, NEXT(name)(fd, data, part(verdict, n), at))            \
  }
MOVES("read", read, data, void*)
MOVES("write", write, data, const void*)
MOVES_AT("read", pread, void*, off_t)
MOVES_AT("read", pread64, void*, off64_t)
MOVES_AT("write", pwrite, const void*, off_t)
MOVES_AT("write", pwrite64, const void*, off64_t)

/* A short one moves half of the first part. */
#define VECTOR(kind, name, PARAMETERS, SHORTENED, WHOLE)                  \
  ssize_t name PARAMETERS {                                               \
    const int verdict = judge_fd(kind, fd);                               \
    FAIL(verdict, -1)                                                     \
    if (verdict == SHORT && n > 0) {                                      \
      struct iovec first = {v[0].iov_base, part(SHORT, v[0].iov_len)};    \
      return NEXT(name) SHORTENED;                                        \
    }                                                                     \
    return NEXT(name) WHOLE;                                              \
  }
VECTOR("read", readv, (int fd, const struct iovec* v, int n), (fd, &first, 1), (fd, v, n))
VECTOR("write", writev, (int fd, const struct iovec* v, int n), (fd, &first, 1), (fd, v, n))
VECTOR("read", preadv, (int fd, const struct iovec* v, int n, off_t o), (fd, &first, 1, o), (fd, v, n, o))
VECTOR("read", preadv64, (int fd, const struct iovec* v, int n, off64_t o), (fd, &first, 1, o), (fd, v, n, o))
VECTOR("write", pwritev, (int fd, const struct iovec* v, int n, off_t o), (fd, &first, 1, o), (fd, v, n, o))
VECTOR("write", pwritev64, (int fd, const struct iovec* v, int n, off64_t o), (fd, &first, 1, o), (fd, v, n, o))
VECTOR("read", preadv2, (int fd, const struct iovec* v, int n, off_t o, int f), (fd, &first, 1, o, f), (fd, v, n, o, f))
VECTOR("read", preadv64v2, (int fd, const struct iovec* v, int n, off64_t o, int f), (fd, &first, 1, o, f), (fd, v, n, o, f))
VECTOR("write", pwritev2, (int fd, const struct iovec* v, int n, off_t o, int f), (fd, &first, 1, o, f), (fd, v, n, o, f))
VECTOR("write", pwritev64v2, (int fd, const struct iovec* v, int n, off64_t o, int f), (fd, &first, 1, o, f), (fd, v, n, o, f))

#undef fread_unlocked
/* Streams: a short one cannot be told from an end of the file, so it is made whole. */
size_t fread(void* p, size_t size, size_t n, FILE* file) { FD_CALL("read", fileno(file), 0, NEXT(fread)(p, size, n, file)) }
size_t fread_unlocked(void* p, size_t size, size_t n, FILE* file) {
  FD_CALL("read", fileno_unlocked(file), 0, NEXT(fread_unlocked)(p, size, n, file))
}
ssize_t sendfile(int to, int fd, off_t* at, size_t n) { FD_CALL("read", fd, -1, NEXT(sendfile)(to, fd, at, part(verdict, n))) }
ssize_t sendfile64(int to, int fd, off64_t* at, size_t n) { FD_CALL("read", fd, -1, NEXT(sendfile64)(to, fd, at, part(verdict, n))) }
ssize_t copy_file_range(int fd, off64_t* at, int to, off64_t* there, size_t n, unsigned flags) {
  FD_CALL("read", fd, -1, NEXT(copy_file_range)(fd, at, to, there, part(verdict, n), flags))
}

int fsync(int fd) { FD_CALL("sync", fd, -1, NEXT(fsync)(fd)) }
int fdatasync(int fd) { FD_CALL("sync", fd, -1, NEXT(fdatasync)(fd)) }
int sync_file_range(int fd, off64_t at, off64_t n, unsigned f) { FD_CALL("sync", fd, -1, NEXT(sync_file_range)(fd, at, n, f)) }
int syncfs(int fd) { FD_CALL("sync", fd, -1, NEXT(syncfs)(fd)) }

int rename(const char* a, const char* b) { TWO_CALL("rename", AT_FDCWD, a, AT_FDCWD, b, NEXT(rename)(a, b)) }
int renameat(int d, const char* a, int e, const char* b) { TWO_CALL("rename", d, a, e, b, NEXT(renameat)(d, a, e, b)) }
int renameat2(int d, const char* a, int e, const char* b, unsigned f) { TWO_CALL("rename", d, a, e, b, NEXT(renameat2)(d, a, e, b, f)) }
int link(const char* a, const char* b) { TWO_CALL("link", AT_FDCWD, a, AT_FDCWD, b, NEXT(link)(a, b)) }
int linkat(int d, const char* a, int e, const char* b, int f) { TWO_CALL("link", d, a, e, b, NEXT(linkat)(d, a, e, b, f)) }
int symlink(const char* a, const char* b) { PATH_CALL("link", AT_FDCWD, b, -1, NEXT(symlink)(a, b)) }
int unlink(const char* p) { PATH_CALL("unlink", AT_FDCWD, p, -1, NEXT(unlink)(p)) }
int unlinkat(int d, const char* p, int f) { PATH_CALL("unlink", d, p, -1, NEXT(unlinkat)(d, p, f)) }
int rmdir(const char* p) { PATH_CALL("unlink", AT_FDCWD, p, -1, NEXT(rmdir)(p)) }
int mkdir(const char* p, mode_t m) { PATH_CALL("mkdir", AT_FDCWD, p, -1, NEXT(mkdir)(p, m)) }
int mkdirat(int d, const char* p, mode_t m) { PATH_CALL("mkdir", d, p, -1, NEXT(mkdirat)(d, p, m)) }

int stat(const char* p, struct stat* s) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(stat)(p, s)) }
int stat64(const char* p, struct stat64* s) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(stat64)(p, s)) }
int lstat(const char* p, struct stat* s) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(lstat)(p, s)) }
int lstat64(const char* p, struct stat64* s) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(lstat64)(p, s)) }
int fstat(int fd, struct stat* s) { FD_CALL("stat", fd, -1, NEXT(fstat)(fd, s)) }
int fstat64(int fd, struct stat64* s) { FD_CALL("stat", fd, -1, NEXT(fstat64)(fd, s)) }
int fstatat(int d, const char* p, struct stat* s, int f) { PATH_CALL("stat", d, p, -1, NEXT(fstatat)(d, p, s, f)) }
int fstatat64(int d, const char* p, struct stat64* s, int f) { PATH_CALL("stat", d, p, -1, NEXT(fstatat64)(d, p, s, f)) }
int statx(int d, const char* p, int f, unsigned m, struct statx* s) { PATH_CALL("stat", d, p, -1, NEXT(statx)(d, p, f, m, s)) }
int access(const char* p, int m) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(access)(p, m)) }
int faccessat(int d, const char* p, int m, int f) { PATH_CALL("stat", d, p, -1, NEXT(faccessat)(d, p, m, f)) }
/* What programs built against an older C library call. */
int __xstat(int v, const char* p, struct stat* s);
int __xstat64(int v, const char* p, struct stat64* s);
int __lxstat(int v, const char* p, struct stat* s);
int __lxstat64(int v, const char* p, struct stat64* s);
int __fxstat(int v, int fd, struct stat* s);
int __fxstat64(int v, int fd, struct stat64* s);
int __xstat(int v, const char* p, struct stat* s) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(__xstat)(v, p, s)) }
int __xstat64(int v, const char* p, struct stat64* s) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(__xstat64)(v, p, s)) }
int __lxstat(int v, const char* p, struct stat* s) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(__lxstat)(v, p, s)) }
int __lxstat64(int v, const char* p, struct stat64* s) { PATH_CALL("stat", AT_FDCWD, p, -1, NEXT(__lxstat64)(v, p, s)) }
int __fxstat(int v, int fd, struct stat* s) { FD_CALL("stat", fd, -1, NEXT(__fxstat)(v, fd, s)) }
int __fxstat64(int v, int fd, struct stat64* s) { FD_CALL("stat", fd, -1, NEXT(__fxstat64)(v, fd, s)) }

DIR* opendir(const char* p) { PATH_CALL("list", AT_FDCWD, p, NULL, NEXT(opendir)(p)) }
DIR* fdopendir(int fd) { FD_CALL("list", fd, NULL, NEXT(fdopendir)(fd)) }
struct dirent* readdir(DIR* d) { FD_CALL("list", dirfd(d), NULL, NEXT(readdir)(d)) }
struct dirent64* readdir64(DIR* d) { FD_CALL("list", dirfd(d), NULL, NEXT(readdir64)(d)) }

void* mmap(void* a, size_t n, int p, int f, int fd, off_t o) { FD_CALL("map", fd, MAP_FAILED, NEXT(mmap)(a, n, p, f, fd, o)) }
void* mmap64(void* a, size_t n, int p, int f, int fd, off64_t o) { FD_CALL("map", fd, MAP_FAILED, NEXT(mmap64)(a, n, p, f, fd, o)) }
int ftruncate(int fd, off_t n) { FD_CALL("truncate", fd, -1, NEXT(ftruncate)(fd, n)) }
int ftruncate64(int fd, off64_t n) { FD_CALL("truncate", fd, -1, NEXT(ftruncate64)(fd, n)) }
int fallocate(int fd, int m, off_t at, off_t n) { FD_CALL("truncate", fd, -1, NEXT(fallocate)(fd, m, at, n)) }
int fallocate64(int fd, int m, off64_t at, off64_t n) { FD_CALL("truncate", fd, -1, NEXT(fallocate64)(fd, m, at, n)) }
int posix_fallocate(int fd, off_t at, off_t n) { FD_CALL("truncate", fd, verdict, NEXT(posix_fallocate)(fd, at, n)) }
int posix_fallocate64(int fd, off64_t at, off64_t n) { FD_CALL("truncate", fd, verdict, NEXT(posix_fallocate64)(fd, at, n)) }

int flock(int fd, int how) { FD_CALL("lock", fd, -1, NEXT(flock)(fd, how)) }
#define FCNTL(name)                                                                          \
  int name(int fd, int command, ...) {                                                       \
    va_list rest;                                                                            \
    va_start(rest, command);                                                                 \
    void* const argument = va_arg(rest, void*);                                              \
    va_end(rest);                                                                            \
    const int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK;   \
    const int verdict = locks ? judge_fd("lock", fd) : 0;                                    \
    FAIL(verdict, -1)                                                                        \
    return NEXT(name)(fd, command, argument);                                                \
  }
FCNTL(fcntl)
FCNTL(fcntl64)

/* io_uring's reads are seen by nobody, so it can be refused: then the same reads are made by pread. */
long syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(rest, long);
  va_end(rest);
  int verdict = 0;
  if (number == SYS_io_uring_setup && uring_forbidden) verdict = ENOSYS;
  if (number == SYS_openat2) verdict = judge_at("open", (int)a[0], (const char*)a[1]);
  if (number == SYS_statx) verdict = judge_at("stat", (int)a[0], (const char*)a[1]);
  if (number == SYS_renameat2) verdict = judge_two("rename", (int)a[0], (const char*)a[1], (int)a[2], (const char*)a[3]);
  FAIL(verdict, -1)
  return NEXT(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* paths: absolute and without links, joined by colons. "": nothing is watched any more. */
void inject_watch(const char* paths) {
  pthread_mutex_lock(&lock);
  prefix_count = 0;
  while (*paths != '\0' && prefix_count < MAX_PREFIXES) {
    const size_t n = strcspn(paths, ":");
    if (n > 0 && n < PATH_MAX) snprintf(prefixes[prefix_count++], PATH_MAX, "%.*s", (int)n, paths);
    paths += n + (paths[n] == ':');
  }
  pthread_mutex_unlock(&lock);
}

/* Writes a line "kind <tab> path" for each call to this descriptor; -1: to none. */
void inject_log(int fd) { log_fd = fd; }

/* kind: "" for any. path: prefix of the file's, or the whole one where `exact`. error: an errno, -1: half the bytes. */
void inject_arm(const char* kind, const char* path, int exact, long nth, long times, int error) {
  pthread_mutex_lock(&lock);
  snprintf(rule.kind, sizeof rule.kind, "%s", kind);
  snprintf(rule.path, sizeof rule.path, "%s", path);
  rule.exact = exact;
  rule.error = error;
  rule.nth = nth;
  rule.times = times;
  rule.seen = rule.fired = 0;
  pthread_mutex_unlock(&lock);
}

/* How often the rule has changed a call. */
long inject_fired(void) { return rule.fired; }

void inject_forbid_uring(int forbidden) { uring_forbidden = forbidden; }

__attribute__((constructor)) static void from_environment(void) {
  const char* const kind = getenv("FAULTS_KIND");
  const char* const path = getenv("FAULTS_PATH");
  const char* const nth = getenv("FAULTS_NTH");
  const char* const times = getenv("FAULTS_TIMES");
  const char* const error = getenv("FAULTS_ERRNO");
  const char* const log = getenv("FAULTS_LOG");
  if (getenv("FAULTS_NO_URING") != NULL) uring_forbidden = 1;
  if (error != NULL) {
    inject_arm(kind ? kind : "", path ? path : "", 0, nth ? atol(nth) : 1, times ? atol(times) : 1, atoi(error));
  }
  if (log != NULL) log_fd = NEXT(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (getenv("FAULTS_WATCH") != NULL) inject_watch(getenv("FAULTS_WATCH"));
}
