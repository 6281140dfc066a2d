// Pooled lookups: bags of ids summed in float32, in the order of the ids, by one tile each, so that a bag without a
// miss has the bits that the host gives it (rows/pooling.h): 0 + w0 * row0 + w1 * row1 + ..., products and sums rounded
// one by one; a mean is divided by the number of ids, if that is above 1, once at the end.
//
// The shape of a feature (lookup.cuh) is its pooling. The output is (rows, D) float32; rows past the batch and empty
// bags are zeros. States, a byte for each bag: 1 where a row is missing. Such a bag has the sum of its hits (a mean is
// divided by all ids), and its missing ids are entries of the list: missed_rows.cuh adds them.
//
// A tile takes as many ids of its bag at a time as it has lanes, and each lane searches for one; then every lane sums
// its columns, four rows under way. A row wider than 32 units is summed in several passes over ids that were searched
// for once, for a row may be replaced between two searches; sums of bags with more ids than lanes then wait in the
// output.
#pragma once

#include "lookup.cuh"
#include "output.cuh"

namespace emberline {

// As Pooling of rows/pooling.h.
constexpr int64_t kPoolSum = 0;
constexpr int64_t kPoolMean = 1;
constexpr int64_t kPoolWeighted = 3;
// So that narrow rows have lanes to search with.
constexpr int kLeastPoolTile = 4;

EMBERLINE_HD float divisor_of(int64_t pooling, int count) {
  return pooling == kPoolMean && count > 1 ? static_cast<float>(count) : 1.0f;
}

// Lanes of a tile for a feature's bags.
EMBERLINE_HD int pool_width(const Feature& feature) {
  const int64_t unit = feature.stride % 16 == 0 ? 16 : 4;
  return tile_width((encoded_bytes(feature.row_type, feature.dim) + unit - 1) / unit, kLeastPoolTile);
}

// Where: OwnRows, or RowsAcross of lookup_across.cuh.
template <class Where>
struct PoolBags {
  using Held = typename Where::Held;

  const Lookup& lookup;
  const Feature& feature;
  int64_t number;  // of the feature
  int64_t thread, threads;

  template <int kType, int kWords>
  EMBERLINE_DEVICE void run() const {
    const int width = pool_width(feature);
    const Tile tile(width);
    const int64_t batch = batch_of(lookup);
    for (int64_t bag = thread / width; bag < lookup.rows; bag += threads / width) {
      const IdRange ids = ids_of(feature, bag, batch);
      const bool missing = pool<kType, kWords>(tile, bag, ids);
      if (feature.states == nullptr) continue;
      tile.once([&] {
        feature.states[bag] = missing ? 1 : 0;
        return uint64_t{0};
      });
    }
  }

  template <int kType, int kWords>
  EMBERLINE_DEVICE bool pool(const Tile& tile, int64_t bag, IdRange ids) const {
    constexpr int kValues = RowPart<kType, kWords>::kValues;
    const int64_t units = units_of<kType, kWords>(feature.dim);
    const float divisor = divisor_of(feature.shape, ids.end - ids.begin);
    float* output = reinterpret_cast<float*>(feature.output) + bag * feature.dim;
    const bool one_pass = units <= tile.width();
    bool any_missing = false;
    PerLane<Sums<kValues>> sums;
    int begin = ids.begin;
    do {
      PerLane<Held> held;
      PerLane<float> weights;
      any_missing |= find(tile, held, weights, bag, begin, ids.end);
      const int left = ids.end - begin;
      const int count = left < tile.width() ? left : tile.width();
      const bool is_last = left <= tile.width();
      for (int64_t first_unit = 0; first_unit < units; first_unit += tile.width()) {
        tile.each([&](int lane) {
          const int64_t unit = first_unit + lane;
          const bool has_values = unit < units;
          const int64_t first = first_value<kType>(unit * kWords);
          if (begin == ids.begin) {
            sums[lane].clear();
          } else if (!one_pass && has_values) {
            sums[lane].resume(output, first, feature.dim);
          }
          add_rows<kType, kWords>(tile, sums[lane], held, weights, count, unit, has_values);
          if (is_last && divisor != 1.0f) sums[lane].divide_by(divisor);
          if ((is_last || !one_pass) && has_values) {
            const Sums<kValues>& own = sums[lane];
            put_values<Fp32Output, kValues>(output, first, feature.dim, [&](int v) { return own.values[v]; });
          }
        });
      }
      begin += tile.width();
    } while (begin < ids.end);
    return any_missing;
  }

