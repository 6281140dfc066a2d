#include "table/pipeline.h"

#include <cstring>
#include <new>

namespace emberline {
namespace {

// One step in four counts its uses, each for four: a counter is one more cache miss, and a sample says as much.
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

TablePipeline::TablePipeline(const Table& table, const std::int64_t* ids, std::size_t n, const char** rows,
                             std::uint32_t* slots)
    : RowPipeline(ids, n, rows, table.format().bytes() < kLargeRow ? kRowAhead : kLargeRowAhead),
      table_(table),
      buckets_(*table.buckets_.load(std::memory_order_acquire)),
      match_(match_block_of(isa())),
      task_{&buckets_.bucket(0),
            buckets_.count(),
            table.slab_.view(),
            table.format().bytes(),
            ids,
            n,
            kBucketAhead,
            rows,
            slots_,
            bucket_ring_},
      slots_out_(slots) {
  const std::size_t end = std::min(n, kBucketAhead);
  for (std::size_t i = 0; i < end; ++i) {
    const std::uint64_t bucket = first_bucket(mix_id(ids[i]), task_.bucket_count);
    bucket_ring_[i] = static_cast<std::uint32_t>(bucket);
    __builtin_prefetch(task_.buckets + bucket, 0, 3);
  }
}

// Matches a step, and ends the one before: what was late there has had a step's time for its second bucket to come.
void TablePipeline::match_block() {
  const std::size_t start = started_;
  const std::size_t end = std::min(count_, start + kStep);
  std::uint32_t late[kStep];
  const std::size_t late_count = match_(task_, start, end, late);
  for (std::size_t k = 0; k < late_count; ++k) {
    const std::uint64_t mixed = mix_id(ids_[late[k]]);
    const Bucket& head = buckets_.first(mixed);
    if ((head.version.load(std::memory_order_relaxed) & kOverflowBit) != 0)
      __builtin_prefetch(&buckets_.second(mixed), 0, 3);
  }
  search(late_, late_count_);
  if (end == count_) {
    search(late, late_count);
    late_count_ = 0;
  } else {
    std::memcpy(late_, late, late_count * sizeof(late[0]));
    late_count_ = late_count;
  }
  const std::size_t known = end == count_ ? end : start;
  if (slots_out_ != nullptr) {
    for (std::size_t i = matched_; i < known; ++i) slots_out_[i] = slots_[i % MatchTask::kRing];
  }
  if (table_.capacity_ > 0 && thread_random() % kSample == 0) touch(matched_, known);
  started_ = end;
  matched_ = known;
}

// Searches from the start: an id that was not found at the first look may have moved meanwhile.
void TablePipeline::search(const std::uint32_t* late, std::size_t n) {
  for (std::size_t k = 0; k < n; ++k) {
    const std::uint32_t at = late[k];
    const std::uint32_t slot = buckets_.find(ids_[at], mix_id(ids_[at]));
    slots_[at % MatchTask::kRing] = slot;
    if (slot == kEmptySlot) continue;
    rows_[at] = task_.slab.row(slot);
    prefetch_row(rows_[at], task_.row_bytes);
  }
}

void TablePipeline::touch(std::size_t start, std::size_t end) {
  for (std::size_t i = start; i < end; ++i) {
    const std::uint32_t slot = slots_[i % MatchTask::kRing];
    if (slot == kEmptySlot) continue;
    // Two readers may count at once and one use be lost: it is a sample anyway.
    std::atomic<std::uint8_t>& score = table_.slab_.score(slot);
    score.store(count_add(score.load(std::memory_order_relaxed), kSample, thread_random()), std::memory_order_relaxed);
  }
  table_.uses_.fetch_add((end - start) * kSample, std::memory_order_relaxed);
}

}  // namespace emberline
