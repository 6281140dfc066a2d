// The dense kernels in plain C++, and the choice among all.
#include <cmath>
#include <cstring>

#include "dense/kernels.h"

namespace emberline::dense {
namespace {

struct V {
  // The compiler makes vectors of these where the processor has any.
  struct F {
    float at[4];
  };
  static constexpr std::uint32_t kWidth = 4;
  static constexpr std::uint32_t kVectors = 2;

  template <class Of>
  static F each(const Of& of) {
    F made;
    for (int i = 0; i < 4; ++i) made.at[i] = of(i);
    return made;
  }
  static F zero() { return all(0); }
  static F all(float value) {
    return each([&](int) { return value; });
  }
  static F load(const float* from) {
    return each([&](int i) { return from[i]; });
  }
  static void store(float* to, F values) { std::memcpy(to, values.at, sizeof(values.at)); }
  static void store_some(float* to, F values, std::size_t n) { std::memcpy(to, values.at, n * sizeof(float)); }
  static F add(F a, F b) {
    return each([&](int i) { return a.at[i] + b.at[i]; });
  }
  static F subtract(F a, F b) {
    return each([&](int i) { return a.at[i] - b.at[i]; });
  }
  static F multiply(F a, F b) {
    return each([&](int i) { return a.at[i] * b.at[i]; });
  }
  static F divide(F a, F b) {
    return each([&](int i) { return a.at[i] / b.at[i]; });
  }
  static F multiply_add(F a, F b, F c) { return add(multiply(a, b), c); }
  static F greatest(F bound, F a) {
    return each([&](int i) { return a.at[i] < bound.at[i] ? bound.at[i] : a.at[i]; });
  }
  static F least(F bound, F a) {
    return each([&](int i) { return a.at[i] > bound.at[i] ? bound.at[i] : a.at[i]; });
  }
  static F round(F a) {
    return each([&](int i) { return std::nearbyint(a.at[i]); });
  }
  static F scale(F a, F n) {
    return each([&](int i) { return std::isnan(n.at[i]) ? n.at[i] : std::ldexp(a.at[i], static_cast<int>(n.at[i])); });
  }
  static void transpose(const float* const* vectors, std::size_t n, std::size_t dim, std::size_t stride, float* to);
};

#include "dense/vector_functions.h"
#include "dense/vector_kernels.h"

void V::transpose(const float* const* vectors, std::size_t n, std::size_t dim, std::size_t stride, float* to) {
  transpose_plainly(vectors, n, dim, stride, to);
}

}  // namespace

const DenseKernels kPortableDense = kKernels;

#if defined(__x86_64__)
const DenseKernels& dense_kernels(Isa isa) {
  // rows/isa.h asks for no FMA; a processor with AVX2 and without it is possible.
  static const bool has_fma = (__builtin_cpu_init(), __builtin_cpu_supports("fma") != 0);
  if (isa == Isa::kPortable || !has_fma) return kPortableDense;
  return isa == Isa::kAvx512 ? kAvx512Dense : kAvx2Dense;
}
#elif defined(__aarch64__)
const DenseKernels& dense_kernels(Isa isa) { return isa == Isa::kNeon ? kNeonDense : kPortableDense; }
#else
const DenseKernels& dense_kernels(Isa) { return kPortableDense; }
#endif

}  // namespace emberline::dense