 private:
  template <int kValues>
  struct Sums {
    float values[kValues];

    EMBERLINE_DEVICE void clear() {
      EMBERLINE_UNROLL
      for (int v = 0; v < kValues; ++v) values[v] = 0;
    }
    // What this very lane has put there.
    EMBERLINE_DEVICE void resume(const float* row, int64_t first, int64_t dim) {
      EMBERLINE_UNROLL
      for (int v = 0; v < kValues; ++v) values[v] = first + v >= 0 && first + v < dim ? row[first + v] : 0;
    }
    EMBERLINE_DEVICE void divide_by(float divisor) {
      EMBERLINE_UNROLL
      for (int v = 0; v < kValues; ++v) values[v] = divide(values[v], divisor);
    }
  };

  EMBERLINE_DEVICE bool find(const Tile& tile, PerLane<Held>& held, PerLane<float>& weights, int64_t bag, int begin,
                             int end) const {
    PerLane<bool> missing;
    PerLane<int64_t> id_numbers, bags;
    tile.each([&](int lane) {
      const int id = begin + lane;
      held[lane] = id < end ? Where::look_up(lookup, feature, number, id) : 0;
      weights[lane] = id < end && feature.weights != nullptr ? feature.weights[id] : 1.0f;
      missing[lane] = id < end && held[lane] == 0;
      id_numbers[lane] = id;
      bags[lane] = bag;
    });
    return append_misses(tile, lookup, number, missing, id_numbers, bags);
  }

  template <int kType, int kWords>
  EMBERLINE_DEVICE void add_rows(const Tile& tile, Sums<RowPart<kType, kWords>::kValues>& sums, PerLane<Held>& held,
                                 PerLane<float>& weights, int count, int64_t unit, bool has_values) const {
    using Part = RowPart<kType, kWords>;
    for (int step = 0; step < count; step += kRowsAhead) {
      Part parts[kRowsAhead];
      Held ahead[kRowsAhead];
      EMBERLINE_UNROLL
      for (int k = 0; k < kRowsAhead; ++k) {
        ahead[k] = step + k < count ? tile.from(held, step + k) : 0;
        if (ahead[k] != 0 && has_values) {
          parts[k].load(Where::row(feature, ahead[k]), unit);
        } else {
          parts[k].clear();
        }
      }
      EMBERLINE_UNROLL
      for (int k = 0; k < kRowsAhead; ++k) {
        if (ahead[k] == 0) continue;  // the same in all lanes
        if (feature.weights == nullptr) {
          EMBERLINE_UNROLL
          for (int v = 0; v < Part::kValues; ++v) sums.values[v] = add(sums.values[v], parts[k].value(v));
          continue;
        }
        const float weight = tile.from(weights, step + k);
        EMBERLINE_UNROLL
        for (int v = 0; v < Part::kValues; ++v) {
          sums.values[v] = add(sums.values[v], multiply(weight, parts[k].value(v)));
        }
      }
    }
  }
};

// What one thread of `threads` does for a feature, with the others of its tile, if its rows are of the type.
template <class Where = OwnRows, int kType = kAnyRowType>
EMBERLINE_DEVICE void pool_share(const Lookup& lookup, int64_t number, int64_t thread, int64_t threads) {
  Feature feature = feature_at(lookup.features, lookup.header, number);
  if (feature.shape != kPoolWeighted) feature.weights = nullptr;
  by_row_type<kType>(feature, PoolBags<Where>{lookup, feature, number, thread, threads});
}

}  // namespace emberline
