// Writes a page file in one pass over sorted rows. The file appears under its name when all of it is on the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pages/aligned.h"
#include "pages/descriptor.h"
#include "pages/format.h"

namespace emberline::pages {

struct TableFormat {
  std::uint32_t table;
  std::size_t row_bytes;
  std::string row_type;  // at most 15 characters
  int bits_per_id = 10;  // bits of the filters
};

class PageWriter {
 public:
  // Throws std::invalid_argument and DiskError. A file that was begun and not finished is removed.
  PageWriter(std::string path, const TableFormat& format);
  ~PageWriter();
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  // ids strictly ascending over all calls, else std::invalid_argument. order: in which to take them, or null.
  void append(const std::int64_t* ids, const char* rows, std::size_t n, const std::uint32_t* order = nullptr);

  // Directory, filters, header; forced to the disk, renamed, the folder forced. Nothing can be appended after it.
  void finish();

  std::uint64_t rows() const { return header_.rows; }
  std::int64_t last_id() const { return header_.last_id; }
  // Bytes of the file so far.
  std::uint64_t bytes() const { return offset_ + filled_; }
  std::size_t row_bytes() const { return geometry_.row_bytes; }

 private:
  char* page();
  void end_page();
  void flush();
  void write_index();
  void write_padded(const void* data, std::size_t bytes);

  std::string path_;
  std::string part_;  // its name until it is whole
  Geometry geometry_;
  FileHeader header_{};
  Descriptor file_;
  AlignedBytes buffer_;
  std::size_t filled_ = 0;    // bytes of whole pages in the buffer
  std::size_t in_page_ = 0;   // rows of the page behind them
  std::uint64_t offset_ = kSector;
  std::vector<std::int64_t> firsts_;
  std::vector<unsigned char> filters_;
  bool finished_ = false;
};

}  // namespace emberline::pages
