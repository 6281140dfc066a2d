// The dense kernels over vectors of floats. A file includes this once, in an unnamed namespace, behind a struct V of its
// instruction set:
//
//   F, kWidth, kVectors (of a full panel; 6 rows of so many sums fit the registers)
//   zero(), all(float), load(const float*), store(float*, F), store_some(float*, F, n), add, subtract, multiply, divide
//   multiply_add(a, b, c): a * b + c
//   greatest(bound, F), least(bound, F): NaN where the second is NaN
//   round(F): to the nearest whole number. scale(F, F n): times 2 to the power of n, whole
//   transpose(const float* const*, n, dim, stride, to): n vectors of dim values -> to (dim, n), rows `stride` apart

using F = V::F;

constexpr std::size_t kTileRows = 6;

// Not std::min and the like: what the standard library's templates compile to here could be linked into other files.
inline std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

// e^x, within two units in the last place, from 2^-126 to 2^127. After Cephes' expf: x = n ln 2 + r, and a polynomial.
inline F exponential(F x) {
  x = V::greatest(V::all(-87.0f), V::least(V::all(88.0f), x));
  const F n = V::round(V::multiply(x, V::all(1.44269504f)));
  F r = V::multiply_add(n, V::all(-0.693359375f), x);
  r = V::multiply_add(n, V::all(2.12194440e-4f), r);
  F p = V::all(1.9875691500e-4f);
  constexpr float kFactors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                5.0000001201e-1f};
  for (const float factor : kFactors) p = V::multiply_add(p, r, V::all(factor));
  p = V::multiply_add(p, V::multiply(r, r), V::add(r, V::all(1.0f)));
  return V::scale(p, n);
}

inline F sigmoid(F x) { return V::divide(V::all(1.0f), V::add(V::all(1.0f), exponential(V::subtract(V::zero(), x)))); }

inline F activated(Activation activation, F x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return V::greatest(V::zero(), x);
    case Activation::kSigmoid: return sigmoid(x);
    case Activation::kTanh:
      return V::subtract(V::all(1.0f), V::divide(V::all(2.0f), V::add(V::all(1.0f), exponential(V::add(x, x)))));
    case Activation::kSilu: return V::multiply(x, sigmoid(x));
  }
  return x;
}

// M rows times N vectors of columns of a matrix of `depth` rows, `step` floats apart; sums begin at `bias`.
template <int M, int N>
inline void multiply_tile(const float* const* rows, std::size_t depth, const float* matrix, std::size_t step,
                          const float* bias, F (&sums)[M][N]) {
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    const F begin = bias == nullptr ? V::zero() : V::load(bias + n * V::kWidth);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) sums[m][n] = begin;
  }
  for (std::size_t k = 0; k < depth; ++k, matrix += step) {
    F columns[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) columns[n] = V::load(matrix + n * V::kWidth);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const F value = V::all(rows[m][k]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[m][n] = V::multiply_add(value, columns[n], sums[m][n]);
    }
  }
}

// used: columns that are stored, of N vectors.
template <int M, int N>
void linear_tile(Rows from, std::size_t depth, const float* panel, const float* bias, Activation activation, OutRows to,
                 std::size_t used) {
  const float* rows[M];
  for (int m = 0; m < M; ++m) rows[m] = from.data + static_cast<std::size_t>(m) * from.stride;
  F sums[M][N];
  multiply_tile<M, N>(rows, depth, panel, N * V::kWidth, bias, sums);
  for (int m = 0; m < M; ++m) {
    float* out = to.data + static_cast<std::size_t>(m) * to.stride;
    std::size_t left = used;
    for (int n = 0; n < N; ++n, out += V::kWidth) {
      const F value = activated(activation, sums[m][n]);
      if (left >= V::kWidth) {
        V::store(out, value);
        left -= V::kWidth;
      } else {
        V::store_some(out, value, left);
      }
    }
  }
}

template <int M>
void linear_columns(Rows from, std::size_t depth, const float* panel, const float* bias, Activation activation,
                    OutRows to, std::size_t used, std::size_t vectors) {
  switch (vectors) {
    case 1: return linear_tile<M, 1>(from, depth, panel, bias, activation, to, used);
    case 2: return linear_tile<M, 2>(from, depth, panel, bias, activation, to, used);
    case 3:
      if constexpr (V::kVectors >= 3) return linear_tile<M, 3>(from, depth, panel, bias, activation, to, used);
      break;
    default:
      if constexpr (V::kVectors >= 4) return linear_tile<M, 4>(from, depth, panel, bias, activation, to, used);
  }
}

