// Columns for tests: each owns its arrays on the heap at their exact size, so that AddressSanitizer sees every step
// outside.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "features/hash.h"
#include "features/program.h"

using namespace emberline::features;

template <class T>
std::unique_ptr<T[]> exact_copy(const std::vector<T>& values) {
  std::unique_ptr<T[]> copy(new T[values.size()]);
  for (std::size_t i = 0; i < values.size(); ++i) copy[i] = values[i];
  return copy;
}

struct OwnedColumn {
  ColumnView view;
  std::unique_ptr<std::int64_t[]> ints, offsets, starts, ends;
  std::unique_ptr<double[]> floats;
  std::unique_ptr<char[]> bytes;
  std::unique_ptr<std::uint8_t[]> valid;

  OwnedColumn with_offsets(const std::vector<std::int64_t>& values) && {
    offsets = exact_copy(values);
    view.offsets = offsets.get();
    view.offsets_count = static_cast<std::int64_t>(values.size());
    view.rows = view.offsets_count - 1;
    return std::move(*this);
  }
  OwnedColumn with_rows(std::int64_t rows) && {
    view.rows = rows;
    view.width = view.count / rows;
    return std::move(*this);
  }
  OwnedColumn with_valid(const std::vector<std::uint8_t>& flags) && {
    valid = exact_copy(flags);
    view.valid = valid.get();
    view.valid_count = static_cast<std::int64_t>(flags.size());
    return std::move(*this);
  }
};

inline OwnedColumn ints_column(const std::vector<std::int64_t>& values) {
  OwnedColumn out;
  out.ints = exact_copy(values);
  out.view.values = out.ints.get();
  out.view.count = out.view.rows = static_cast<std::int64_t>(values.size());
  return out;
}

inline OwnedColumn floats_column(const std::vector<double>& values) {
  OwnedColumn out;
  out.floats = exact_copy(values);
  out.view.wire = Wire::kFp64;
  out.view.values = out.floats.get();
  out.view.count = out.view.rows = static_cast<std::int64_t>(values.size());
  return out;
}

inline OwnedColumn bytes_column(const std::vector<std::string>& values) {
  std::vector<char> data;
  std::vector<std::int64_t> starts, ends;
  for (const std::string& value : values) {
    starts.push_back(static_cast<std::int64_t>(data.size()));
    data.insert(data.end(), value.begin(), value.end());
    ends.push_back(static_cast<std::int64_t>(data.size()));
  }
  OwnedColumn out;
  out.bytes = exact_copy(data);
  out.starts = exact_copy(starts);
  out.ends = exact_copy(ends);
  out.view.wire = Wire::kBytes;
  out.view.data = out.bytes.get();
  out.view.data_size = static_cast<std::int64_t>(data.size());
  out.view.starts = out.starts.get();
  out.view.ends = out.ends.get();
  out.view.count = out.view.rows = static_cast<std::int64_t>(values.size());
  return out;
}

// The results of one feature, apart from their batch.
struct Bags {
  std::vector<std::int64_t> values, offsets;
  std::vector<float> weights;
  bool weighted = false, single = false;

  bool operator==(const Bags&) const = default;
};

inline Bags bags_of(const Batch& batch, std::size_t feature = 0) {
  const Jagged& bags = batch.ids[feature];
  return {{bags.values.begin(), bags.values.end()},
          {bags.offsets.begin(), bags.offsets.end()},
          {bags.weights.begin(), bags.weights.end()},
          bags.weighted,
          bags.single};
}

inline std::vector<float> dense_of(const Batch& batch, std::size_t group = 0) {
  return {batch.dense[group].values.begin(), batch.dense[group].values.end()};
}

inline Input input(const std::string& name, Wire wire) {
  Input out;
  out.name = name;
  out.wire = wire;
  return out;
}

inline Input list_input(const std::string& name, Wire wire, std::int64_t max_length = 8) {
  Input out = input(name, wire);
  out.is_list = true;
  out.max_length = max_length;
  return out;
}

inline Feature ids_feature(std::size_t slot, std::vector<std::size_t> inputs, std::vector<Transform> transforms = {}) {
  Feature out;
  out.name = "ids" + std::to_string(slot);
  out.inputs = std::move(inputs);
  out.transforms = std::move(transforms);
  out.slot = slot;
  return out;
}

inline Feature dense_feature(std::int64_t column, std::int64_t width, std::size_t input,
                             std::vector<Transform> transforms = {}) {
  Feature out;
  out.name = "dense" + std::to_string(column);
  out.inputs = {input};
  out.transforms = std::move(transforms);
  out.is_dense = true;
  out.column = column;
  out.width = width;
  return out;
}
