// Compiled with -mavx2 where the compiler makes code for x86-64; elsewhere empty.
#include <cstring>

#include "limits/kernels.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace emberline::limits {

#ifdef __AVX2__
namespace {

inline std::uint32_t match_line(const IdLine& line, std::int64_t id) {
  const __m256i wanted = _mm256_set1_epi64x(id);
  const auto* halves = reinterpret_cast<const __m256i*>(line.ids);
  const auto mask_of = [&](int half) {
    const __m256i equal = _mm256_cmpeq_epi64(_mm256_load_si256(halves + half), wanted);
    return static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal)));
  };
  return mask_of(0) | mask_of(1) << 4;
}

#include "limits/kernel_loops.inc"

}  // namespace

const Kernels* avx2_kernels() {
  static const Kernels kernels{"avx2", &line_of, &find, &gather, &pool};
  return __builtin_cpu_supports("avx2") ? &kernels : nullptr;
}
#else
const Kernels* avx2_kernels() { return nullptr; }
#endif

}  // namespace emberline::limits
