// Unpooled lookups: the rows of ids, decoded, each to its own row of the output.
//
// The shape of a feature (lookup.cuh) is its length L. L > 0: the output is (rows, L, D), as on the host: row b has its
// first L ids, then zeros. L = 0: the output is (room for ids, D), id i goes to row i, and rows past the ids are zeros.
// States, a byte for each row of the output: 1 where a row was found. A miss is zeros and an entry of the list.
//
// A warp takes 32 rows of the output. Each lane searches for one id, so that 32 searches are under way; then the warp
// is cut into tiles as wide as a row has units, and each tile copies rows, four under way in every lane.
#pragma once

#include "lookup.cuh"
#include "output.cuh"

namespace emberline {

// Which id goes to a row of the output, or -1.
EMBERLINE_HD int64_t id_at(const Feature& feature, int64_t row, int64_t batch) {
  if (feature.shape <= 0) {
    return batch > 0 && row < feature.id_count ? row : -1;
  }
  const int64_t bag = static_cast<int64_t>(static_cast<uint64_t>(row) / static_cast<uint64_t>(feature.shape));
  const IdRange ids = ids_of(feature, bag, batch);
  const int64_t id = ids.begin + (row - bag * feature.shape);
  return id < ids.end ? id : -1;
}

// Where: OwnRows, or RowsAcross of lookup_across.cuh.
template <class Output, class Where>
struct GatherRows {
  const Tile& tile;  // a warp
  const Lookup& lookup;
  const Feature& feature;
  int64_t number;  // of the feature
  int64_t warp, warps;

  template <int kType, int kWords>
  EMBERLINE_DEVICE void run() const {
    const int64_t rows = feature.shape > 0 ? lookup.rows * feature.shape : feature.id_room;
    const int64_t batch = batch_of(lookup);
    for (int64_t first = warp * kWarp; first < rows; first += warps * kWarp) {
      PerLane<typename Where::Held> held;
      find(held, first, rows, batch);
      copy<kType, kWords>(held, first, rows);
    }
  }

  EMBERLINE_DEVICE void find(PerLane<typename Where::Held>& held, int64_t first, int64_t rows, int64_t batch) const {
    PerLane<bool> missing;
    PerLane<int64_t> id_numbers, places;
    tile.each([&](int lane) {
      const int64_t row = first + lane;
      const int64_t id = row < rows ? id_at(feature, row, batch) : -1;
      held[lane] = id < 0 ? 0 : Where::look_up(lookup, feature, number, id);
      missing[lane] = id >= 0 && held[lane] == 0;
      id_numbers[lane] = id;
      places[lane] = row;
      if (feature.states != nullptr && row < rows) feature.states[row] = held[lane] != 0 ? 1 : 0;
    });
    append_misses(tile, lookup, number, missing, id_numbers, places);
  }

  template <int kType, int kWords>
  EMBERLINE_DEVICE void copy(PerLane<typename Where::Held>& held, int64_t first, int64_t rows) const {
    using Part = RowPart<kType, kWords>;
    const int64_t units = units_of<kType, kWords>(feature.dim);
    const int width = tile_width(units, 1);
    const int abreast = kWarp / width;  // rows
    typename Output::Value* output = reinterpret_cast<typename Output::Value*>(feature.output);
    tile.each([&](int lane) {
      for (int64_t begin = 0; begin < units; begin += width) {
        const int64_t unit = begin + lane % width;
        for (int step = 0; step < width; step += kRowsAhead) {
          Part parts[kRowsAhead];
          EMBERLINE_UNROLL
          for (int k = 0; k < kRowsAhead; ++k) {
            parts[k].clear();
            if (step + k >= width) continue;
            const typename Where::Held one = tile.from(held, (step + k) * abreast + lane / width);
            if (one != 0 && unit < units) parts[k].load(Where::row(feature, one), unit);
          }
          EMBERLINE_UNROLL
          for (int k = 0; k < kRowsAhead; ++k) {
            const int64_t row = first + (step + k) * abreast + lane / width;
            if (step + k >= width || row >= rows || unit >= units) continue;
            const Part& part = parts[k];
            put_values<Output, Part::kValues>(output + row * feature.dim, first_value<kType>(unit * kWords),
                                              feature.dim, [&](int v) { return part.value(v); });
          }
        }
      }
    });
  }
};

// What one warp of `warps` does for a feature, if its rows are of the type.
template <class Output, class Where = OwnRows, int kType = kAnyRowType>
EMBERLINE_DEVICE void gather_share(const Tile& tile, const Lookup& lookup, int64_t number, int64_t warp,
                                   int64_t warps) {
  const Feature feature = feature_at(lookup.features, lookup.header, number);
  by_row_type<kType>(feature, GatherRows<Output, Where>{tile, lookup, feature, number, warp, warps});
}

}  // namespace emberline
