// Compiled with -mavx512f where the compiler makes code for x86-64; elsewhere empty.
#include <cstring>

#include "limits/kernels.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace emberline::limits {

#ifdef __AVX512F__
namespace {

inline std::uint32_t match_line(const IdLine& line, std::int64_t id) {
  return _mm512_cmpeq_epi64_mask(_mm512_load_si512(line.ids), _mm512_set1_epi64(id));
}

#include "limits/kernel_loops.inc"

}  // namespace

const Kernels* avx512_kernels() {
  static const Kernels kernels{"avx512", &line_of, &find, &gather, &pool};
  return __builtin_cpu_supports("avx512f") ? &kernels : nullptr;
}
#else
const Kernels* avx512_kernels() { return nullptr; }
#endif

}  // namespace emberline::limits
