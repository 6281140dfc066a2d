// The row kernels over vectors of floats. A file includes this once, in an unnamed namespace, behind a struct V of its
// instruction set:
//
//   F, kWidth; zero(), all(float), load(const float*), store(float*, F), add, multiply, divide
//   from_fp16(const char*), from_bf16(const char*), from_int8(const char*)    kWidth values, not yet scaled
//   to_fp16(char*, F), to_bf16(char*, F), to_int8(char*, F)                   the last of values within [-127, 127]
//   greatest(F, F), magnitude(F), largest(F) -> float
//
// What is left over at the end of a row is done one value at a time, by scalar.h.

using F = V::F;

// Row types: `open` takes what a row has besides its values, `at` gives kWidth values from d on.
struct Fp32Vector {
  using One = Fp32Row;
  static constexpr RowType kType = RowType::kFp32;
  struct Open {
    const char* row;
  };
  static Open open(const char* row) { return {row}; }
  static F at(Open open, std::uint32_t d) { return V::load(reinterpret_cast<const float*>(open.row) + d); }
};
struct Fp16Vector {
  using One = Fp16Row;
  static constexpr RowType kType = RowType::kFp16;
  struct Open {
    const char* row;
  };
  static Open open(const char* row) { return {row}; }
  static F at(Open open, std::uint32_t d) { return V::from_fp16(open.row + std::size_t{2} * d); }
};
struct Bf16Vector {
  using One = Bf16Row;
  static constexpr RowType kType = RowType::kBf16;
  struct Open {
    const char* row;
  };
  static Open open(const char* row) { return {row}; }
  static F at(Open open, std::uint32_t d) { return V::from_bf16(open.row + std::size_t{2} * d); }
};
struct Int8Vector {
  using One = Int8Row;
  static constexpr RowType kType = RowType::kInt8;
  struct Open {
    const char* values;
    F scale;
  };
  static Open open(const char* row) { return {row + 4, V::all(load_as<float>(row))}; }
  static F at(Open open, std::uint32_t d) { return V::multiply(open.scale, V::from_int8(open.values + d)); }
};

// kAddZero: what a sum of one row is, which differs in the sign of a zero.
template <class Row, bool kAddZero>
inline void put_row(const char* row, std::uint32_t dim, float* out) {
  const auto open = Row::open(row);
  std::uint32_t d = 0;
  for (; d + V::kWidth <= dim; d += V::kWidth) {
    const F values = Row::at(open, d);
    V::store(out + d, kAddZero ? V::add(V::zero(), values) : values);
  }
  if (d == dim) return;
  const typename Row::One one(row);
  for (; d < dim; ++d) out[d] = kAddZero ? 0.0f + one[d] : one[d];
}

template <class Row, bool kAddZero, std::uint32_t kDim>
void put_rows_of(const char* const* rows, std::size_t n, std::uint32_t given, float* out, std::size_t stride) {
  const std::uint32_t dim = kDim == 0 ? given : kDim;
  for (std::size_t i = 0; i < n; ++i) put_row<Row, kAddZero>(rows[i], dim, out + i * stride);
}

template <class Row, bool kAddZero>
void put_rows(const char* const* rows, std::size_t n, std::uint32_t dim, float* out, std::size_t stride) {
  switch (dim) {
    case 16: return put_rows_of<Row, kAddZero, 16>(rows, n, dim, out, stride);
    case 32: return put_rows_of<Row, kAddZero, 32>(rows, n, dim, out, stride);
    case 64: return put_rows_of<Row, kAddZero, 64>(rows, n, dim, out, stride);
    case 128: return put_rows_of<Row, kAddZero, 128>(rows, n, dim, out, stride);
    default: return put_rows_of<Row, kAddZero, 0>(rows, n, dim, out, stride);
  }
}

template <class Row>
void gather(const char* const* rows, std::size_t n, std::uint32_t dim, float* out) {
  put_rows<Row, false>(rows, n, dim, out, dim);
}

template <class Row>
void decode(const char* encoded, std::size_t n, std::uint32_t dim, float* rows) {
  const std::size_t bytes = row_bytes(Row::kType, dim);
  for (std::size_t i = 0; i < n; ++i) put_row<Row, false>(encoded + i * bytes, dim, rows + i * dim);
}

// Values [d, d + kRegisters * kWidth) of a bag, held in registers: every row is added once, in order.
template <class Row, bool kWeighted, int kRegisters>
inline void pool_part(const char* const* rows, const float* weights, std::size_t n, std::uint32_t d, float divisor,
                      float* out) {
  F sums[kRegisters];
  for (int r = 0; r < kRegisters; ++r) sums[r] = V::zero();
  for (std::size_t i = 0; i < n; ++i) {
    if (rows[i] == nullptr) continue;
    const auto open = Row::open(rows[i]);
    const F weight = kWeighted ? V::all(weights[i]) : V::zero();
    for (int r = 0; r < kRegisters; ++r) {
      F values = Row::at(open, d + static_cast<std::uint32_t>(r) * V::kWidth);
      if constexpr (kWeighted) values = V::multiply(weight, values);
      sums[r] = V::add(sums[r], values);
    }
  }
  if (divisor != 1) {
    for (int r = 0; r < kRegisters; ++r) sums[r] = V::divide(sums[r], V::all(divisor));
  }
  for (int r = 0; r < kRegisters; ++r) V::store(out + d + r * std::ptrdiff_t{V::kWidth}, sums[r]);
}

