// The bodies of Loops. A file includes this in an unnamed namespace, behind two constants: kHalves, whether a product
// of 128 bits is made of halves, which vectors can do, and kCounted, up to how many boundaries are compared one after
// the other instead of being searched.

constexpr double kMost = 3.4028234663852886e38;  // of float32
constexpr std::int64_t kBlock = 64;  // values that are searched at a time: their places stay in the first cache

void hash(const std::int64_t* __restrict from, std::int64_t size, std::uint64_t key, std::uint64_t buckets,
          std::int64_t* __restrict to) {
  if (buckets == 0) {
    for (std::int64_t i = 0; i < size; ++i) to[i] = to_id(hash_int(from[i], key), 0);
  } else if (kHalves && buckets >> 32 == 0) {
    for (std::int64_t i = 0; i < size; ++i) {
      const std::uint64_t hashed = hash_int(from[i], key);
      to[i] = static_cast<std::int64_t>(((hashed >> 32) * buckets + ((hashed & 0xFFFFFFFFu) * buckets >> 32)) >> 32);
    }
  } else if constexpr (kHalves) {
    const std::uint64_t low = buckets & 0xFFFFFFFFu, high = buckets >> 32;
    for (std::int64_t i = 0; i < size; ++i) {
      const std::uint64_t hashed = hash_int(from[i], key), a = hashed & 0xFFFFFFFFu, b = hashed >> 32;
      const std::uint64_t cross = a * high, middle = (a * low >> 32) + (cross & 0xFFFFFFFFu) + b * low;
      // b * low is below 2^64 - 2^33, and the two others below 2^32 each, so the sum does not overflow.
      to[i] = static_cast<std::int64_t>(b * high + (cross >> 32) + (middle >> 32));
    }
  } else {
    for (std::int64_t i = 0; i < size; ++i) to[i] = to_id(hash_int(from[i], key), buckets);
  }
}

void bucketise(const double* __restrict from, std::int64_t size, const double* __restrict boundaries, std::size_t half,
               std::size_t count, std::int64_t* __restrict to) {
  for (std::int64_t first = 0; first < size; first += kBlock) {
    const std::int64_t n = size - first < kBlock ? size - first : kBlock;
    const double* values = from + first;
    std::int64_t below[kBlock] = {};
    if (count <= kCounted) {
      for (std::size_t k = 0; k < count; ++k) {
        const double boundary = boundaries[k];
        for (std::int64_t i = 0; i < n; ++i) below[i] += boundary <= values[i] ? 1 : 0;
      }
    } else {
      for (std::size_t step = half; step > 0; step /= 2) {
        const double* upper = boundaries + step - 1;
        for (std::int64_t i = 0; i < n; ++i) {
          below[i] += static_cast<std::int64_t>(step) & -static_cast<std::int64_t>(upper[below[i]] <= values[i]);
        }
      }
    }
    for (std::int64_t i = 0; i < n; ++i) to[first + i] = below[i];
  }
}

void log(const double* __restrict from, std::int64_t size, const double* __restrict known, double* __restrict to) {
  for (std::int64_t first = 0; first < size; first += kBlock) {
    const std::int64_t n = size - first < kBlock ? size - first : kBlock;
    const double* given = from + first;
    double values[kBlock], small[kBlock], back[kBlock];
    std::int32_t whole[kBlock];
    std::uint64_t others = 0;
    // One step a loop: of several, the compiler makes branches. A null place may hold NaN, whose value does not matter.
    for (std::int64_t i = 0; i < n; ++i) values[i] = given[i] > 0.0 ? given[i] : 0.0;
    for (std::int64_t i = 0; i < n; ++i) small[i] = values[i] < kSmallLogs - 1 ? values[i] : kSmallLogs - 1;
    for (std::int64_t i = 0; i < n; ++i) whole[i] = static_cast<std::int32_t>(small[i]);
    for (std::int64_t i = 0; i < n; ++i) back[i] = whole[i];
    for (std::int64_t i = 0; i < n; ++i) others |= back[i] == values[i] ? std::uint64_t{0} : std::uint64_t{1};
    if (others == 0) {
      for (std::int64_t i = 0; i < n; ++i) to[first + i] = known[whole[i]];
    } else {
      for (std::int64_t i = 0; i < n; ++i) {
        to[first + i] = back[i] == values[i] ? known[whole[i]] : ::log1p(values[i]);
      }
    }
  }
}

void clip(const double* __restrict from, std::int64_t size, double min, double max, double* __restrict to) {
  for (std::int64_t i = 0; i < size; ++i) {
    const double value = from[i];
    to[i] = value < min ? min : (value > max ? max : value);
  }
}

void affine(const double* __restrict from, std::int64_t size, double scale, double shift, double* __restrict to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = from[i] * scale + shift;
}

void widen(const float* __restrict from, std::int64_t size, double* __restrict to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = from[i];
}

void narrow(const double* __restrict from, std::int64_t size, float* __restrict to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = static_cast<float>(from[i]);
}

// The flags are as wide as the values: the compiler makes vectors of nothing else.
bool singles_have_nan(const float* from, std::int64_t size) {
  std::uint32_t found = 0;
  for (std::int64_t i = 0; i < size; ++i) found |= from[i] != from[i] ? 1u : 0u;
  return found != 0;
}

bool doubles_have_nan(const double* from, std::int64_t size) {
  std::uint64_t found = 0;
  for (std::int64_t i = 0; i < size; ++i) found |= from[i] != from[i] ? std::uint64_t{1} : std::uint64_t{0};
  return found != 0;
}

bool singles_fit(const float* from, std::int64_t size) {
  std::uint32_t wrong = 0;
  for (std::int64_t i = 0; i < size; ++i) wrong |= __builtin_fabsf(from[i]) <= static_cast<float>(kMost) ? 0u : 1u;
  return wrong == 0;
}

bool doubles_fit(const double* from, std::int64_t size) {
  std::uint64_t wrong = 0;
  for (std::int64_t i = 0; i < size; ++i)
    wrong |= __builtin_fabs(from[i]) <= kMost ? std::uint64_t{0} : std::uint64_t{1};
  return wrong == 0;
}

constexpr Loops kLoops{hash,        bucketise,  log, clip, affine, widen, narrow, singles_have_nan, doubles_have_nan,
                       singles_fit, doubles_fit};
