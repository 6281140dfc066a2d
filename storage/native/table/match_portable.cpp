// The match loop in plain C++, which is also what ThreadSanitizer sees: every word is an atomic.
#include "table/match.h"
#include "table/source.h"

namespace emberline {
namespace {

inline std::uint32_t matches(const Bucket& bucket, std::int64_t id) {
  return match([&](int i) { return bucket.ids[i].load(std::memory_order_acquire); }, id);
}

#include "table/match_loops.h"

}  // namespace

extern const MatchBlock kMatchPortable;
const MatchBlock kMatchPortable = match_ids;

}  // namespace emberline
