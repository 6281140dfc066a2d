// Products of pairs for every processor.
#include "training/pairs.h"

namespace emberline {
namespace {

#include "training/pairs_body.h"

}  // namespace

extern const PairLoops kPortablePairs;
const PairLoops kPortablePairs = kPairs;

}  // namespace emberline
