#include <cstring>

#include "limits/kernels.h"

namespace emberline::limits {
namespace {

inline std::uint32_t match_line(const IdLine& line, std::int64_t id) {
  std::uint32_t mask = 0;
  for (int i = 0; i < 8; ++i) mask |= static_cast<std::uint32_t>(line.ids[i] == id) << i;
  return mask;
}

#include "limits/kernel_loops.inc"

}  // namespace

const Kernels& portable_kernels() {
  static const Kernels kernels{"portable", &line_of, &find, &gather, &pool};
  return kernels;
}

const Kernels& best_kernels() {
  if (const Kernels* kernels = avx512_kernels()) return *kernels;
  if (const Kernels* kernels = avx2_kernels()) return *kernels;
  return portable_kernels();
}

}  // namespace emberline::limits
