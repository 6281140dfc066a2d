// A page file that is open for reading. The directory and the filters are in memory, rows stay on the disk. Never
// changes, so any number of threads read it; a reader holds it by shared_ptr, also after its name is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pages/aligned.h"
#include "pages/descriptor.h"
#include "pages/directory.h"
#include "pages/format.h"

namespace emberline::pages {

// A Python object that holds a file shares this pointer. A reference to the Python object instead would need the
// interpreter's lock where the last read of a page ends, which may be while that lock's owner waits for the read.
class PageFile : public std::enable_shared_from_this<PageFile> {
 public:
  static constexpr std::uint64_t kNoPage = Directory::kNoPage;

  // direct: past the page cache, where the file system does that. Throws DiskError and CorruptPage.
  static std::shared_ptr<const PageFile> open(const std::string& path, bool direct);

  const std::string& path() const { return path_; }
  const FileHeader& header() const { return header_; }
  const Geometry& geometry() const { return geometry_; }
  std::string row_type() const;
  bool direct() const { return direct_.open(); }
  std::size_t memory_bytes() const { return directory_.memory_bytes() + filters_.size(); }
  // Unlike any other file's of this process; marks live for ever.
  std::uint64_t number() const { return number_; }

  // The page that may hold each id; kNoPage when none does, by the directory and the filters.
  void locate(const std::int64_t* ids, std::size_t n, std::uint64_t* pages) const;

  // The first page that may hold ids from `id` on.
  std::uint64_t page_from(std::int64_t id) const;

  // Descriptor that a page is read from.
  int descriptor() const { return direct_.open() ? direct_.get() : buffered_.get(); }
  int buffered_descriptor() const { return buffered_.get(); }
  std::uint64_t offset_of(std::uint64_t page) const { return kSector + page * geometry_.page_bytes; }

  // Throws CorruptPage, naming file and page, unless these bytes are that page.
  void check(const char* bytes, std::uint64_t page) const;

  // Pages as they lie in the file, checked. bytes: room for `count` pages. Throws DiskError, CorruptPage.
  void read_pages(std::uint64_t first, std::size_t count, char* bytes) const;

  // Reads pages and says what is wrong with each that is: its bytes, the order of its ids, what the directory and the
  // filters say of them. Throws DiskError.
  std::vector<std::string> problems(std::uint64_t first, std::size_t count) const;

 private:
  explicit PageFile(std::string path) : path_(std::move(path)) {}
  void read_header();
  void read_index();

  std::string path_;
  std::uint64_t number_ = 0;
  FileHeader header_{};
  Geometry geometry_{1, kSector, 1};
  Descriptor buffered_;
  Descriptor direct_;
  Directory directory_;
  AlignedBytes filters_;
};

// Walks over the rows of a file in the order of their ids, some pages at a time.
class PageCursor {
 public:
  // Starts at the first row whose id is not below `from`. file may be null: there is nothing to walk over.
  explicit PageCursor(std::shared_ptr<const PageFile> file, std::int64_t from = INT64_MIN);
  PageCursor(const PageCursor&) = delete;
  PageCursor& operator=(const PageCursor&) = delete;

  bool at_end() const { return row_ == rows_here_; }
  std::int64_t id() const { return view_.ids()[row_]; }
  // The ids and rows from here to the end of the page lie one behind the other.
  std::size_t together() const { return rows_here_ - row_; }
  const std::int64_t* ids() const { return view_.ids() + row_; }
  const char* rows() const { return view_.row(row_); }
  void advance(std::size_t rows);
  // Bytes read so far.
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  void next_page();

  std::shared_ptr<const PageFile> file_;
  Geometry geometry_{1, kSector, 1};
  AlignedBytes buffer_;
  PageView view_{nullptr, geometry_};
  std::uint64_t next_ = 0;  // page after the last in the buffer
  std::size_t pages_here_ = 0;  // pages in the buffer
  std::size_t page_ = 0;  // index in the buffer of the page in view
  std::size_t row_ = 0;
  std::size_t rows_here_ = 0;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace emberline::pages
