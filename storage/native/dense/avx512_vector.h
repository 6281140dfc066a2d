// Vectors of AVX-512 (F, BW, VL) for the dense kernels. A file includes this once, in an unnamed namespace.

struct V {
  using F = __m512;
  static constexpr std::uint32_t kWidth = 16;
  static constexpr std::uint32_t kVectors = 4;

  static F zero() { return _mm512_setzero_ps(); }
  static F all(float value) { return _mm512_set1_ps(value); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F values) { _mm512_storeu_ps(to, values); }
  static void store_some(float* to, F values, std::size_t n) {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << n) - 1), values);
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F subtract(F a, F b) { return _mm512_sub_ps(a, b); }
  static F multiply(F a, F b) { return _mm512_mul_ps(a, b); }
  static F divide(F a, F b) { return _mm512_div_ps(a, b); }
  static F multiply_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F greatest(F bound, F a) { return _mm512_max_ps(bound, a); }
  static F least(F bound, F a) { return _mm512_min_ps(bound, a); }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale(F a, F n) { return _mm512_scalef_ps(a, n); }

  // Sixteen rows of sixteen floats at a time, in registers; what is past `n` or `dim` is zero.
  static void transpose(const float* const* vectors, std::size_t n, std::size_t dim, std::size_t stride, float* to) {
    for (std::size_t i = 0; i < n; i += 16) {
      for (std::size_t d = 0; d < dim; d += 16) {
        const std::size_t rows = n - i < 16 ? n - i : 16, columns = dim - d < 16 ? dim - d : 16;
        const auto mask = static_cast<__mmask16>((1u << columns) - 1);
        F block[16];
#pragma GCC unroll 16
        for (std::size_t r = 0; r < 16; ++r) {
          block[r] = r < rows ? _mm512_maskz_loadu_ps(mask, vectors[i + r] + d) : zero();
        }
        transpose_block(block);
        float* out = to + d * stride + i;
        for (std::size_t c = 0; c < columns; ++c) store(out + c * stride, block[c]);
      }
    }
  }

  static void transpose_block(F (&r)[16]) {
    F t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      r[i] = pairs_low(t[i], t[i + 2]);
      r[i + 1] = pairs_high(t[i], t[i + 2]);
      r[i + 2] = pairs_low(t[i + 1], t[i + 3]);
      r[i + 3] = pairs_high(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
  }
  static F pairs_low(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static F pairs_high(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};
