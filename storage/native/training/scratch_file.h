// A file without a name that is mapped into memory: it goes with the process, whatever becomes of that.
//
// Its disk space is there before its memory is used, so a full disk is an error of grow() and never a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

namespace emberline {

// The disk did not do what it was asked for. what(): without the reason, which code() has.
class ScratchError : public std::runtime_error {
 public:
  ScratchError(const std::string& doing, int error) : std::runtime_error(doing), error_(error) {}

  int error() const { return error_; }  // errno

 private:
  int error_;
};

class ScratchFile {
 public:
  // folder: where the file is made when it grows for the first time, with the folder.
  explicit ScratchFile(std::string folder) : folder_(std::move(folder)) {}
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Makes the file at least so large; new bytes are zero. Its memory may move. Throws ScratchError, and then the file
  // is as it was.
  void grow(std::size_t bytes);
  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Asks the kernel to read bytes from the disk that are not in memory, without waiting. Any thread may ask.
  void will_need(std::size_t offset, std::size_t bytes) const;

 private:
  void open();

  std::string folder_;
  int file_ = -1;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace emberline
