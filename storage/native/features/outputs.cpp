#include "features/outputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "features/loops.h"
#include "features/program.h"

namespace emberline::features {

namespace {

constexpr double kMostSingle = std::numeric_limits<float>::max();

// Whether all values are finite as float32. The cast of a double beyond float's range is undefined, so it is judged
// before it is made.
bool all_fit(const float* values, std::int64_t size) { return loops().singles_fit(values, size); }
bool all_fit(const double* values, std::int64_t size) { return loops().doubles_fit(values, size); }

void narrow(const float* values, std::int64_t size, float* to) {
  std::memcpy(to, values, static_cast<std::size_t>(size) * sizeof(float));
}
void narrow(const double* values, std::int64_t size, float* to) { loops().narrow(values, size, to); }

template <class T>
[[noreturn]] void refuse_first(const T* values, const Feature& feature, const std::string& input) {
  std::int64_t place = 0;
  while (std::abs(values[place]) <= static_cast<T>(kMostSingle)) ++place;
  throw InvalidInput(input, "input '" + input + "', row " + std::to_string(place / feature.width) +
                                ": the dense feature '" + feature.name +
                                "' is not a finite float32; clip it in its spec, or send a smaller number or null");
}

// Writes rows of `width` values into columns of a wider matrix.
template <class T>
void put_columns(const T* values, std::int64_t rows, std::int64_t width, float* __restrict to, std::int64_t stride) {
  if (width == stride) {
    narrow(values, rows * width, to);
  } else if (width == 1) {
    for (std::int64_t row = 0; row < rows; ++row) to[row * stride] = static_cast<float>(values[row]);
  } else {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t k = 0; k < width; ++k) to[row * stride + k] = static_cast<float>(values[row * width + k]);
    }
  }
}

// Writes the integer of each place of cells with an index.
void put_entries(const Cells& cells, std::int64_t* __restrict to) {
  const std::int64_t size = cells.size();
  const std::int64_t* entries = cells.ints();
  for (std::int64_t i = 0; i < size; ++i) to[i] = entries[cells.index[i]];
}

const double* without_nulls(const Cells& cells, Arena& arena) {
  if (cells.null == nullptr) return cells.floats();
  const std::int64_t size = cells.size();
  double* __restrict to = arena.take<double>(size);
  for (std::int64_t i = 0; i < size; ++i) to[i] = cells.null[i] != 0 ? 0.0 : cells.floats()[i];
  return to;
}

}  // namespace

void Outputs::put_ids(const Feature& feature, Cells cells) {
  if (cells.type() != Type::kInt) throw std::logic_error("feature '" + feature.name + "' does not end in integers");
  if (cells.rows != batch_.rows) cells.repeat(batch_.rows, scratch_);
  Jagged& out = batch_.ids[feature.slot];
  out.weighted = feature.weights.has_value();
  if (cells.is_fixed() && cells.null == nullptr) {
    if (feature.cut > 0 && feature.cut < cells.width) {
      cells.spread(scratch_);
      cells.keep_columns(0, feature.cut);
    }
    return put_fixed(cells, out);
  }
  cells.pack(scratch_);
  if (cells.null == nullptr && feature.cut == 0) return put_lists(cells, out);
  cells.spread(scratch_);
  put_some(cells, feature.cut == 0 ? std::numeric_limits<std::int64_t>::max() : feature.cut, out);
}

void Outputs::put_fixed(const Cells& cells, Jagged& out) {
  const auto gather = [&](const auto* from, auto* to, const auto& convert) {
    gather_rows(from, cells.rows, cells.width, cells.stride, to, convert);
  };
  out.values = take<std::int64_t>(cells.size());
  if (cells.index != nullptr) {
    put_entries(cells, out.values.data());
  } else {
    with_values(cells, [&]<class T>(const T* from) {
      if constexpr (std::is_integral_v<T>) gather(from, out.values.data(), [](T value) { return std::int64_t{value}; });
    });
  }
  if (cells.weights != nullptr) {
    out.weights = take<float>(cells.size());
    gather(cells.weights, out.weights.data(), [](double weight) { return static_cast<float>(weight); });
  }
  out.offsets = fixed_offsets(cells.width);
  out.single = cells.width == 1;
}

