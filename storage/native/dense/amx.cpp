// Linear layers by tiles. Compiled for AMX and AVX-512 with BF16: nothing here may run, or be linked into what runs,
// elsewhere.
#include <immintrin.h>

#include <cstring>

#include "dense/tiles.h"

namespace emberline::dense {
namespace {

#include "dense/avx512_vector.h"
#include "dense/vector_functions.h"

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// All eight tiles have sixteen rows of 64 bytes. Registers are the thread's; torch may have set others before.
void configure() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  _tile_loadconfig(&config);
}

// Rounds rows, and cuts them into tiles of 16 rows and 32 values, those of the first rows first.
void round_rows(Rows from, std::size_t n, std::size_t depth, std::uint16_t* to) {
  const std::size_t tiles = (depth + kTileDepth - 1) / kTileDepth;
  for (std::size_t row = 0; row < n; ++row) {
    const float* values = from.data + row * from.stride;
    std::uint16_t* out = to + row / kTileRows16 * tiles * kTileValues + row % kTileRows16 * kTileDepth;
    for (std::size_t k = 0; k < tiles * kTileDepth; k += kTileDepth, out += kTileValues) {
      const std::size_t left = depth - k;
      const __mmask16 low = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
      const __mmask16 high = left >= 32 ? 0xffff : left > 16 ? static_cast<__mmask16>((1u << (left - 16)) - 1) : 0;
      const F first = _mm512_maskz_loadu_ps(low, values + k), second = _mm512_maskz_loadu_ps(high, values + k + 16);
      const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
      std::memcpy(out, &both, sizeof(both));
    }
  }
}

void finish(const float* sums, std::size_t rows, const float* bias, Activation activation, OutRows to,
            std::size_t columns) {
  const F add = V::load(bias);
  for (std::size_t row = 0; row < rows; ++row) {
    const F value = activated(activation, V::add(V::load(sums + row * kTileColumns), add));
    float* out = to.data + row * to.stride;
    if (columns >= kTileColumns) {
      V::store(out, value);
    } else {
      V::store_some(out, value, columns);
    }
  }
}

constexpr std::size_t kRowBytes = 64;

// One or two tiles of rows times one or two of columns. `depth` tiles lie one behind the other.
template <bool kTwoRows, bool kTwoColumns>
void multiply(const std::uint16_t* rows, const std::uint16_t* columns, std::size_t depth, float (*sums)[256]) {
  _tile_zero(0);
  if constexpr (kTwoColumns) _tile_zero(1);
  if constexpr (kTwoRows) _tile_zero(2);
  if constexpr (kTwoRows && kTwoColumns) _tile_zero(3);
  const std::uint16_t* more_rows = rows + depth * kTileValues;
  const std::uint16_t* more_columns = columns + depth * kTileValues;
  for (std::size_t k = 0; k < depth * kTileValues; k += kTileValues) {
    _tile_loadd(4, rows + k, kRowBytes);
    _tile_loadd(6, columns + k, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoColumns) {
      _tile_loadd(7, more_columns + k, kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoRows) {
      _tile_loadd(5, more_rows + k, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kTwoRows && kTwoColumns) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums[0], kRowBytes);
  if constexpr (kTwoColumns) _tile_stored(1, sums[1], kRowBytes);
  if constexpr (kTwoRows) _tile_stored(2, sums[2], kRowBytes);
  if constexpr (kTwoRows && kTwoColumns) _tile_stored(3, sums[3], kRowBytes);
}

}  // namespace

void linear_in_tiles(Rows from, std::size_t n, const Tiles& weights, Activation activation, OutRows to,
                     std::uint16_t* rounded) {
  const std::size_t depth = (weights.in + kTileDepth - 1) / kTileDepth;
  round_rows(from, n, weights.in, rounded);
  configure();
  alignas(64) float sums[4][256];
  for (std::size_t column = 0; column < weights.out; column += 2 * kTileColumns) {
    const std::uint16_t* columns = weights.values + column / kTileColumns * depth * kTileValues;
    const bool two_columns = weights.out - column > kTileColumns;
    for (std::size_t row = 0; row < n; row += 2 * kTileRows16) {
      const std::uint16_t* rows = rounded + row / kTileRows16 * depth * kTileValues;
      const bool two_rows = n - row > kTileRows16;
      if (two_rows && two_columns) {
        multiply<true, true>(rows, columns, depth, sums);
      } else if (two_rows) {
        multiply<true, false>(rows, columns, depth, sums);
      } else if (two_columns) {
        multiply<false, true>(rows, columns, depth, sums);
      } else {
        multiply<false, false>(rows, columns, depth, sums);
      }
      for (std::size_t r = 0; r < 2; ++r) {
        for (std::size_t c = 0; c < 2; ++c) {
          const std::size_t first_row = row + r * kTileRows16, first_column = column + c * kTileColumns;
          if (first_row >= n || first_column >= weights.out) continue;
          const OutRows out{to.data + first_row * to.stride + first_column, to.stride};
          finish(sums[2 * r + c], smaller(n - first_row, kTileRows16), weights.bias + first_column, activation, out,
                 weights.out - first_column);
        }
      }
    }
  }
  _tile_release();
}

}  // namespace emberline::dense
