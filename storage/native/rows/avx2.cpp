// The row kernels for AVX2 with F16C. Compiled for these alone: nothing here may run, or be linked into what runs,
// elsewhere.
#include <immintrin.h>

#include "rows/kernels.h"
#include "rows/scalar.h"

namespace emberline {
namespace {

struct V {
  using F = __m256;
  static constexpr std::uint32_t kWidth = 8;

  static F zero() { return _mm256_setzero_ps(); }
  static F all(float value) { return _mm256_set1_ps(value); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, F values) { _mm256_storeu_ps(to, values); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F multiply(F a, F b) { return _mm256_mul_ps(a, b); }
  static F divide(F a, F b) { return _mm256_div_ps(a, b); }
  static F greatest(F a, F b) { return _mm256_max_ps(a, b); }
  static F magnitude(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static float largest(F a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  static __m128i load_halves(const char* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
  static F from_fp16(const char* from) { return _mm256_cvtph_ps(load_halves(from)); }
  static F from_bf16(const char* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(from)), 16));
  }
  static F from_int8(const char* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static void to_fp16(char* to, F values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void to_bf16(char* to, F values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_packus_epi32(high, high);  // within each half of the register
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0))));
  }
  static void to_int8(char* to, F values) {
    const F bound = _mm256_min_ps(_mm256_max_ps(values, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f));
    const __m256i whole = _mm256_cvtps_epi32(bound);
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(halves, halves));
  }
};

#include "rows/vector_loops.h"

}  // namespace

const RowKernels kAvx2Rows = kKernels;

}  // namespace emberline
