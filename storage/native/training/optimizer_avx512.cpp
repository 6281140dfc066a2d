// The steps of optimizers for AVX-512. Compiled for it alone: nothing here may be linked into what runs elsewhere.
#include <cmath>

#include "training/optimizer.h"

namespace emberline {
namespace {

#include "training/optimizer_body.h"

}  // namespace

extern const OptimizerLoops kAvx512Optimizer;
const OptimizerLoops kAvx512Optimizer = kOptimizer;

}  // namespace emberline
