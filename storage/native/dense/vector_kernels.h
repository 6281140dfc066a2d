// The dense kernels over vectors of floats. A file includes this once, in an unnamed namespace, behind
// vector_functions.h.

constexpr std::size_t kTileRows = 6;

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

// Where the products of a row of the square go: row i of the square itself, or of its triangle below the diagonal,
// whose rows lie one behind the other. There, a row is stored as whole vectors, and the next row overwrites what is too
// much.
struct SquareRows {
  float* to;
  std::size_t stride;

  void store(std::size_t row, std::size_t column, F values) const { V::store(to + row * stride + column, values); }
};
struct TriangleRows {
  float* to;
  std::size_t total;

  void store(std::size_t row, std::size_t column, F values) const {
    if (column >= row) return;
    const std::size_t begin = row * (row - 1) / 2 + column;
    if (begin + V::kWidth <= total) {
      V::store(to + begin, values);
    } else {
      V::store_some(to + begin, values, total - begin);
    }
  }
};

template <int M, int N, class To>
inline void square_tile(const float* const* vectors, std::size_t dim, const float* transposed, std::size_t stride,
                        std::size_t row, std::size_t column, const To& to) {
  F sums[M][N];
  multiply_tile<M, N>(vectors, dim, transposed, stride, nullptr, sums);
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) to.store(row + m, column + n * V::kWidth, sums[m][n]);
  }
}

// Rows [row, row + M) of the square, up to the diagonal of the last; the last columns first, so that what is stored too
// much in a triangle is overwritten.
template <int M, class To>
void square_rows(const float* const* vectors, std::size_t dim, const float* transposed, std::size_t stride,
                 std::size_t row, const To& to) {
  constexpr std::size_t kTwo = 2 * V::kWidth;
  const std::size_t columns = row + M;
  for (std::size_t column = (columns - 1) / kTwo * kTwo;; column -= kTwo) {
    if (columns - column > V::kWidth) {
      square_tile<M, 2>(vectors + row, dim, transposed + column, stride, row, column, to);
    } else {
      square_tile<M, 1>(vectors + row, dim, transposed + column, stride, row, column, to);
    }
    if (column == 0) return;
  }
}

template <class To>
void multiply_pairs(const float* const* vectors, std::size_t n, std::size_t dim, float* transposed, const To& to) {
  const std::size_t stride = (n + V::kWidth - 1) / V::kWidth * V::kWidth;
  V::transpose(vectors, n, dim, stride, transposed);
  for (std::size_t row = 0; row < n; row += kTileRows) {
    switch (smaller(n - row, kTileRows)) {
      case 1: square_rows<1>(vectors, dim, transposed, stride, row, to); break;
      case 2: square_rows<2>(vectors, dim, transposed, stride, row, to); break;
      case 3: square_rows<3>(vectors, dim, transposed, stride, row, to); break;
      case 4: square_rows<4>(vectors, dim, transposed, stride, row, to); break;
      case 5: square_rows<5>(vectors, dim, transposed, stride, row, to); break;
      default: square_rows<6>(vectors, dim, transposed, stride, row, to);
    }
  }
}

void square(const float* const* vectors, std::size_t n, std::size_t dim, float* transposed, float* to) {
  multiply_pairs(vectors, n, dim, transposed, SquareRows{to, (n + V::kWidth - 1) / V::kWidth * V::kWidth});
}

void triangle(const float* const* vectors, std::size_t n, std::size_t dim, float* transposed, float* to) {
  multiply_pairs(vectors, n, dim, transposed, TriangleRows{to, n * (n - 1) / 2});
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

constexpr DenseKernels kKernels{V::kWidth, V::kVectors, linear, square, triangle, take_runs, activate, combine, sum};
