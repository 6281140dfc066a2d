// The loops for AVX2. Compiled for it alone: nothing here may be linked into what runs elsewhere.
#include <math.h>

#include "features/hash.h"
#include "features/loops.h"

namespace emberline::features {
namespace {

constexpr bool kHalves = false;
constexpr std::size_t kCounted = 12;

#include "features/loops_body.h"

}  // namespace

extern const Loops kAvx2Loops;
const Loops kAvx2Loops = kLoops;

}  // namespace emberline::features
