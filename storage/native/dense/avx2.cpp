// The dense kernels for AVX2 and FMA. Compiled for these alone: nothing here may run, or be linked into what runs,
// elsewhere.
#include <immintrin.h>

#include <cstring>

#include "dense/kernels.h"

namespace emberline::dense {
namespace {

struct V {
  using F = __m256;
  static constexpr std::uint32_t kWidth = 8;
  static constexpr std::uint32_t kVectors = 2;

  static F zero() { return _mm256_setzero_ps(); }
  static F all(float value) { return _mm256_set1_ps(value); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, F values) { _mm256_storeu_ps(to, values); }
  static void store_some(float* to, F values, std::size_t n) {
    float rest[kWidth];
    store(rest, values);
    std::memcpy(to, rest, n * sizeof(float));
  }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F subtract(F a, F b) { return _mm256_sub_ps(a, b); }
  static F multiply(F a, F b) { return _mm256_mul_ps(a, b); }
  static F divide(F a, F b) { return _mm256_div_ps(a, b); }
  static F multiply_add(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F greatest(F bound, F a) { return _mm256_max_ps(bound, a); }
  static F least(F bound, F a) { return _mm256_min_ps(bound, a); }
  static F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale(F a, F n) {
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(power));
  }
  static void transpose(const float* const* vectors, std::size_t n, std::size_t dim, std::size_t stride, float* to);
};

#include "dense/vector_functions.h"
#include "dense/vector_kernels.h"

void V::transpose(const float* const* vectors, std::size_t n, std::size_t dim, std::size_t stride, float* to) {
  transpose_plainly(vectors, n, dim, stride, to);
}

}  // namespace

const DenseKernels kAvx2Dense = kKernels;

}  // namespace emberline::dense
