// The bodies of PairLoops. A file includes this in an unnamed namespace.

constexpr std::uint32_t kRowsAtOnce = 4;

// The vectors of a sample by number.
template <class T>
inline T* vector_of(const PairShape& shape, const PairVectors<T>& vectors, std::size_t sample, std::uint32_t v) {
  if (vectors.first == nullptr) return vectors.rest + (sample * shape.vectors + v) * shape.dim;
  if (v == 0) return vectors.first + sample * shape.dim;
  return vectors.rest + (sample * (shape.vectors - 1) + v - 1) * shape.dim;
}

// sums (kRowsAtOnce, kPairTile): products of some vectors with the vectors `at` to at + 15, which lie transposed.
inline void products_of(const float* const* rows, const float* __restrict transposed, std::size_t stride,
                        std::uint32_t dim, float* __restrict sums) {
  float a[kPairTile] = {}, b[kPairTile] = {}, c[kPairTile] = {}, d[kPairTile] = {};
  const float* __restrict one = rows[0];
  const float* __restrict two = rows[1];
  const float* __restrict three = rows[2];
  const float* __restrict four = rows[3];
  for (std::uint32_t k = 0; k < dim; ++k) {
    const float* __restrict with = transposed + k * stride;
    for (std::uint32_t at = 0; at < kPairTile; ++at) {
      a[at] += one[k] * with[at];
      b[at] += two[k] * with[at];
      c[at] += three[k] * with[at];
      d[at] += four[k] * with[at];
    }
  }
  for (std::uint32_t at = 0; at < kPairTile; ++at) {
    sums[at] = a[at];
    sums[kPairTile + at] = b[at];
    sums[2 * kPairTile + at] = c[at];
    sums[3 * kPairTile + at] = d[at];
  }
}

void products(const PairShape& shape, const PairVectors<const float>& vectors, float* out, std::size_t first,
              std::size_t last, float* scratch) {
  const std::uint32_t count = shape.vectors, dim = shape.dim;
  const std::size_t stride = pair_padded(count);
  float* transposed = scratch;  // (D, stride); what is beyond the vectors stays 0
  for (std::size_t sample = first; sample < last; ++sample) {
    float* to = out + sample * shape.width();
    const float* start = vector_of(shape, vectors, sample, 0);
    for (std::uint32_t k = 0; k < dim; ++k) to[k] = start[k];
    for (std::uint32_t v = 0; v < count; ++v) {
      const float* __restrict from = vector_of(shape, vectors, sample, v);
      float* __restrict column = transposed + v;
      for (std::uint32_t k = 0; k < dim; ++k) column[k * stride] = from[k];
    }
    to += dim;
    for (std::uint32_t v = 1; v < count; v += kRowsAtOnce) {
      const std::uint32_t end = v + kRowsAtOnce < count ? v + kRowsAtOnce : count;
      const float* rows[kRowsAtOnce];
      for (std::uint32_t i = 0; i < kRowsAtOnce; ++i) {
        rows[i] = vector_of(shape, vectors, sample, v + i < count ? v + i : count - 1);
      }
      // The products of v to end - 1 with all smaller ones; row u begins behind u (u - 1) / 2 products.
      for (std::uint32_t at = 0; at < end - 1; at += kPairTile) {
        float sums[kRowsAtOnce * kPairTile];
        products_of(rows, transposed + at, stride, dim, sums);
        for (std::uint32_t u = v; u < end; ++u) {
          float* row = to + std::size_t{u} * (u - 1) / 2;
          const std::uint32_t stop = u < at + kPairTile ? u : at + kPairTile;
          for (std::uint32_t w = at; w < stop; ++w) row[w] = sums[(u - v) * kPairTile + w - at];
        }
      }
    }
  }
}

// Adds to (16 values of each of four gradients) the vectors by their factors.
inline void add_scaled(const float* const* factors, const float* __restrict vectors, std::size_t stride,
                       std::uint32_t count, float* __restrict sums) {
  float a[kPairTile] = {}, b[kPairTile] = {}, c[kPairTile] = {}, d[kPairTile] = {};
  const float* __restrict one = factors[0];
  const float* __restrict two = factors[1];
  const float* __restrict three = factors[2];
  const float* __restrict four = factors[3];
  for (std::uint32_t v = 0; v < count; ++v) {
    const float* __restrict with = vectors + v * stride;
    for (std::uint32_t at = 0; at < kPairTile; ++at) {
      a[at] += one[v] * with[at];
      b[at] += two[v] * with[at];
      c[at] += three[v] * with[at];
      d[at] += four[v] * with[at];
    }
  }
  for (std::uint32_t at = 0; at < kPairTile; ++at) {
    sums[at] = a[at];
    sums[kPairTile + at] = b[at];
    sums[2 * kPairTile + at] = c[at];
    sums[3 * kPairTile + at] = d[at];
  }
}

void gradients(const PairShape& shape, const PairVectors<const float>& vectors, const float* grad,
               const PairVectors<float>& grads, std::size_t first, std::size_t last, float* scratch) {
  const std::uint32_t count = shape.vectors, dim = shape.dim;
  const std::size_t square = pair_padded(count), width = pair_padded(dim);
  float* factors = scratch;                  // (V, square): the gradient of each product, on both sides
  float* packed = scratch + square * square;  // (V, width); what is beyond D stays 0
  for (std::size_t sample = first; sample < last; ++sample) {
    const float* from = grad + sample * shape.width();
    const float* products_from = from + dim;
    for (std::uint32_t u = 0; u < count; ++u) {
      factors[u * square + u] = 0.0f;
      for (std::uint32_t w = 0; w < u; ++w) {
        const float each = *products_from++;
        factors[u * square + w] = each;
        factors[w * square + u] = each;
      }
      const float* __restrict vector = vector_of(shape, vectors, sample, u);
      float* __restrict to = packed + u * width;
      for (std::uint32_t k = 0; k < dim; ++k) to[k] = vector[k];
    }
    for (std::uint32_t u = 0; u < count; u += kRowsAtOnce) {
      const float* rows[kRowsAtOnce];
      for (std::uint32_t i = 0; i < kRowsAtOnce; ++i) {
        rows[i] = factors + (u + i < count ? u + i : count - 1) * square;
      }
      for (std::uint32_t k = 0; k < dim; k += kPairTile) {
        float sums[kRowsAtOnce * kPairTile];
        add_scaled(rows, packed + k, width, count, sums);
        const std::uint32_t values = k + kPairTile < dim ? kPairTile : dim - k;
        for (std::uint32_t i = 0; i < kRowsAtOnce && u + i < count; ++i) {
          float* __restrict to = vector_of(shape, grads, sample, u + i) + k;
          for (std::uint32_t j = 0; j < values; ++j) to[j] = sums[i * kPairTile + j];
        }
      }
    }
    float* start = vector_of(shape, grads, sample, 0);
    for (std::uint32_t k = 0; k < dim; ++k) start[k] += from[k];
  }
}

constexpr PairLoops kPairs = {products, gradients};
