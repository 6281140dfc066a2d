// The steps of optimizers for AVX2. Compiled for it alone: nothing here may be linked into what runs elsewhere.
#include <cmath>

#include "training/optimizer.h"

namespace emberline {
namespace {

#include "training/optimizer_body.h"

}  // namespace

extern const OptimizerLoops kAvx2Optimizer;
const OptimizerLoops kAvx2Optimizer = kOptimizer;

}  // namespace emberline
