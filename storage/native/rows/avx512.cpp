// The row kernels for AVX-512 (F, BW, VL). Compiled for these alone: nothing here may run, or be linked into what runs,
// elsewhere.
#include <immintrin.h>

#include "rows/kernels.h"
#include "rows/scalar.h"

namespace emberline {
namespace {

struct V {
  using F = __m512;
  static constexpr std::uint32_t kWidth = 16;

  static F zero() { return _mm512_setzero_ps(); }
  static F all(float value) { return _mm512_set1_ps(value); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F values) { _mm512_storeu_ps(to, values); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F multiply(F a, F b) { return _mm512_mul_ps(a, b); }
  static F divide(F a, F b) { return _mm512_div_ps(a, b); }
  static F greatest(F a, F b) { return _mm512_max_ps(a, b); }
  static F magnitude(F a) { return _mm512_abs_ps(a); }
  static float largest(F a) { return _mm512_reduce_max_ps(a); }

  static __m256i load_halves(const char* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static F from_fp16(const char* from) { return _mm512_cvtph_ps(load_halves(from)); }
  static F from_bf16(const char* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(from)), 16));
  }
  static F from_int8(const char* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static void to_fp16(char* to, F values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // The instruction for it is not used, because it takes subnormal values for zeros.
  static void to_bf16(char* to, F values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
  }
  static void to_int8(char* to, F values) {
    const F bound = _mm512_min_ps(_mm512_max_ps(values, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(bound)));
  }
};

#include "rows/vector_loops.h"

}  // namespace

const RowKernels kAvx512Rows = kKernels;

}  // namespace emberline
