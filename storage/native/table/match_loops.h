// The body of MatchBlock. A file includes this in an unnamed namespace, behind `matches(bucket, id)`: bit i is set
// where ids[i] of the bucket is the id, read at about the same time. It is a hint: the slot that it leads to is
// confirmed by loads that are ordered.
//
// The order that the readers' protocol needs (buckets.h) is id, slot, id. The slot's address depends on the first look
// at the id, an order that every processor keeps; the slot is loaded with acquire, so the second look comes after it.

// kLines: of a row that fills so many whole lines, which is then fetched without a loop: a tenth faster; 0 for any row.
template <int kLines>
std::size_t match_ids_of(const MatchTask& given, std::size_t start, std::size_t end, std::uint32_t* late) {
  constexpr std::size_t kRound = MatchTask::kRing - 1;
  const MatchTask task = given;  // the stores below cannot change its words: they stay in registers
  std::uint32_t* __restrict bucket_ring = task.bucket_ring;
  std::size_t late_count = 0;
  for (std::size_t i = start; i < end; ++i) {
    const std::size_t next = i + task.bucket_ahead;
    if (next < task.count) {
      const std::uint64_t bucket = first_bucket(mix_id(task.ids[next]), task.bucket_count);
      bucket_ring[next & kRound] = static_cast<std::uint32_t>(bucket);
      __builtin_prefetch(task.buckets + bucket, 0, 3);
    }
    const std::int64_t id = task.ids[i];
    const Bucket& bucket = task.buckets[bucket_ring[i & kRound]];
    const std::uint32_t mask = matches(bucket, id);
    const int at = __builtin_ctz(mask | 1u << (kBucketIds - 1));
    const std::uint32_t slot = bucket.slots[at].load(std::memory_order_acquire);
    if (mask != 0 && slot != kEmptySlot && bucket.ids[at].load(std::memory_order_relaxed) == id) {
      const char* row = task.slab.row(slot);
      task.rows[i] = row;
      task.slots[i & kRound] = slot;
      if constexpr (kLines == 0) prefetch_row(row, task.row_bytes);
      for (int k = 0; k < kLines; ++k) __builtin_prefetch(row + std::ptrdiff_t{64} * k, 0, 2);
    } else {
      task.rows[i] = nullptr;
      task.slots[i & kRound] = kEmptySlot;
      late[late_count++] = static_cast<std::uint32_t>(i);
    }
  }
  return late_count;
}

std::size_t match_ids(const MatchTask& task, std::size_t start, std::size_t end, std::uint32_t* late) {
  switch (task.row_bytes) {
    case 64: return match_ids_of<1>(task, start, end, late);
    case 128: return match_ids_of<2>(task, start, end, late);
    case 256: return match_ids_of<4>(task, start, end, late);
    case 512: return match_ids_of<8>(task, start, end, late);
    default: return match_ids_of<0>(task, start, end, late);
  }
}
