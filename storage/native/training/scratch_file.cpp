#include "training/scratch_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace emberline {
namespace {

// The file grows by a quarter, but by no less and no more than this.
constexpr std::size_t kLeastStep = std::size_t{64} << 10;
constexpr std::size_t kMostStep = std::size_t{1} << 30;

}  // namespace

ScratchFile::~ScratchFile() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (file_ >= 0) close(file_);
}

void ScratchFile::open() {
  std::error_code failed;
  std::filesystem::create_directories(folder_, failed);
  if (failed) throw ScratchError("making the folder " + folder_ + " for rows", failed.value());
  file_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ >= 0) return;
  // Not every file system has files without a name.
  std::string path = folder_ + "/rows-XXXXXX";
  file_ = mkostemp(path.data(), O_CLOEXEC);
  if (file_ < 0) throw ScratchError("making a file for rows in " + folder_, errno);
  unlink(path.c_str());
}

void ScratchFile::grow(std::size_t bytes) {
  if (bytes <= bytes_) return;
  if (file_ < 0) open();
  const std::size_t step = std::clamp(bytes_ / 4, kLeastStep, kMostStep);
  const std::size_t wanted = std::max(bytes, bytes_ + step);
  const int failed =
      posix_fallocate(file_, static_cast<off_t>(bytes_), static_cast<off_t>(wanted - bytes_));  // not by errno
  if (failed != 0) throw ScratchError("writing rows to a file in " + folder_, failed);
  void* moved = data_ == nullptr ? mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0)
                                 : mremap(data_, bytes_, wanted, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED) throw ScratchError("mapping a file of rows in " + folder_, errno);
  data_ = static_cast<std::uint8_t*>(moved);
  bytes_ = wanted;
  // A row that is missing is one page: its neighbours have nothing to do with it.
  madvise(data_, bytes_, MADV_RANDOM);
}

void ScratchFile::will_need(std::size_t offset, std::size_t bytes) const {
  if (file_ >= 0) posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

}  // namespace emberline
