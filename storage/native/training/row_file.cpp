#include "training/row_file.h"

#include <algorithm>
#include <bit>
#include <random>

namespace emberline {
namespace {

constexpr std::size_t kLeastPage = 4096;
// A page has room for so many records at least: with fewer, many pages are split early, and the directory is large.
constexpr std::size_t kLeastRecords = 8;
constexpr std::size_t kTagWord = sizeof(std::uint64_t);
constexpr std::size_t kLine = 64;

std::uint64_t drawn() {
  static const std::uint64_t key = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32 | 1;
  return key;
}

std::size_t rounded(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

RowFile::RowFile(std::string folder, std::size_t body_bytes, bool by_parts, std::uint64_t key)
    : file_(std::move(folder)),
      record_bytes_(sizeof(RecordHead) + body_bytes),
      by_parts_(by_parts),
      key_(key == 0 ? drawn() : key),
      directories_(by_parts ? RowParts::kParts : 1) {
  const std::size_t each = 1 + sizeof(std::int64_t) + record_bytes_;
  page_bytes_ = std::max(kLeastPage, std::bit_ceil(kLeastRecords * each + kTagWord));
  capacity_ = (page_bytes_ - kTagWord) / each;
  tags_bytes_ = rounded(capacity_, kTagWord);
}

std::size_t RowFile::memory_bytes() const {
  return pages_.capacity() * sizeof(Page) + directory_entries_ * sizeof(std::uint32_t) +
         directories_.size() * sizeof(Directory);
}

std::size_t RowFile::match(const std::uint8_t* tags, std::size_t place, std::size_t used, std::uint8_t tag) const {
  constexpr std::uint64_t kOnes = 0x0101010101010101u, kHigh = 0x8080808080808080u;
  for (std::size_t first = place / kTagWord * kTagWord; first < used; first += kTagWord) {
    std::uint64_t word;
    std::memcpy(&word, tags + first, sizeof(word));
    word ^= kOnes * tag;
    // The high bit of every byte that is zero; and of some behind such a byte, which are compared in vain.
    std::uint64_t zero = (word - kOnes) & ~word & kHigh;
    if (first < place) zero &= ~std::uint64_t{0} << (8 * (place - first));
    if (zero != 0) return first + static_cast<std::size_t>(std::countr_zero(zero)) / 8;
  }
  return used;
}

std::size_t RowFile::place_of(std::uint32_t page, std::int64_t id, std::uint8_t tag) const {
  const std::uint8_t* from = at(page);
  const std::size_t used = pages_[page].used;
  std::size_t place = match(from, 0, used, tag);
  while (place < used && id_at(from, place) != id) place = match(from, place + 1, used, tag);
  return place;
}

const std::uint8_t* RowFile::find(std::int64_t id) const {
  const std::uint32_t page = page_of(id);
  if (page == kNoPage) return nullptr;
  const std::size_t place = place_of(page, id, tag_of(hash(id)));
  return place < pages_[page].used ? record_at(at(page), place) : nullptr;
}

void RowFile::prefetch_record(std::uint32_t page, std::int64_t id) const {
  std::uint8_t* from = at(page);
  const std::size_t place = match(from, 0, pages_[page].used, tag_of(hash(id)));
  if (place >= capacity_) return;
  __builtin_prefetch(from + tags_bytes_ + place * sizeof(std::int64_t), 1, 3);
  const std::uint8_t* record = record_at(from, place);
  for (std::size_t byte = 0; byte < record_bytes_ && byte < 8 * kLine; byte += kLine) {
    __builtin_prefetch(record + byte, 1, 3);
  }
}

void RowFile::will_need(std::vector<std::uint32_t>& pages) const {
  std::sort(pages.begin(), pages.end());
  for (std::size_t first = 0; first < pages.size();) {
    std::size_t last = first + 1;
    while (last < pages.size() && pages[last] <= pages[last - 1] + 1) ++last;
    const std::size_t count = pages[last - 1] - pages[first] + 1;
    if (pages[first] != kNoPage) file_.will_need(pages[first] * page_bytes_, count * page_bytes_);
    first = last;
  }
}

void RowFile::will_need_of(const std::vector<std::int64_t>& ids) const {
  std::vector<std::uint32_t> pages;
  pages.reserve(ids.size());
  for (const std::int64_t id : ids) pages.push_back(page_of(id));
  will_need(pages);
}

void RowFile::scan_ahead(std::size_t number) const {
  const std::size_t each = std::max<std::size_t>(1, kScanBytes / page_bytes_);
  if (number % each == 0) file_.will_need((number + each) * page_bytes_, each * page_bytes_);
}

void RowFile::write(std::uint32_t page, std::size_t place, std::int64_t id, const RecordHead& head, const void* body) {
  std::uint8_t* to = at(page);
  to[place] = tag_of(hash(id));
  std::memcpy(to + tags_bytes_ + place * sizeof(id), &id, sizeof(id));
  std::uint8_t* record = record_at(to, place);
  std::memcpy(record, &head, sizeof(head));
  if (record_bytes_ > sizeof(head)) std::memcpy(record + sizeof(head), body, record_bytes_ - sizeof(head));
  pages_[page].second.add(head.second);
  pages_[page].third.add(head.third);
}

bool RowFile::put(std::int64_t id, const RecordHead& head, const void* body) {
  const std::uint64_t mixed = hash(id);
  const std::uint32_t part = part_of(id);
  Directory& directory = directories_[part];
  if (directory.pages.empty()) {
    const std::uint32_t first = add_page(0);
    directory.pages.push_back(first);
    ++directory_entries_;
  }
  std::uint32_t page = page_at(part, mixed);
  const std::size_t place = place_of(page, id, tag_of(mixed));
  if (place < pages_[page].used) {
    write(page, place, id, head, body);
    return false;
  }
  while (pages_[page].used == capacity_) {
    split(directory, mixed);
    page = page_at(part, mixed);
  }
  write(page, pages_[page].used++, id, head, body);
  ++size_;
  return true;
}

bool RowFile::erase(std::int64_t id) {
  const std::uint32_t page = page_of(id);
  if (page == kNoPage) return false;
  const std::size_t place = place_of(page, id, tag_of(hash(id)));
  Page& facts = pages_[page];
  if (place >= facts.used) return false;
  std::uint8_t* from = at(page);
  const std::size_t last = --facts.used;
  --size_;
  if (place == last) return true;
  from[place] = from[last];
  std::uint8_t* ids = from + tags_bytes_;
  std::memcpy(ids + place * sizeof(id), ids + last * sizeof(id), sizeof(id));
  std::memcpy(record_at(from, place), record_at(from, last), record_bytes_);
  return true;
}

std::uint32_t RowFile::add_page(std::uint16_t depth) {
  file_.grow((pages_.size() + 1) * page_bytes_);
  pages_.emplace_back().depth = depth;
  return static_cast<std::uint32_t>(pages_.size() - 1);
}

// Moves half of a page's records, by the next bit of their hashes, to a new page.
void RowFile::split(Directory& directory, std::uint64_t hash_of_id) {
  const std::uint32_t old = directory.pages[entry(directory, hash_of_id)];
  const auto depth = static_cast<std::uint16_t>(pages_[old].depth + 1);
  const std::uint32_t upper = add_page(depth);
  if (depth > directory.depth) {
    std::vector<std::uint32_t> doubled(directory.pages.size() * 2);
    for (std::size_t i = 0; i < doubled.size(); ++i) doubled[i] = directory.pages[i / 2];
    directory_entries_ += doubled.size() - directory.pages.size();
    directory.pages = std::move(doubled);
    ++directory.depth;
  }
  std::vector<std::uint8_t> before(at(old), at(old) + page_bytes_);
  const std::size_t used = pages_[old].used;
  pages_[old] = Page();
  pages_[old].depth = depth;
  for (std::size_t place = 0; place < used; ++place) {
    const std::int64_t id = id_at(before.data(), place);
    const std::uint32_t to = (hash(id) >> (64 - depth) & 1) != 0 ? upper : old;
    const std::uint8_t* record = record_at(before.data(), place);
    RecordHead head;
    std::memcpy(&head, record, sizeof(head));
    write(to, pages_[to].used++, id, head, record + sizeof(head));
  }
  // The entries of a page are neighbours; the upper half of them is the new page's.
  const std::size_t each = std::size_t{1} << (directory.depth - depth);
  const std::size_t first = entry(directory, hash_of_id) / (2 * each) * (2 * each) + each;
  for (std::size_t i = first; i < first + each; ++i) directory.pages[i] = upper;
}

}  // namespace emberline
