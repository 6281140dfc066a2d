// The dense kernels for NEON, which every 64-bit ARM processor has.
#include <arm_neon.h>

#include <cstring>

#include "dense/kernels.h"

namespace emberline::dense {
namespace {

struct V {
  using F = float32x4_t;
  static constexpr std::uint32_t kWidth = 4;
  static constexpr std::uint32_t kVectors = 4;

  static F zero() { return vdupq_n_f32(0); }
  static F all(float value) { return vdupq_n_f32(value); }
  static F load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, F values) { vst1q_f32(to, values); }
  static void store_some(float* to, F values, std::size_t n) {
    float rest[kWidth];
    store(rest, values);
    std::memcpy(to, rest, n * sizeof(float));
  }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F subtract(F a, F b) { return vsubq_f32(a, b); }
  static F multiply(F a, F b) { return vmulq_f32(a, b); }
  static F divide(F a, F b) { return vdivq_f32(a, b); }
  static F multiply_add(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  // Of a number and NaN these give NaN.
  static F greatest(F bound, F a) { return vmaxq_f32(bound, a); }
  static F least(F bound, F a) { return vminq_f32(bound, a); }
  static F round(F a) { return vrndnq_f32(a); }
  static F scale(F a, F n) {
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    return vmulq_f32(a, vreinterpretq_f32_s32(power));
  }
  static void transpose(const float* const* vectors, std::size_t n, std::size_t dim, std::size_t stride, float* to);
};

#include "dense/vector_functions.h"
#include "dense/vector_kernels.h"

void V::transpose(const float* const* vectors, std::size_t n, std::size_t dim, std::size_t stride, float* to) {
  transpose_plainly(vectors, n, dim, stride, to);
}

}  // namespace

const DenseKernels kNeonDense = kKernels;

}  // namespace emberline::dense
