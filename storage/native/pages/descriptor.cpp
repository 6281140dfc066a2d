#include "pages/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "pages/format.h"

namespace emberline::pages {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

void Descriptor::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Descriptor open_file(const std::string& path, int flags) {
  for (;;) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (fd >= 0) return Descriptor(fd);
    if (errno != EINTR) throw DiskError(errno, "opening", path);
  }
}

void read_at(const Descriptor& file, const std::string& path, char* bytes, std::size_t n, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < n) {
    const ssize_t got = ::pread(file.get(), bytes + done, n - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw DiskError(errno, "reading", path);
    if (got == 0) {
      throw CorruptPage(path + ": it ends before byte " + std::to_string(offset + n) + "; the file was cut off");
    }
    done += static_cast<std::size_t>(got);
  }
}

void write_at(const Descriptor& file, const std::string& path, const char* bytes, std::size_t n, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < n) {
    const ssize_t put = ::pwrite(file.get(), bytes + done, n - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw DiskError(put < 0 ? errno : ENOSPC, "writing", path);
    done += static_cast<std::size_t>(put);
  }
}

void sync_file(const Descriptor& file, const std::string& path) {
  if (::fsync(file.get()) != 0) throw DiskError(errno, "writing", path);
}

void sync_folder_of(const std::string& path) {
  const std::string folder = folder_of(path);
  const Descriptor opened = open_file(folder, O_RDONLY | O_DIRECTORY);
  // Some file systems have nothing to force for a folder and say EINVAL.
  if (::fsync(opened.get()) != 0 && errno != EINVAL) throw DiskError(errno, "writing", folder);
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw DiskError(errno, "renaming", from);
}

bool folder_reads_direct(const std::string& folder) {
#ifdef O_DIRECT
  std::string name = folder + "/.direct-XXXXXX";
  const Descriptor probe(::mkstemp(name.data()));
  if (!probe.open()) return false;
  alignas(kSector) static const char zeros[kSector] = {};
  bool direct = ::pwrite(probe.get(), zeros, kSector, 0) == static_cast<ssize_t>(kSector);
  if (direct) {
    const Descriptor again(::open(name.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    void* memory = nullptr;
    direct = again.open() && ::posix_memalign(&memory, kSector, kSector) == 0 &&
             ::pread(again.get(), memory, kSector, 0) == static_cast<ssize_t>(kSector);
    std::free(memory);
  }
  ::unlink(name.c_str());
  return direct;
#else
  (void)folder;
  return false;
#endif
}

}  // namespace emberline::pages
