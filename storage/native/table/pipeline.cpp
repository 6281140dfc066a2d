#include "table/pipeline.h"

#include <cstring>
#include <new>

namespace emberline {
namespace {

// One block in four counts its uses, each for four: a counter is one more cache miss, and a sample says as much.
constexpr std::uint32_t kSample = 4;

std::uint32_t thread_random() {
  thread_local std::uint64_t state = 0x9E3779B97F4A7C15ull;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<std::uint32_t>(state >> 32);
}

}  // namespace

RowPipeline& Table::start(PipelineSpace& space, const std::int64_t* ids, std::size_t n, const char** rows) const {
  return *new (space.memory()) TablePipeline(*this, ids, n, rows);
}

void TablePipeline::prefetch_lines() {
  const std::size_t end = std::min(count_, mixed_end_ + kBlock);
  std::uint64_t* mixed = mixed_[(mixed_end_ / kBlock) & 1];
  for (std::size_t i = mixed_end_; i < end; ++i) {
    const std::uint64_t value = mix_id(ids_[i]);
    mixed[i - mixed_end_] = value;
    __builtin_prefetch(&lines_.first(value), 0, 3);
  }
  mixed_end_ = end;
}

void TablePipeline::match_block() {
  const std::size_t start = matched_;
  const std::size_t end = std::min(count_, start + kBlock);
  const std::uint64_t* mixed = mixed_[(start / kBlock) & 1];
  prefetch_lines();
  std::uint32_t later[kBlock];
  std::uint32_t versions[kBlock];
  std::size_t late = 0;
  for (std::size_t i = 0; i < end - start; ++i) {
    const Line& head = lines_.first(mixed[i]);
    const std::uint32_t version = head.version.load(std::memory_order_acquire);
    const std::uint32_t slot = probe(head, ids_[start + i]);
    slots_[i] = slot;
    if (slot != kEmptySlot) {
      const char* row = table_.slab_.row(slot);
      rows_[start + i] = row;
      prefetch_row(row, row_bytes_);
    } else {
      if ((version & kOverflowBit) != 0) __builtin_prefetch(&lines_.second(mixed[i]), 0, 3);
      versions[late] = version;
      later[late++] = static_cast<std::uint32_t>(i);
    }
  }
  for (std::size_t k = 0; k < late; ++k) {
    const std::size_t i = later[k];
    const std::uint32_t slot = lines_.find_on(ids_[start + i], mixed[i], versions[k]);
    slots_[i] = slot;
    const char* row = slot == kEmptySlot ? nullptr : table_.slab_.row(slot);
    rows_[start + i] = row;
    if (row != nullptr) prefetch_row(row, row_bytes_);
  }
  if (slots_out_ != nullptr) std::memcpy(slots_out_ + start, slots_, (end - start) * sizeof(slots_[0]));
  matched_ = end;
  if (table_.capacity_ > 0 && thread_random() % kSample == 0) touch(start, end);
}

void TablePipeline::touch(std::size_t start, std::size_t end) {
  for (std::size_t i = 0; i < end - start; ++i) {
    if (slots_[i] == kEmptySlot) continue;
    // Two readers may count at once and one use be lost: it is a sample anyway.
    std::atomic<std::uint8_t>& score = table_.slab_.score(slots_[i]);
    score.store(count_add(score.load(std::memory_order_relaxed), kSample, thread_random()), std::memory_order_relaxed);
  }
  table_.uses_.fetch_add((end - start) * kSample, std::memory_order_relaxed);
}

}  // namespace emberline
