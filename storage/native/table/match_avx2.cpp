// The match loop for AVX2. Compiled for it alone: nothing here may be linked into what runs elsewhere.
#include <immintrin.h>

#include "table/match.h"
#include "table/source.h"

namespace emberline {
namespace {

inline std::uint32_t matches(const Bucket& bucket, std::int64_t id) {
  const __m256i four = _mm256_load_si256(reinterpret_cast<const __m256i*>(&bucket));
  const __m256i equal = _mm256_cmpeq_epi64(four, _mm256_set1_epi64x(id));
  const std::uint32_t fifth = bucket.ids[4].load(std::memory_order_acquire) == id;
  return static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal))) | fifth << 4;
}

#include "table/match_loops.h"

}  // namespace

extern const MatchBlock kMatchAvx2;
const MatchBlock kMatchAvx2 = match_ids;

}  // namespace emberline
