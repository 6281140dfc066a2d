// The match loop for AVX-512: one comparison a bucket. Compiled for it alone: nothing here may be linked into what runs
// elsewhere.
#include <immintrin.h>

#include "table/match.h"
#include "table/source.h"

namespace emberline {
namespace {

inline std::uint32_t matches(const Bucket& bucket, std::int64_t id) {
  const __m512i all = _mm512_load_si512(&bucket);
  return _mm512_cmpeq_epi64_mask(all, _mm512_set1_epi64(id)) & ((1u << kBucketIds) - 1);
}

#include "table/match_loops.h"

}  // namespace

extern const MatchBlock kMatchAvx512;
const MatchBlock kMatchAvx512 = match_ids;

}  // namespace emberline
