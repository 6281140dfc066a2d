#include "pages/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "pages/crc32c.h"
#include "pages/filter.h"

namespace emberline::pages {
namespace {

constexpr std::size_t kRunBytes = std::size_t{1} << 20;

[[noreturn]] void corrupt(const std::string& path, const std::string& what) { throw CorruptPage(path + ": " + what); }

}  // namespace

std::shared_ptr<const PageFile> PageFile::open(const std::string& path, bool direct) {
  static std::atomic<std::uint64_t> opened{0};
  std::shared_ptr<PageFile> file(new PageFile(path));
  file->number_ = ++opened;
  file->buffered_ = open_file(path, O_RDONLY);
  file->read_header();
  file->read_index();
  // Rows are read at random; what the kernel reads ahead would be thrown away.
  ::posix_fadvise(file->buffered_.get(), 0, 0, POSIX_FADV_RANDOM);
#ifdef O_DIRECT
  if (direct) {
    try {
      file->direct_ = open_file(path, O_RDONLY | O_DIRECT);
    } catch (const DiskError& error) {
      if (error.code != EINVAL) throw;  // EINVAL: this file system has no such thing
    }
  }
#else
  (void)direct;
#endif
  return file;
}

void PageFile::read_header() {
  struct stat status{};
  if (::fstat(buffered_.get(), &status) != 0) throw DiskError(errno, "reading", path_);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < kSector) corrupt(path_, "it has " + std::to_string(size) + " bytes, less than a header; it was cut off");
  read_at(buffered_, path_, reinterpret_cast<char*>(&header_), sizeof header_, 0);
  if (std::memcmp(header_.magic, kMagic, sizeof kMagic) != 0) corrupt(path_, "it is no page file");
  if (header_.version != kFormatVersion) {
    corrupt(path_, "its format is version " + std::to_string(header_.version) + ", this build reads version " +
                       std::to_string(kFormatVersion));
  }
  if (crc32c(&header_, offsetof(FileHeader, checksum)) != header_.checksum) {
    corrupt(path_, "the checksum of its header is wrong");
  }
  if (size != header_.file_bytes) {
    corrupt(path_, "it has " + std::to_string(size) + " bytes, its header says " + std::to_string(header_.file_bytes) +
                       "; it was cut off or added to");
  }
  const Geometry expected(header_.row_bytes);
  geometry_ = Geometry(header_.row_bytes, header_.page_bytes, header_.rows_per_page);
  const std::uint64_t directory_end = header_.directory_offset + header_.pages * sizeof(std::int64_t);
  if (geometry_.page_bytes != expected.page_bytes || geometry_.rows_per_page != expected.rows_per_page ||
      header_.directory_offset != offset_of(header_.pages) || directory_end > header_.filters_offset ||
      header_.filters_offset + header_.pages * header_.filter_bytes > size) {
    corrupt(path_, "its header contradicts itself");
  }
}

void PageFile::read_index() {
  std::vector<std::int64_t> firsts(header_.pages);
  const std::size_t bytes = firsts.size() * sizeof(std::int64_t);
  read_at(buffered_, path_, reinterpret_cast<char*>(firsts.data()), bytes, header_.directory_offset);
  if (crc32c(firsts.data(), bytes) != header_.directory_checksum) {
    corrupt(path_, "the checksum of its directory is wrong");
  }
  directory_ = Directory(std::move(firsts));
  // Some bytes more than there are, so that a filter can be read a word at a time.
  filters_ = AlignedBytes(std::max<std::size_t>(header_.pages * header_.filter_bytes, 1));
  const std::size_t filter_bytes = header_.pages * header_.filter_bytes;
  read_at(buffered_, path_, filters_.data(), filter_bytes, header_.filters_offset);
  if (crc32c(filters_.data(), filter_bytes) != header_.filters_checksum) {
    corrupt(path_, "the checksum of its filters is wrong");
  }
}

std::string PageFile::row_type() const {
  return std::string(header_.row_type, ::strnlen(header_.row_type, sizeof header_.row_type));
}

