// Records by id in a scratch file: of the rows of a training table that are not in DRAM, and of its ids without a row.
//
// A record is three words and a body of one size. Records lie in pages, which a directory in DRAM finds by the highest
// bits of an id's hash (extendible hashing): a full page is split in two, and no call moves more than one page. Of a
// page, DRAM also has the number of its records, and the least and the largest of their second and third word, so that
// a search for some of their values reads no other page.
//
//     page: a byte of the hash of each record, their ids, the records
//
// The hash has a key that differs from process to process, so ids that were chosen to crowd one page do not. One thread
// at a time, but for will_need().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "bucket.cuh"
#include "training/row_parts.h"
#include "training/scratch_file.h"

namespace emberline {

// The first words of a record: count, stamp and tick of a row; or of an id without one count, the stamp at which its
// count changed last, and the stamp of its erasure.
struct RecordHead {
  std::uint32_t count = 0;
  std::uint32_t second = 0;
  std::uint32_t third = 0;
};

// Least and largest value.
struct Bounds {
  std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t most = 0;

  void add(std::uint32_t value) {
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  // Whether a value in (after, upto] may be there.
  bool meet(std::uint32_t after, std::uint32_t upto) const { return most > after && least <= upto; }
};

class RowFile {
 public:
  static constexpr std::uint32_t kNoPage = std::numeric_limits<std::uint32_t>::max();

  struct Page {
    std::uint16_t used = 0;
    std::uint16_t depth = 0;  // how many of the highest bits all its hashes share
    Bounds second, third;
  };

  // body_bytes: a multiple of 4. by_parts: the records of a part of the ids (RowParts) have pages of their own. key: of
  // the hash; 0 draws one.
  RowFile(std::string folder, std::size_t body_bytes, bool by_parts, std::uint64_t key = 0);

  std::size_t size() const { return size_; }
  std::size_t pages() const { return pages_.size(); }
  std::size_t page_bytes() const { return page_bytes_; }
  std::size_t page_records() const { return capacity_; }
  std::size_t record_bytes() const { return record_bytes_; }
  std::size_t file_bytes() const { return file_.bytes(); }
  std::size_t memory_bytes() const;
  std::uint64_t hash(std::int64_t id) const { return mix(static_cast<std::uint64_t>(id) + key_); }

  // Calls visit(i, record) for every id; record: null when there is none. They hold until the next put or erase.
  template <class Visit>
  void find(const std::int64_t* ids, std::size_t n, Visit visit) const;
  const std::uint8_t* find(std::int64_t id) const;

  // Writes a record. body: body_bytes of it. Returns whether it is a new one. Throws ScratchError when there is no disk
  // space for it; then nothing has changed.
  bool put(std::int64_t id, const RecordHead& head, const void* body);
  // Returns whether there was a record.
  bool erase(std::int64_t id);
  // The page where an id would be; kNoPage when it has none.
  std::uint32_t page_of(std::int64_t id) const { return page_at(part_of(id), hash(id)); }
  // Brings what put and erase of an id need into the caches, in two steps.
  void prefetch(std::uint32_t page) const {
    __builtin_prefetch(&pages_[page], 0, 3);
    const std::uint8_t* tags = at(page);
    for (std::size_t byte = 0; byte < tags_bytes_; byte += 64) __builtin_prefetch(tags + byte, 0, 3);
  }
  void prefetch_record(std::uint32_t page, std::int64_t id) const;
  // Asks the kernel for pages, each a number, in any order.
  void will_need(std::vector<std::uint32_t>& pages) const;
  void will_need_of(const std::vector<std::int64_t>& ids) const;

  const Page& page(std::size_t number) const { return pages_[number]; }
  // Calls visit(id, record) for the records of a page, and notes the bounds anew.
  template <class Visit>
  void each(std::size_t number, Visit visit);
  // Asks the kernel for the pages behind, when a scan over all pages comes to this one.
  void scan_ahead(std::size_t number) const;
  // Calls visit(page number) for the pages of a part, each once. Only with by_parts.
  template <class Visit>
  void each_page_of(std::uint32_t part, Visit visit) const;

 private:
  struct Directory {
    std::uint32_t depth = 0;
    std::vector<std::uint32_t> pages;  // 2^depth of them, or none
  };

  static constexpr std::size_t kAhead = 16, kRing = 4 * kAhead;
  static constexpr std::size_t kScanBytes = std::size_t{4} << 20;

