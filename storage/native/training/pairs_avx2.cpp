// Products of pairs for AVX2. Compiled for it alone: nothing here may be linked into what runs elsewhere.
#include "training/pairs.h"

namespace emberline {
namespace {

#include "training/pairs_body.h"

}  // namespace

extern const PairLoops kAvx2Pairs;
const PairLoops kAvx2Pairs = kPairs;

}  // namespace emberline
