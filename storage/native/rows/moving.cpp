#include "rows/moving.h"

#include <cstring>

#include "rows/mixed.h"

namespace emberline {
namespace {

// Rows that are asked of memory before they are copied: an access takes about as long as so many copies.
constexpr std::size_t kAhead = 12;
constexpr std::size_t kLine = 64;
constexpr std::uint32_t kExponent = 0x7F800000;

bool is_finite(const float* row, std::size_t dim) {
  std::uint32_t worst = 0;
  for (std::size_t d = 0; d < dim; ++d) {
    std::uint32_t bits;
    std::memcpy(&bits, row + d, sizeof bits);
    const std::uint32_t exponent = bits & kExponent;
    worst = exponent > worst ? exponent : worst;
  }
  return worst != kExponent;
}

// Values that are looked at before anything is decided, so that the loop over them has no branch.
constexpr std::size_t kAtOnce = 1 << 12;

template <class Word, Word kInfinity>
NotFinite not_finite_words(const Word* words, std::size_t n) {
  constexpr Word kMagnitude = static_cast<Word>(~(Word{1} << (8 * sizeof(Word) - 1)));
  NotFinite found;
  for (std::size_t start = 0; start < n; start += kAtOnce) {
    const std::size_t end = start + kAtOnce < n ? start + kAtOnce : n;
    Word worst = 0;
    for (std::size_t i = start; i < end; ++i) {
      const Word magnitude = words[i] & kMagnitude;
      worst = magnitude > worst ? magnitude : worst;
    }
    if (worst < kInfinity) continue;
    for (std::size_t i = start; i < end; ++i) {
      const Word magnitude = words[i] & kMagnitude;
      found.nan = found.nan || magnitude > kInfinity;
      found.infinity = found.infinity || magnitude == kInfinity;
    }
  }
  return found;
}

}  // namespace

std::size_t move_rows(const float* from, const std::int64_t* places, float* to, const std::int64_t* targets,
                      std::size_t n, std::size_t dim) {
  const std::size_t bytes = dim * sizeof(float);
  std::size_t bad = n;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const char* next = reinterpret_cast<const char*>(from + places[i + kAhead] * dim);
      const char* there = reinterpret_cast<const char*>(to + targets[i + kAhead] * dim);
      for (std::size_t byte = 0; byte < bytes; byte += kLine) {
        __builtin_prefetch(next + byte);
        __builtin_prefetch(there + byte, 1);
      }
    }
    float* row = to + targets[i] * dim;
    std::memcpy(row, from + places[i] * dim, bytes);
    if (bad == n && !is_finite(row, dim)) bad = i;
  }
  return bad;
}

std::uint64_t rows_fingerprint(const std::int64_t* ids, const char* rows, std::size_t n, const std::uint64_t* keys,
                               std::size_t words) {
  constexpr std::uint64_t kRowSalt = 0x243F6A8885A308D3;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const char* row = rows + i * words * 4;
    std::uint64_t content = 0;
    for (std::size_t w = 0; w < words; ++w) {
      std::uint32_t word;
      std::memcpy(&word, row + 4 * w, sizeof word);
      content += word * keys[w];
    }
    total += mixed(mixed(static_cast<std::uint64_t>(ids[i]) ^ kRowSalt) + content);
  }
  return total;
}

NotFinite not_finite(const float* values, std::size_t n) {
  return not_finite_words<std::uint32_t, kExponent>(reinterpret_cast<const std::uint32_t*>(values), n);
}

NotFinite not_finite_bf16(const std::uint16_t* values, std::size_t n) {
  return not_finite_words<std::uint16_t, 0x7F80>(values, n);
}

std::size_t first_not_finite(const float* rows, std::size_t n, std::size_t dim) {
  for (std::size_t i = 0; i < n; ++i) {
    if (!is_finite(rows + i * dim, dim)) return i;
  }
  return n;
}

}  // namespace emberline
