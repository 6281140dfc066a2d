// The loops for every processor, and the choice of a set.
#include <math.h>

#include "features/hash.h"
#include "features/loops.h"
#include "rows/isa.h"

namespace emberline::features {
namespace {

constexpr bool kHalves = false;
constexpr std::size_t kCounted = 2;

#include "features/loops_body.h"

}  // namespace

#if defined(__x86_64__)
extern const Loops kAvx2Loops, kAvx512Loops;

const Loops& loops() {
  // Every processor with the parts of AVX-512 that the set asks for has this one too; it is asked all the same.
  static const bool has_products = __builtin_cpu_supports("avx512dq") != 0;
  const Isa set = isa();
  return set == Isa::kAvx512 && has_products ? kAvx512Loops : set == Isa::kPortable ? kLoops : kAvx2Loops;
}
#else
const Loops& loops() { return kLoops; }
#endif

}  // namespace emberline::features
