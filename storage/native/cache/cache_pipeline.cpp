#include "cache/cache_pipeline.h"

#include <algorithm>
#include <new>
#include <utility>

namespace emberline {
namespace {

std::uint64_t thread_random() {
  thread_local std::uint64_t state = 0x9E3779B97F4A7C15ull;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

}  // namespace

RowPipeline& CacheTable::start(PipelineSpace& space, const std::int64_t* ids, std::size_t n, const char** rows) const {
  return *new (space.memory()) CachePipeline(*this, ids, n, rows);
}

CachePipeline::CachePipeline(const CacheTable& table, const std::int64_t* ids, std::size_t n, const char** rows)
    : RowPipeline(ids, n, rows),
      table_(table),
      cache_(table.cache_),
      view_(*table.cache_.view_.load(std::memory_order_acquire)),
      sample_mask_(table.cache_.sample_mask_.load(std::memory_order_relaxed)),
      skip_mask_(table.cache_.skip_mask_.load(std::memory_order_relaxed)),
      random_(thread_random()),
      row_bytes_(table.cache_.row_bytes_) {
  prefetch_buckets();
}

void CachePipeline::prefetch_buckets() {
  const std::size_t end = std::min(count_, mixed_end_ + kBlock);
  std::uint64_t* mixed = mixed_[(mixed_end_ / kBlock) & 1];
  for (std::size_t i = mixed_end_; i < end; ++i) {
    const std::uint64_t value = mix_owner(ids_[i], table_.salt_);
    mixed[i - mixed_end_] = value;
    __builtin_prefetch(&view_.fresh->first(value), 0, 3);
  }
  mixed_end_ = end;
}

void CachePipeline::take(std::size_t i, const CacheBucket& bucket, Match match, Found& told) {
  if (match.at < 0) {
    rows_[i] = nullptr;
    return;
  }
  const char* row = cache_.slots_.row(word::slot(match.word));
  rows_[i] = row;
  prefetch_row(row, row_bytes_);
  ++hits_;
  random_ = random_ * 0x5851F42D4C957F2Dull + 0x14057B7EF767814Full;
  if (FrequencyPolicy::reported(word::count(match.word), static_cast<std::uint32_t>(random_ >> 32))) {
    told.positions[told.uses++] = view_.fresh->position(bucket, match.at);
  }
}

void CachePipeline::match_block() {
  const std::size_t start = matched_;
  const std::size_t end = std::min(count_, start + kBlock);
  if (view_.old != nullptr) {
    match_moving(start, end);
  } else {
    const std::uint64_t* mixed = mixed_[(start / kBlock) & 1];
    prefetch_buckets();
    Found told;
    const std::size_t hits_before = hits_;
    std::uint32_t later[kBlock];
    std::uint64_t flags[kBlock];
    std::size_t late = 0;
    for (std::size_t i = 0; i < end - start; ++i) {
      const CacheBucket& head = view_.fresh->first(mixed[i]);
      const std::uint64_t seen = head.words[0].load(std::memory_order_acquire) & word::kFlags;
      if (const Match match = probe(head, ids_[start + i], table_.table_); match.at >= 0) {
        take(start + i, head, match, told);
      } else {
        if ((seen & word::kOverflow) != 0) __builtin_prefetch(&view_.fresh->second(mixed[i]), 0, 3);
        flags[late] = seen;
        later[late++] = static_cast<std::uint32_t>(i);
      }
    }
    for (std::size_t k = 0; k < late; ++k) {
      const std::size_t i = later[k];
      const CacheBucket* where = &view_.fresh->first(mixed[i]);
      const Match match = view_.fresh->find_on(ids_[start + i], table_.table_, mixed[i], flags[k], &where);
      take(start + i, *where, match, told);
    }
    for (std::size_t i = 0; i < end - start; ++i) {
      if (MissRatioCurve::sampled(mixed[i], sample_mask_)) {
        told.sampled[told.samples++] = {mixed[i], table_.table_, rows_[start + i] != nullptr};
      }
    }
    // Samples are dropped by chance and not by place: where the log fills up within a batch, it would know the batch's
    // first tables alone.
    if (((random_ >> 20) & skip_mask_) != 0) skipped_ += std::exchange(told.samples, 0u);
    UseLog::Dropped dropped;
    if (told.uses + told.samples > 0) dropped = cache_.log_.add(told.positions, told.uses, told.sampled, told.samples);
    lost_ += dropped.samples;
    if (dropped.uses == 0) {
      told_lookups_ += end - start;
      told_hits_ += hits_ - hits_before;
    }
  }
  matched_ = end;
  if (matched_ == count_) {
    Cache::TableState& state = cache_.state(table_.table_);
    state.lookups.fetch_add(count_, std::memory_order_relaxed);
    state.hits.fetch_add(hits_, std::memory_order_relaxed);
    if (told_lookups_ > 0) state.told_lookups.fetch_add(told_lookups_, std::memory_order_relaxed);
    if (skipped_ > 0) state.skipped_samples.fetch_add(skipped_, std::memory_order_relaxed);
    if (lost_ > 0) state.lost_samples.fetch_add(lost_, std::memory_order_relaxed);
    if (told_hits_ > 0) state.told_hits.fetch_add(told_hits_, std::memory_order_relaxed);
  }
}

// Matches while the index moves to another array: an id that is not in the old one is in the new one, if in any.
// Reports nothing.
void CachePipeline::match_moving(std::size_t start, std::size_t end) {
  const std::uint64_t* mixed = mixed_[(start / kBlock) & 1];
  prefetch_buckets();
  for (std::size_t i = 0; i < end - start; ++i) {
    const CacheBucket* where = nullptr;
    Match match = view_.old->find(ids_[start + i], table_.table_, mixed[i], &where);
    if (match.at < 0) match = view_.fresh->find(ids_[start + i], table_.table_, mixed[i], &where);
    rows_[start + i] = match.at < 0 ? nullptr : cache_.slots_.row(word::slot(match.word));
    if (match.at < 0) continue;
    prefetch_row(rows_[start + i], row_bytes_);
    ++hits_;
  }
}

}  // namespace emberline
