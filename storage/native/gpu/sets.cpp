// The set of changes: the difference between what was on the device and what is to be there.
#include <stdexcept>
#include <utility>

#include "gpu/gpu_cache.h"
#include "gpu/parts.h"

namespace emberline {
namespace {

constexpr std::size_t kAhead = 16;  // buckets prefetched ahead

}  // namespace

// Entries for one position, by its former content:
//   the same owner, another word     emptied {the new word}: a row that changed, or flags
//   no owner any more                emptied {flags}; the id stays
//   another owner                    emptied {flags}, unless it had no owner; then its id and its word
// The previous set's vectors free their memory: a first set is as large as the cache.
GpuSet GpuCache::take_set(std::size_t threads) {
  if (under_way_) throw std::runtime_error("take_set: the set before is not complete");
  std::vector<GpuSet> part_of(parts_of(changes_.size(), threads));
  in_parts(changes_.size(), threads, [&](std::size_t number, std::size_t from, std::size_t to) {
    // Reserve as if each were a newcomer: no list grows step by step.
    part_of[number].ids.reserve(2 * (to - from));
    part_of[number].words.reserve(2 * (to - from));
    for (std::size_t i = from; i < to; ++i) {
      if (i + kAhead < to) __builtin_prefetch(buckets_.place(changes_[i + kAhead].position).bucket, 1, 3);
      take_change(changes_[i], part_of[number]);
    }
  });
  GpuSet set = std::move(part_of[0]);
  for (std::size_t number = 1; number < part_of.size(); ++number) {
    const GpuSet& part = part_of[number];
    set.emptied.insert(set.emptied.end(), part.emptied.begin(), part.emptied.end());
    set.ids.insert(set.ids.end(), part.ids.begin(), part.ids.end());
    set.words.insert(set.words.end(), part.words.begin(), part.words.end());
  }
  StagedRows::Rows rows = staged_.take();
  set.rows.resize(2 * rows.slots.size());
  for (std::size_t number = 0; number < rows.slots.size(); ++number) {
    set.rows[2 * number] = rows.slots[number];
    set.rows[2 * number + 1] = static_cast<std::int64_t>(number);
  }
  set.staged = std::move(rows.own);
  set.lent = rows.lent;
  set.stride = rows.stride;
  set.owner = std::move(rows.owner);
  taken_ = std::exchange(changes_, std::vector<Change>());
  slots_.take_set();
  under_way_ = true;
  fruitless_ = 0;
  return set;
}

void GpuCache::take_change(const Change& before, GpuSet& set) {
  const auto add = [](std::vector<std::int64_t>& list, std::int64_t at, std::uint64_t value) {
    list.push_back(at);
    list.push_back(static_cast<std::int64_t>(value));
  };
  const GpuPlace where = buckets_.place(before.position);
  const std::int64_t id_at = std::int64_t{before.position / kCacheBucketIds} * 2 * kCacheBucketIds + where.at;
  const std::int64_t word_at = id_at + kCacheBucketIds;
  std::int64_t& id = where.bucket->ids[where.at];
  const std::uint64_t now = gpu_word::published(where.word());
  const bool was = word::slot(before.word) != 0, is = word::slot(now) != 0;
  if (was && is && before.id == id && word::table(before.word) == word::table(now)) {
    if (now != before.word) add(set.emptied, word_at, now);
  } else if (is) {
    if (was) add(set.emptied, word_at, now & word::kOverflow);
    add(set.ids, id_at, static_cast<std::uint64_t>(id));
    add(set.words, word_at, now);
  } else {
    if (now != before.word) add(set.emptied, word_at, now);
    id = before.id;
  }
  where.bucket->words[where.at] &= ~(gpu_word::kTouched | gpu_word::kFresh);
}

void GpuCache::complete_set() {
  if (!under_way_) throw std::runtime_error("complete_set: no set is taken");
  under_way_ = false;
  taken_ = std::vector<Change>();
  slots_.complete_set();
}

}  // namespace emberline
