// The row kernels for NEON, which every 64-bit ARM processor has.
#include <arm_neon.h>

#include "rows/kernels.h"
#include "rows/scalar.h"

namespace emberline {
namespace {

struct V {
  using F = float32x4_t;
  static constexpr std::uint32_t kWidth = 4;

  static F zero() { return vdupq_n_f32(0); }
  static F all(float value) { return vdupq_n_f32(value); }
  static F load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, F values) { vst1q_f32(to, values); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F multiply(F a, F b) { return vmulq_f32(a, b); }
  static F divide(F a, F b) { return vdivq_f32(a, b); }
  static F greatest(F a, F b) { return vmaxq_f32(a, b); }
  static F magnitude(F a) { return vabsq_f32(a); }
  static float largest(F a) { return vmaxvq_f32(a); }

  static uint16x4_t load_halves(const char* from) {
    uint16x4_t halves;
    std::memcpy(&halves, from, sizeof(halves));
    return halves;
  }
  static void store_halves(char* to, uint16x4_t halves) { std::memcpy(to, &halves, sizeof(halves)); }
  static F from_fp16(const char* from) { return vcvt_f32_f16(vreinterpret_f16_u16(load_halves(from))); }
  static F from_bf16(const char* from) { return vreinterpretq_f32_u32(vshll_n_u16(load_halves(from), 16)); }
  static F from_int8(const char* from) {
    std::uint32_t four;
    std::memcpy(&four, from, sizeof(four));
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
  }
  static void to_fp16(char* to, F values) { store_halves(to, vreinterpret_u16_f16(vcvt_f16_f32(values))); }
  static void to_bf16(char* to, F values) {
    const uint32x4_t bits = vreinterpretq_u32_f32(values);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    store_halves(to, vshrn_n_u32(vbslq_u32(vceqq_f32(values, values), rounded, quiet), 16));
  }
  static void to_int8(char* to, F values) {
    const F bound = vminq_f32(vmaxq_f32(values, vdupq_n_f32(-127.0f)), vdupq_n_f32(127.0f));
    const int16x4_t halves = vmovn_s32(vcvtnq_s32_f32(bound));
    const int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
    std::memcpy(to, &bytes, 4);
  }
};

#include "rows/vector_loops.h"

}  // namespace

const RowKernels kNeonRows = kKernels;

}  // namespace emberline