void Outputs::put_lists(const Cells& cells, Jagged& out) {
  const std::int64_t size = cells.size();
  out.values = take<std::int64_t>(size);
  if (cells.index != nullptr) {
    put_entries(cells, out.values.data());
  } else {
    std::copy_n(cells.ints(), size, out.values.data());
  }
  out.offsets = take<std::int64_t>(cells.rows + 1);
  std::copy_n(cells.offsets, cells.rows + 1, out.offsets.data());
  if (cells.weights == nullptr) return;
  out.weights = take<float>(size);
  for (std::int64_t i = 0; i < size; ++i)
    out.weights[static_cast<std::size_t>(i)] = static_cast<float>(cells.weights[i]);
}

// The first `cut` values of each row that are not null. Nothing points at `cells`: what is stored cannot change them.
void Outputs::put_some(const Cells cells, const std::int64_t cut, Jagged& out) {
  const std::int64_t size = cells.size(), rows = cells.rows;
  const std::int64_t* ints = cells.ints();
  const std::uint8_t* null = cells.null == nullptr ? scratch_.take_filled<std::uint8_t>(size, 0) : cells.null;
  std::int64_t* values = batch_.memory().take<std::int64_t>(size);
  float* weights = cells.weights == nullptr ? nullptr : batch_.memory().take<float>(size);
  std::int64_t* offsets = batch_.memory().take<std::int64_t>(rows + 1);
  std::int64_t count = 0;
  offsets[0] = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t end = cells.end(row), most = count + std::min(cut, size);
    for (std::int64_t i = cells.begin(row); i < end && count < most; ++i) {
      values[count] = ints[i];
      if (weights != nullptr) weights[count] = static_cast<float>(cells.weights[i]);
      count += null[i] == 0;
    }
    offsets[row + 1] = count;
  }
  out.values = {values, static_cast<std::size_t>(count)};
  out.offsets = {offsets, static_cast<std::size_t>(rows) + 1};
  if (weights != nullptr) out.weights = {weights, static_cast<std::size_t>(count)};
}

std::span<std::int64_t> Outputs::fixed_offsets(std::int64_t width) {
  for (std::size_t i = 0; i < known_count_; ++i) {
    if (known_[i].width == width) return known_[i].offsets;
  }
  const std::int64_t rows = batch_.rows;
  const std::span<std::int64_t> offsets = take<std::int64_t>(rows + 1);
  std::int64_t* to = offsets.data();
  for (std::int64_t row = 0; row <= rows; ++row) to[row] = row * width;
  if (known_count_ < known_.size()) known_[known_count_++] = {width, offsets};
  return offsets;
}

void Outputs::put_dense(const Feature& feature, Cells cells, const std::string& input) {
  const std::int64_t size = cells.size(), group_width = batch_.dense[feature.slot].width;
  cells.spread(scratch_);
  if (cells.type() == Type::kBytes || size != cells.rows * feature.width) {
    throw std::logic_error("feature '" + feature.name + "' does not give its width");
  }
  const auto put = [&](const auto* values) {
    if (!all_fit(values, size)) refuse_first(values, feature, input);
    float* to = batch_.dense[feature.slot].values.data() + feature.column;
    if (cells.rows == batch_.rows) return put_columns(values, cells.rows, feature.width, to, group_width);
    for (std::int64_t row = 0; row < batch_.rows; ++row) {
      put_columns(values, 1, feature.width, to + row * group_width, group_width);
    }
  };
  // float32 values are written as they came.
  if (cells.wire == Wire::kFp32 && cells.null == nullptr && cells.is_dense()) {
    return put(static_cast<const float*>(cells.values));
  }
  cells.pack_floats(scratch_);
  put(without_nulls(cells, scratch_));
}

}  // namespace emberline::features
