// An open file, closed at the end of its scope, and the calls that read and write all of what was asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace emberline::pages {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// Throw DiskError; a file that ends too early throws CorruptPage.
Descriptor open_file(const std::string& path, int flags);
void read_at(const Descriptor& file, const std::string& path, char* bytes, std::size_t n, std::uint64_t offset);
void write_at(const Descriptor& file, const std::string& path, const char* bytes, std::size_t n, std::uint64_t offset);
void sync_file(const Descriptor& file, const std::string& path);
// The entry of a file in its folder, after it was made or renamed.
void sync_folder_of(const std::string& path);
void rename_file(const std::string& from, const std::string& to);

// Returns whether files in a folder can be read past the page cache.
bool folder_reads_direct(const std::string& folder);

}  // namespace emberline::pages
