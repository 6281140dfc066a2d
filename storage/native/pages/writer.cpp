#include "pages/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "pages/crc32c.h"
#include "pages/filter.h"

namespace emberline::pages {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

std::uint64_t random_mark() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

}  // namespace

PageWriter::PageWriter(std::string path, const TableFormat& format)
    : path_(std::move(path)), part_(path_ + ".part"), geometry_(format.row_bytes) {
  if (format.row_type.size() >= sizeof header_.row_type) {
    throw std::invalid_argument("row_type: " + format.row_type + " is longer than 15 characters");
  }
  if (format.bits_per_id < 1 || format.bits_per_id > 32) {
    throw std::invalid_argument("bits_per_id: " + std::to_string(format.bits_per_id) + ", expected 1 to 32");
  }
  std::memcpy(header_.magic, kMagic, sizeof kMagic);
  header_.version = kFormatVersion;
  header_.page_bytes = static_cast<std::uint32_t>(geometry_.page_bytes);
  header_.row_bytes = static_cast<std::uint32_t>(geometry_.row_bytes);
  header_.rows_per_page = static_cast<std::uint32_t>(geometry_.rows_per_page);
  header_.table = format.table;
  header_.filter_bytes = static_cast<std::uint32_t>(filter_bytes_for(geometry_.rows_per_page, format.bits_per_id));
  header_.filter_probes = filter_probes_for(format.bits_per_id);
  std::memcpy(header_.row_type, format.row_type.data(), format.row_type.size());
  header_.mark = random_mark();
  buffer_ = AlignedBytes(std::max(kBufferBytes, geometry_.page_bytes));
  file_ = open_file(part_, O_RDWR | O_CREAT | O_TRUNC);
}

PageWriter::~PageWriter() {
  if (!finished_) ::unlink(part_.c_str());
}

char* PageWriter::page() { return buffer_.data() + filled_; }

void PageWriter::append(const std::int64_t* ids, const char* rows, std::size_t n, const std::uint32_t* order) {
  if (finished_) throw std::invalid_argument("append: the file is finished");
  constexpr std::size_t kAhead = 16;  // rows out of order are cache misses
  const std::size_t row_bytes = geometry_.row_bytes;
  for (std::size_t i = 0; i < n;) {
    const std::size_t count = std::min(n - i, geometry_.rows_per_page - in_page_);
    auto* const page_ids = reinterpret_cast<std::int64_t*>(page() + geometry_.ids_at()) + in_page_;
    char* const page_rows = page() + geometry_.rows_at() + in_page_ * row_bytes;
    if (in_page_ == 0) {
      std::memset(page(), 0, geometry_.page_bytes);
      const std::size_t first = order == nullptr ? i : order[i];
      firsts_.push_back(ids[first]);
      filters_.resize(filters_.size() + header_.filter_bytes);
    }
    if (order == nullptr) {
      std::memcpy(page_ids, ids + i, count * sizeof(std::int64_t));
      std::memcpy(page_rows, rows + i * row_bytes, count * row_bytes);
    } else {
      for (std::size_t k = 0; k < count; ++k) {
        if (i + k + kAhead < n) {
          const char* const later = rows + order[i + k + kAhead] * row_bytes;
          for (std::size_t byte = 0; byte < row_bytes && byte < 512; byte += 64) __builtin_prefetch(later + byte);
          __builtin_prefetch(ids + order[i + k + kAhead]);
        }
        page_ids[k] = ids[order[i + k]];
        std::memcpy(page_rows + k * row_bytes, rows + order[i + k] * row_bytes, row_bytes);
      }
    }
    unsigned char* const filter = filters_.data() + filters_.size() - header_.filter_bytes;
    for (std::size_t k = 0; k < count; ++k) {
      if (header_.rows + k > 0 && page_ids[k] <= header_.last_id) {
        throw std::invalid_argument("ids: " + std::to_string(page_ids[k]) + " after " +
                                    std::to_string(header_.last_id) + ", expected each id once and in ascending order");
      }
      header_.last_id = page_ids[k];
      filter_add(filter, header_.filter_bytes, header_.filter_probes, page_ids[k]);
    }
    header_.rows += count;
    in_page_ += count;
    i += count;
    if (in_page_ == geometry_.rows_per_page) end_page();
  }
}

void PageWriter::end_page() {
  PageHeader header{0, static_cast<std::uint32_t>(in_page_), header_.mark + header_.pages};
  std::memcpy(page(), &header, sizeof header);
  header.checksum = crc32c(page() + sizeof header.checksum, geometry_.page_bytes - sizeof header.checksum);
  std::memcpy(page(), &header, sizeof header);
  ++header_.pages;
  in_page_ = 0;
  filled_ += geometry_.page_bytes;
  if (filled_ + geometry_.page_bytes > buffer_.size()) flush();
}

void PageWriter::flush() {
  if (filled_ == 0) return;
  write_at(file_, part_, buffer_.data(), filled_, offset_);
#ifdef SYNC_FILE_RANGE_WRITE
  // The disk begins at once, so that forcing the file in the end does not take as long as writing it.
  (void)::sync_file_range(file_.get(), static_cast<off_t>(offset_), static_cast<off_t>(filled_), SYNC_FILE_RANGE_WRITE);
#endif
  offset_ += filled_;
  filled_ = 0;
}

void PageWriter::write_padded(const void* data, std::size_t bytes) {
  write_at(file_, part_, static_cast<const char*>(data), bytes, offset_);
  const std::size_t end = to_sectors(bytes);
  const char zeros[kSector] = {};
  write_at(file_, part_, zeros, end - bytes, offset_ + bytes);
  offset_ += end;
}

void PageWriter::write_index() {
  header_.first_id = firsts_.empty() ? 0 : firsts_.front();
  header_.directory_offset = offset_;
  header_.directory_checksum = crc32c(firsts_.data(), firsts_.size() * sizeof(std::int64_t));
  write_padded(firsts_.data(), firsts_.size() * sizeof(std::int64_t));
  header_.filters_offset = offset_;
  header_.filters_checksum = crc32c(filters_.data(), filters_.size());
  write_padded(filters_.data(), filters_.size());
  header_.file_bytes = offset_;
}

void PageWriter::finish() {
  if (finished_) throw std::invalid_argument("finish: the file is finished");
  if (in_page_ > 0) end_page();
  flush();
  write_index();
  header_.checksum = crc32c(&header_, offsetof(FileHeader, checksum));
  char sector[kSector] = {};
  std::memcpy(sector, &header_, sizeof header_);
  write_at(file_, part_, sector, kSector, 0);
  sync_file(file_, part_);
  rename_file(part_, path_);
  finished_ = true;  // the destructor must not remove the file any more
  sync_folder_of(path_);
  file_.close();
}

}  // namespace emberline::pages