void PageFile::locate(const std::int64_t* ids, std::size_t n, std::uint64_t* pages) const {
  constexpr std::size_t kTogether = 32;
  const auto* const filters = reinterpret_cast<const unsigned char*>(filters_.data());
  const std::size_t bytes = header_.filter_bytes;
  for (std::size_t start = 0; start < n; start += kTogether) {
    const std::size_t end = std::min(n, start + kTogether);
    directory_.find(ids + start, end - start, pages + start);
    for (std::size_t i = start; i < end; ++i) {
      if (ids[i] > header_.last_id) pages[i] = kNoPage;
      if (pages[i] != kNoPage) __builtin_prefetch(filters + pages[i] * bytes);
    }
    for (std::size_t i = start; i < end; ++i) {
      if (pages[i] != kNoPage && !filter_may_hold(filters + pages[i] * bytes, bytes, header_.filter_probes, ids[i])) {
        pages[i] = kNoPage;
      }
    }
  }
}

std::uint64_t PageFile::page_from(std::int64_t id) const {
  std::uint64_t page = kNoPage;
  directory_.find(&id, 1, &page);
  return page == kNoPage ? 0 : page;
}

void PageFile::check(const char* bytes, std::uint64_t page) const {
  PageHeader header;
  std::memcpy(&header, bytes, sizeof header);
  const char* wrong = nullptr;
  if (crc32c(bytes + sizeof header.checksum, geometry_.page_bytes - sizeof header.checksum) != header.checksum) {
    wrong = "its checksum is wrong";
  } else if (header.stamp != header_.mark + page) {
    wrong = "it is another page, or another file's";
  } else if (header.count == 0 || header.count > geometry_.rows_per_page) {
    wrong = "its number of rows is impossible";
  }
  if (wrong != nullptr) {
    corrupt(path_, "page " + std::to_string(page) + " (byte " + std::to_string(offset_of(page)) + "): " + wrong);
  }
}

void PageFile::read_pages(std::uint64_t first, std::size_t count, char* bytes) const {
  read_at(buffered_, path_, bytes, count * geometry_.page_bytes, offset_of(first));
  for (std::size_t i = 0; i < count; ++i) check(bytes + i * geometry_.page_bytes, first + i);
}

std::vector<std::string> PageFile::problems(std::uint64_t first, std::size_t count) const {
  std::vector<std::string> found;
  const AlignedBytes bytes(geometry_.page_bytes);
  std::vector<std::uint64_t> located(geometry_.rows_per_page);
  for (std::uint64_t page = first; page < first + count; ++page) {
    try {
      read_pages(page, 1, bytes.data());
    } catch (const CorruptPage& error) {
      found.emplace_back(error.what());
      continue;
    }
    const PageView view{bytes.data(), geometry_};
    const std::size_t rows = view.header().count;
    locate(view.ids(), rows, located.data());
    for (std::size_t i = 0; i < rows; ++i) {
      if (located[i] == page && (i == 0 || view.ids()[i - 1] < view.ids()[i])) continue;
      found.push_back(path_ + ": page " + std::to_string(page) + ": id " + std::to_string(view.ids()[i]) +
                      " is out of order, or the directory does not lead to it");
      break;
    }
  }
  return found;
}

PageCursor::PageCursor(std::shared_ptr<const PageFile> file, std::int64_t from) : file_(std::move(file)) {
  if (!file_ || file_->header().pages == 0) return;
  geometry_ = file_->geometry();
  buffer_ = AlignedBytes(std::max(kRunBytes, geometry_.page_bytes));
  next_ = file_->page_from(from);
  next_page();
  while (!at_end() && id() < from) {
    const std::int64_t* const end = ids() + together();
    advance(static_cast<std::size_t>(std::lower_bound(ids(), end, from) - ids()));
  }
}

void PageCursor::advance(std::size_t rows) {
  row_ += rows;
  if (row_ == rows_here_ && file_) next_page();
}

void PageCursor::next_page() {
  row_ = rows_here_ = 0;
  if (++page_ >= pages_here_) {
    const std::uint64_t left = file_->header().pages - next_;
    if (left == 0) return;
    pages_here_ = std::min<std::size_t>(buffer_.size() / geometry_.page_bytes, left);
    file_->read_pages(next_, pages_here_, buffer_.data());
    bytes_read_ += pages_here_ * geometry_.page_bytes;
    next_ += pages_here_;
    page_ = 0;
  }
  view_.bytes = buffer_.data() + page_ * geometry_.page_bytes;
  rows_here_ = view_.header().count;
}

}  // namespace emberline::pages
