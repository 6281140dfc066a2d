// Products of pairs for AVX-512. Compiled for it alone: nothing here may be linked into what runs elsewhere.
#include "training/pairs.h"

namespace emberline {
namespace {

#include "training/pairs_body.h"

}  // namespace

extern const PairLoops kAvx512Pairs;
const PairLoops kAvx512Pairs = kPairs;

}  // namespace emberline
