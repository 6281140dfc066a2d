// The match loop for NEON.
#include <arm_neon.h>

#include "table/match.h"
#include "table/source.h"

namespace emberline {
namespace {

inline std::uint32_t matches(const Bucket& bucket, std::int64_t id) {
  const auto* ids = reinterpret_cast<const std::int64_t*>(&bucket);
  const int64x2_t key = vdupq_n_s64(id);
  const uint64x2_t low = vshrq_n_u64(vceqq_s64(vld1q_s64(ids), key), 63);
  const uint64x2_t high = vshrq_n_u64(vceqq_s64(vld1q_s64(ids + 2), key), 63);
  const std::uint32_t fifth = bucket.ids[4].load(std::memory_order_acquire) == id;
  return static_cast<std::uint32_t>(vgetq_lane_u64(low, 0) | vgetq_lane_u64(low, 1) << 1 |
                                    vgetq_lane_u64(high, 0) << 2 | vgetq_lane_u64(high, 1) << 3) |
         fifth << 4;
}

#include "table/match_loops.h"

}  // namespace

extern const MatchBlock kMatchNeon;
const MatchBlock kMatchNeon = match_ids;

}  // namespace emberline