void linear(Rows from, std::size_t n, const Panels& weights, Activation activation, OutRows to) {
  constexpr std::size_t kPanel = V::kWidth * V::kVectors;
  const float* panel = weights.values;
  for (std::size_t first = 0; first < weights.padded_out; first += kPanel) {
    const std::size_t width = smaller(weights.padded_out - first, kPanel), vectors = width / V::kWidth;
    const std::size_t used = smaller(weights.out - first, width);
    const float* bias = weights.bias + first;
    std::size_t row = 0;
    for (; row < n; row += kTileRows) {
      const Rows part{from.data + row * from.stride, from.stride};
      const OutRows out{to.data + row * to.stride + first, to.stride};
      switch (smaller(n - row, kTileRows)) {
        case 1: linear_columns<1>(part, weights.in, panel, bias, activation, out, used, vectors); break;
        case 2: linear_columns<2>(part, weights.in, panel, bias, activation, out, used, vectors); break;
        case 3: linear_columns<3>(part, weights.in, panel, bias, activation, out, used, vectors); break;
        case 4: linear_columns<4>(part, weights.in, panel, bias, activation, out, used, vectors); break;
        case 5: linear_columns<5>(part, weights.in, panel, bias, activation, out, used, vectors); break;
        default: linear_columns<6>(part, weights.in, panel, bias, activation, out, used, vectors);
      }
    }
    panel += width * weights.in;
  }
}

template <int M, int N>
inline void square_tile(const float* const* vectors, std::size_t dim, const float* transposed, std::size_t stride,
                        float* to) {
  F sums[M][N];
  multiply_tile<M, N>(vectors, dim, transposed, stride, nullptr, sums);
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) V::store(to + static_cast<std::size_t>(m) * stride + n * V::kWidth, sums[m][n]);
  }
}

template <int M>
void square_rows(const float* const* vectors, std::size_t dim, const float* transposed, std::size_t stride,
                 std::size_t columns, float* to) {
  while (columns > 0) {
    const bool two = columns > V::kWidth;
    if (two) {
      square_tile<M, 2>(vectors, dim, transposed, stride, to);
    } else {
      square_tile<M, 1>(vectors, dim, transposed, stride, to);
    }
    const std::size_t done = (two ? 2 : 1) * V::kWidth;
    transposed += done;
    to += done;
    columns -= smaller(columns, done);
  }
}

void square(const float* const* vectors, std::uint32_t n, std::uint32_t dim, float* transposed, float* to) {
  const std::size_t stride = (n + V::kWidth - 1) / V::kWidth * V::kWidth;
  V::transpose(vectors, n, dim, stride, transposed);
  for (std::uint32_t i = 0; i < n; i += kTileRows) {
    const std::uint32_t rows = static_cast<std::uint32_t>(smaller(n - i, kTileRows));
    float* out = to + i * stride;
    switch (rows) {
      case 1: square_rows<1>(vectors + i, dim, transposed, stride, i + rows, out); break;
      case 2: square_rows<2>(vectors + i, dim, transposed, stride, i + rows, out); break;
      case 3: square_rows<3>(vectors + i, dim, transposed, stride, i + rows, out); break;
      case 4: square_rows<4>(vectors + i, dim, transposed, stride, i + rows, out); break;
      case 5: square_rows<5>(vectors + i, dim, transposed, stride, i + rows, out); break;
      default: square_rows<6>(vectors + i, dim, transposed, stride, i + rows, out);
    }
  }
}

// Runs are stored as whole vectors where the next ones overwrite what is too much.
void take_runs(const float* square, const Run* runs, std::size_t count, float* to, std::size_t total) {
  const float* const end = to + total;
  for (std::size_t r = 0; r < count; ++r) {
    const float* from = square + runs[r].from;
    std::size_t left = runs[r].length;
    while (left > 0) {
      const std::size_t some = smaller(left, V::kWidth);
      if (static_cast<std::size_t>(end - to) >= V::kWidth && some * 4 > V::kWidth) {
        V::store(to, V::load(from));
      } else {
        for (std::size_t i = 0; i < some; ++i) to[i] = from[i];
      }
      to += some;
      from += some;
      left -= some;
    }
  }
}

void activate(Activation activation, const float* from, std::size_t n, float* to) {
  std::size_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) V::store(to + i, activated(activation, V::load(from + i)));
  if (i == n) return;
  float rest[V::kWidth] = {};
  std::memcpy(rest, from + i, (n - i) * sizeof(float));
  V::store_some(to + i, activated(activation, V::load(rest)), n - i);
}

void combine(Binary operation, const float* a, const float* b, std::size_t n, float* to) {
  switch (operation) {
    case Binary::kAdd:
      for (std::size_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
      return;
    case Binary::kSubtract:
      for (std::size_t i = 0; i < n; ++i) to[i] = a[i] - b[i];
      return;
    case Binary::kMultiply:
      for (std::size_t i = 0; i < n; ++i) to[i] = a[i] * b[i];
  }
}

void sum(const float* from, std::size_t outer, std::size_t middle, std::size_t inner, float* to) {
  for (std::size_t o = 0; o < outer; ++o, from += middle * inner, to += inner) {
    std::memcpy(to, from, inner * sizeof(float));
    for (std::size_t m = 1; m < middle; ++m) {
      for (std::size_t i = 0; i < inner; ++i) to[i] += from[m * inner + i];
    }
  }
}

// One value after the other, for sets without shuffles of their own.
inline void transpose_plainly(const float* const* vectors, std::size_t n, std::size_t dim, std::size_t stride,
                              float* to) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t d = 0; d < dim; ++d) to[d * stride + i] = vectors[i][d];
  }
  for (std::size_t d = 0; d < dim; ++d) {
    for (std::size_t i = n; i < stride; ++i) to[d * stride + i] = 0;
  }
}

constexpr DenseKernels kKernels{V::kWidth, V::kVectors, linear, square, take_runs, activate, combine, sum};