  static std::uint8_t tag_of(std::uint64_t hash) { return static_cast<std::uint8_t>(hash); }
  std::uint32_t part_of(std::int64_t id) const { return by_parts_ ? RowParts::part_of(id) : 0; }
  std::size_t entry(const Directory& directory, std::uint64_t hash) const {
    return directory.depth == 0 ? 0 : hash >> (64 - directory.depth);
  }
  std::uint32_t page_at(std::uint32_t part, std::uint64_t hash) const {
    const Directory& directory = directories_[part];
    return directory.pages.empty() ? kNoPage : directory.pages[entry(directory, hash)];
  }
  std::uint8_t* at(std::size_t page) const { return file_.data() + page * page_bytes_; }
  std::int64_t id_at(const std::uint8_t* page, std::size_t place) const {
    std::int64_t id;
    std::memcpy(&id, page + tags_bytes_ + place * sizeof(id), sizeof(id));
    return id;
  }
  std::uint8_t* record_at(std::uint8_t* page, std::size_t place) const {
    return page + tags_bytes_ + capacity_ * sizeof(std::int64_t) + place * record_bytes_;
  }
  // The first place from `place` on whose tag may be this one; `used` or more: none.
  std::size_t match(const std::uint8_t* tags, std::size_t place, std::size_t used, std::uint8_t tag) const;
  std::size_t place_of(std::uint32_t page, std::int64_t id, std::uint8_t tag) const;
  void write(std::uint32_t page, std::size_t place, std::int64_t id, const RecordHead& head, const void* body);
  std::uint32_t add_page(std::uint16_t depth);
  void split(Directory& directory, std::uint64_t hash);

  ScratchFile file_;
  std::size_t record_bytes_, page_bytes_, capacity_, tags_bytes_;
  bool by_parts_;
  std::uint64_t key_;
  std::vector<Directory> directories_;  // by part
  std::vector<Page> pages_;
  std::size_t size_ = 0;
  std::size_t directory_entries_ = 0;
};

// In steps, each kAhead ids behind the one before: the directory, the page, the record.
template <class Visit>
void RowFile::find(const std::int64_t* ids, std::size_t n, Visit visit) const {
  std::uint64_t hashes[kRing];
  std::uint32_t numbers[kRing];
  std::size_t places[kRing];
  for (std::size_t step = 0; step < n + 3 * kAhead; ++step) {
    if (step < n) {
      const std::uint64_t mixed = hashes[step % kRing] = hash(ids[step]);
      const Directory& directory = directories_[part_of(ids[step])];
      if (!directory.pages.empty()) __builtin_prefetch(&directory.pages[entry(directory, mixed)], 0, 3);
    }
    if (step >= kAhead && step < n + kAhead) {
      const std::size_t i = step - kAhead;
      const std::uint32_t number = numbers[i % kRing] = page_at(part_of(ids[i]), hashes[i % kRing]);
      if (number != kNoPage) prefetch(number);
    }
    if (step >= 2 * kAhead && step < n + 2 * kAhead) {
      const std::size_t i = step - 2 * kAhead;
      const std::uint32_t number = numbers[i % kRing];
      if (number != kNoPage) {
        std::uint8_t* page = at(number);
        const std::size_t used = pages_[number].used;
        const std::size_t place = places[i % kRing] = match(page, 0, used, tag_of(hashes[i % kRing]));
        if (place < used) {
          __builtin_prefetch(page + tags_bytes_ + place * sizeof(std::int64_t), 0, 3);
          const std::uint8_t* record = record_at(page, place);
          for (std::size_t byte = 0; byte < record_bytes_ && byte < 512; byte += 64) {
            __builtin_prefetch(record + byte, 0, 3);
          }
        }
      }
    }
    if (step >= 3 * kAhead) {
      const std::size_t i = step - 3 * kAhead;
      const std::uint32_t number = numbers[i % kRing];
      const std::uint8_t* record = nullptr;
      if (number != kNoPage) {
        std::uint8_t* page = at(number);
        const std::size_t used = pages_[number].used;
        std::size_t place = places[i % kRing];
        while (place < used && id_at(page, place) != ids[i]) {
          place = match(page, place + 1, used, tag_of(hashes[i % kRing]));
        }
        if (place < used) record = record_at(page, place);
      }
      visit(i, record);
    }
  }
}

template <class Visit>
void RowFile::each(std::size_t number, Visit visit) {
  std::uint8_t* page = at(number);
  Page& facts = pages_[number];
  facts.second = facts.third = Bounds();
  for (std::size_t place = 0; place < facts.used; ++place) {
    const std::uint8_t* record = record_at(page, place);
    RecordHead head;
    std::memcpy(&head, record, sizeof(head));
    facts.second.add(head.second);
    facts.third.add(head.third);
    visit(id_at(page, place), record);
  }
}

template <class Visit>
void RowFile::each_page_of(std::uint32_t part, Visit visit) const {
  const Directory& directory = directories_[part];
  for (std::size_t at = 0; at < directory.pages.size(); ++at) {
    if (at == 0 || directory.pages[at] != directory.pages[at - 1]) visit(directory.pages[at]);
  }
}

}  // namespace emberline
