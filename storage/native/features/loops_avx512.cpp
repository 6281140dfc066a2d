// The loops for AVX-512. Compiled for it alone: nothing here may be linked into what runs elsewhere.
#include <math.h>

#include "features/hash.h"
#include "features/loops.h"

namespace emberline::features {
namespace {

constexpr bool kHalves = true;
constexpr std::size_t kCounted = 12;

#include "features/loops_body.h"

}  // namespace

extern const Loops kAvx2Loops, kAvx512Loops;
// A search reads boundaries from places that differ, which takes longer by eight than by four.
const Loops kAvx512Loops = [] {
  Loops set = kLoops;
  set.bucketise = kAvx2Loops.bucketise;
  return set;
}();

}  // namespace emberline::features
