// The page file of one table: rows in pages, sorted by id, each page read by itself and checked by itself.
//
//   header      one sector of 4096 bytes
//   pages       each: checksum, count, stamp, ids (ascending), rows; the rest is zeros
//   directory   the first id of each page, padded to a sector
//   filters     for each page a Bloom filter of its ids, padded to a sector
//
// Everything is little endian and lies at multiples of a sector. A file is written once, under another name until all
// of it is on the disk, and never changed. docs/format.md describes it for readers of other languages.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace emberline::pages {

static_assert(std::endian::native == std::endian::little, "page files are written as they lie in memory");

inline constexpr std::size_t kSector = 4096;
inline constexpr std::size_t kMaxPageBytes = std::size_t{1} << 20;
inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr char kMagic[8] = {'E', 'M', 'B', 'P', 'A', 'G', 'E', 'S'};

// A file that is not what was written; `what` names file and page.
struct CorruptPage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The system refused something; code is its errno.
struct DiskError : std::runtime_error {
  DiskError(int error, const std::string& doing, std::string file)
      : std::runtime_error(doing), code(error), path(std::move(file)) {}
  int code;
  std::string path;
};

inline std::size_t to_sectors(std::size_t bytes) { return (bytes + kSector - 1) / kSector * kSector; }

struct PageHeader {
  std::uint32_t checksum;  // CRC-32C of the page but for these four bytes
  std::uint32_t count;
  std::uint64_t
      stamp;  // file's mark + page number: a page of another file, or from another place, is not taken for this one
};
static_assert(sizeof(PageHeader) == 16);

struct FileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t page_bytes;
  std::uint32_t row_bytes;
  std::uint32_t rows_per_page;
  std::uint32_t table;
  std::uint32_t filter_bytes;  // bytes of one page's filter
  char row_type[16];  // text, ended by zeros
  std::uint64_t mark;  // random
  std::uint64_t rows;
  std::uint64_t pages;
  std::int64_t first_id;
  std::int64_t last_id;
  std::uint64_t directory_offset;
  std::uint64_t filters_offset;
  std::uint64_t file_bytes;
  std::uint32_t directory_checksum;
  std::uint32_t filters_checksum;
  std::uint32_t filter_probes;
  std::uint32_t checksum;  // CRC-32C of the header but for these four bytes
};
static_assert(sizeof(FileHeader) == 128 && offsetof(FileHeader, checksum) == 124);

// Layout of rows of a size in pages: the smallest power of two, from a sector on, of which at least two thirds are
// used.
struct Geometry {
  std::size_t row_bytes;
  std::size_t page_bytes = kSector;
  std::size_t rows_per_page = 0;

  explicit Geometry(std::size_t bytes) : row_bytes(bytes) {
    if (bytes == 0 || bytes > kMaxPageBytes / 4) {
      throw std::invalid_argument("row_bytes: " + std::to_string(bytes) + ", expected 1 to " +
                                  std::to_string(kMaxPageBytes / 4));
    }
    for (;; page_bytes *= 2) {
      rows_per_page = (page_bytes - sizeof(PageHeader)) / (sizeof(std::int64_t) + row_bytes);
      if (3 * rows_per_page * (sizeof(std::int64_t) + row_bytes) >= 2 * page_bytes) return;
    }
  }

  Geometry(std::size_t bytes, std::size_t page, std::size_t per_page)
      : row_bytes(bytes), page_bytes(page), rows_per_page(per_page) {}

  std::size_t ids_at() const { return sizeof(PageHeader); }
  std::size_t rows_at() const { return sizeof(PageHeader) + rows_per_page * sizeof(std::int64_t); }
};

// A view of one page in memory.
struct PageView {
  const char* bytes;
  const Geometry& geometry;

  PageHeader header() const {
    PageHeader header;
    std::memcpy(&header, bytes, sizeof header);
    return header;
  }
  const std::int64_t* ids() const { return reinterpret_cast<const std::int64_t*>(bytes + geometry.ids_at()); }
  const char* row(std::size_t i) const { return bytes + geometry.rows_at() + i * geometry.row_bytes; }
};

}  // namespace emberline::pages
