// The reading side of Table: find, export, the integrity check.
#include <cstring>
#include <string>
#include <unordered_set>

#include "rows/kernels.h"
#include "table/pipeline.h"
#include "table/table.h"
#include "table/workers.h"

namespace emberline {
namespace {

// Ids per reader section: short, so that a writer who waits for readers waits for microseconds.
constexpr std::size_t kWindow = 1024;

}  // namespace

std::size_t Table::find(const std::int64_t* ids, std::size_t n, float* out, std::uint8_t* found,
                        std::size_t threads) const {
  constexpr std::size_t kIdsPerThread = 2048;
  if (threads < 1 || threads > Workers::kMost) {
    throw std::invalid_argument("threads: expected 1 to " + std::to_string(Workers::kMost) + ", got " +
                                std::to_string(threads));
  }
  const std::size_t parts = std::clamp<std::size_t>(n / kIdsPerThread, 1, threads);
  if (parts == 1) return find_part(ids, n, out, found);
  std::atomic<std::size_t> hits{0};
  Workers::shared().run(parts, [&](std::size_t part) {
    const std::size_t from = n * part / parts, to = n * (part + 1) / parts;
    hits += find_part(ids + from, to - from, out + from * dim(), found + from);
  });
  return hits;
}

std::size_t Table::find_part(const std::int64_t* ids, std::size_t n, float* out, std::uint8_t* found) const {
  constexpr std::size_t kCopied = 16;  // rows in one go
  const char* rows[kWindow];
  const std::uint32_t dim = format_.dim;
  const RowKernels::Gather gather = row_kernels().gather[static_cast<int>(format_.type)];
  std::size_t hits = 0;
  for (std::size_t start = 0; start < n; start += kWindow) {
    const std::size_t count = std::min(kWindow, n - start);
    const ReaderSection section;
    TablePipeline pipeline(*this, ids + start, count, rows);
    for (std::size_t at = 0; at < count; at += kCopied) {
      const std::size_t end = std::min(count, at + kCopied);
      pipeline.advance(end);
      const char* const* from = rows + at;
      float* to = out + (start + at) * dim;
      std::size_t here = 0;
      for (std::size_t i = at; i < end; ++i) {
        found[start + i] = rows[i] != nullptr;
        here += rows[i] != nullptr;
      }
      hits += here;
      if (here == end - at) {
        gather(from, end - at, dim, to);
        continue;
      }
      for (std::size_t i = at; i < end; ++i, to += dim) {
        if (rows[i] != nullptr) {
          gather(rows + i, 1, dim, to);
        } else {
          std::memset(to, 0, dim * sizeof(float));
        }
      }
    }
  }
  return hits;
}

std::uint32_t Table::locate(std::int64_t id) const { return buckets().find(id, mix_id(id)); }

ExportedRows Table::export_batch(std::uint64_t cursor, std::size_t limit) const {
  return export_rows(cursor, limit, false);
}

ExportedRows Table::export_encoded(std::uint64_t cursor, std::size_t limit) const {
  return export_rows(cursor, limit, true);
}

ExportedRows Table::export_rows(std::uint64_t cursor, std::size_t limit, bool encoded) const {
  const std::lock_guard lock(mutex_);
  const BucketArray& array = buckets();
  const std::size_t floats = format_.dim + extra_;
  ExportedRows batch;
  std::uint64_t position = cursor;
  const std::uint64_t end = array.count() * kBucketIds;
  for (; position < end && batch.ids.size() < limit; ++position) {
    const Bucket& bucket = array.bucket(position / kBucketIds);
    const std::uint32_t slot = bucket.slots[position % kBucketIds].load(std::memory_order_relaxed);
    if (slot == kEmptySlot) continue;
    batch.ids.push_back(bucket.ids[position % kBucketIds].load(std::memory_order_relaxed));
    const char* row = slab_.row(slot);
    if (encoded) {
      batch.encoded.insert(batch.encoded.end(), row, row + stride());
    } else {
      batch.rows.resize(batch.rows.size() + floats);
      float* to = batch.rows.data() + batch.rows.size() - floats;
      decode_rows(format_, row, 1, to);
      if (extra_ > 0) std::memcpy(to + format_.dim, row + format_.bytes(), extra_ * sizeof(float));
    }
    batch.freq.push_back(slab_.score(slot).load(std::memory_order_relaxed));
  }
  batch.next_cursor = position < end ? static_cast<std::int64_t>(position) : -1;
  return batch;
}

void Table::check_integrity() const {
  const std::lock_guard lock(mutex_);
  const BucketArray& array = buckets();
  std::unordered_set<std::int64_t> ids;
  std::vector<bool> used(std::size_t{slab_.used()} + 1);
  const auto claim = [&](std::uint32_t slot, const char* by) {
    if (slot == kEmptySlot || slot > slab_.used() || used[slot]) {
      throw std::logic_error("slot " + std::to_string(slot) + " is out of range or held twice, now by " + by);
    }
    used[slot] = true;
  };
  for (std::uint64_t index = 0; index < array.count(); ++index) {
    const Bucket& bucket = array.bucket(index);
    for (int at = 0; at < kBucketIds; ++at) {
      const std::uint32_t slot = bucket.slots[at].load(std::memory_order_relaxed);
      if (slot == kEmptySlot) continue;
      const std::int64_t id = bucket.ids[at].load(std::memory_order_relaxed);
      const std::uint64_t mixed = mix_id(id);
      const std::string name = "id " + std::to_string(id);
      if (!ids.insert(id).second) throw std::logic_error(name + " stands in the index twice");
      if (&array.first(mixed) != &bucket) {
        if (&array.second(mixed) != &bucket) throw std::logic_error(name + " stands in a bucket that is not its own");
        if ((array.first(mixed).version.load() & kOverflowBit) == 0) {
          throw std::logic_error(name + " is in its second bucket, and the first does not say so");
        }
      }
      claim(slot, "an id");
    }
  }
  for (const std::uint32_t slot : free_slots_) claim(slot, "the free list");
  for (const auto& old : old_slots_) claim(old.second, "the old rows");
  for (std::size_t slot = 1; slot < used.size(); ++slot) {
    if (!used[slot]) throw std::logic_error("slot " + std::to_string(slot) + " is lost");
  }
  if (ids.size() != size()) {
    throw std::logic_error("size says " + std::to_string(size()) + ", the index holds " + std::to_string(ids.size()));
  }
}

}  // namespace emberline
