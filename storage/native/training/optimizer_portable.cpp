// The steps of optimizers for every processor.
#include <cmath>

#include "training/optimizer.h"

namespace emberline {
namespace {

#include "training/optimizer_body.h"

}  // namespace

extern const OptimizerLoops kPortableOptimizer;
const OptimizerLoops kPortableOptimizer = kOptimizer;

}  // namespace emberline