template <class Row, bool kWeighted>
void pool_bag(const char* const* rows, const float* weights, std::size_t n, std::uint32_t dim, float divisor,
              float* out) {
  std::uint32_t d = 0;
  for (; d + 8 * V::kWidth <= dim; d += 8 * V::kWidth) pool_part<Row, kWeighted, 8>(rows, weights, n, d, divisor, out);
  if (d + 4 * V::kWidth <= dim) {
    pool_part<Row, kWeighted, 4>(rows, weights, n, d, divisor, out);
    d += 4 * V::kWidth;
  }
  if (d + 2 * V::kWidth <= dim) {
    pool_part<Row, kWeighted, 2>(rows, weights, n, d, divisor, out);
    d += 2 * V::kWidth;
  }
  if (d + V::kWidth <= dim) {
    pool_part<Row, kWeighted, 1>(rows, weights, n, d, divisor, out);
    d += V::kWidth;
  }
  for (; d < dim; ++d) {
    float sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (rows[i] == nullptr) continue;
      const typename Row::One one(rows[i]);
      sum += kWeighted ? weights[i] * one[d] : one[d];
    }
    out[d] = divisor != 1 ? sum / divisor : sum;
  }
}

template <class Row>
void pool(const char* const* rows, const float* weights, std::size_t n, std::uint32_t dim, float divisor, float* out) {
  if (weights == nullptr) {
    pool_bag<Row, false>(rows, nullptr, n, dim, divisor, out);
  } else {
    pool_bag<Row, true>(rows, weights, n, dim, divisor, out);
  }
}

void encode_fp32(const float* rows, std::size_t n, std::uint32_t dim, char* encoded) {
  std::memcpy(encoded, rows, n * dim * sizeof(float));
}

template <RowType kType>
void encode_halves(const float* rows, std::size_t n, std::uint32_t dim, char* encoded) {
  const std::size_t bytes = row_bytes(kType, dim);
  for (std::size_t i = 0; i < n; ++i, rows += dim, encoded += bytes) {
    std::uint32_t d = 0;
    for (; d + V::kWidth <= dim; d += V::kWidth) {
      char* to = encoded + std::size_t{2} * d;
      if constexpr (kType == RowType::kFp16) {
        V::to_fp16(to, V::load(rows + d));
      } else {
        V::to_bf16(to, V::load(rows + d));
      }
    }
    for (; d < dim; ++d) {
      const std::uint16_t value = kType == RowType::kFp16 ? to_half(rows[d]) : to_bfloat(rows[d]);
      std::memcpy(encoded + std::size_t{2} * d, &value, sizeof(value));
    }
    std::memset(encoded + std::size_t{2} * dim, 0, bytes - std::size_t{2} * dim);
  }
}

void encode_int8(const float* rows, std::size_t n, std::uint32_t dim, char* encoded) {
  const std::size_t bytes = row_bytes(RowType::kInt8, dim);
  for (std::size_t i = 0; i < n; ++i, rows += dim, encoded += bytes) {
    F wide = V::zero();
    std::uint32_t d = 0;
    for (; d + V::kWidth <= dim; d += V::kWidth) wide = V::greatest(wide, V::magnitude(V::load(rows + d)));
    float largest = V::largest(wide);
    for (; d < dim; ++d) {
      const float magnitude = float_of(bits_of(rows[d]) & 0x7FFFFFFFu);
      if (magnitude > largest) largest = magnitude;
    }
    const float scale = int8_scale(largest);
    std::memcpy(encoded, &scale, sizeof(scale));
    char* to = encoded + 4;
    std::memset(to, 0, bytes - 4);
    if (scale == 0) continue;
    const F divisor = V::all(scale);
    for (d = 0; d + V::kWidth <= dim; d += V::kWidth) V::to_int8(to + d, V::divide(V::load(rows + d), divisor));
    for (; d < dim; ++d) to[d] = static_cast<char>(to_int8(rows[d], scale));
  }
}

constexpr RowKernels kKernels = {
    {encode_fp32, encode_halves<RowType::kFp16>, encode_halves<RowType::kBf16>, encode_int8},
    {decode<Fp32Vector>, decode<Fp16Vector>, decode<Bf16Vector>, decode<Int8Vector>},
    {gather<Fp32Vector>, gather<Fp16Vector>, gather<Bf16Vector>, gather<Int8Vector>},
    {pool<Fp32Vector>, pool<Fp16Vector>, pool<Bf16Vector>, pool<Int8Vector>},
    {put_rows<Fp32Vector, true>, put_rows<Fp16Vector, true>, put_rows<Bf16Vector, true>, put_rows<Int8Vector, true>},
};
