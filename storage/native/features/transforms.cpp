#include "features/transforms.h"

#include <algorithm>
#include <cmath>

namespace emberline::features {

namespace {

void become_ints(Cells& cells) {
  cells.bytes.clear();
  cells.floats.clear();
  cells.type = Type::kInt;
}

// Calls with the vector that is in use.
template <class Call>
void with_values(Cells& cells, Call&& call) {
  switch (cells.type) {
    case Type::kBytes: call(cells.bytes); break;
    case Type::kInt: call(cells.ints); break;
    case Type::kFloat: call(cells.floats); break;
  }
}

// Keeps the values [begin, end) of each row, as `range(row begin, row end)` says; moves them down in place.
template <class Range>
void keep_ranges(Cells& cells, Range&& range) {
  const std::int64_t rows = cells.rows();
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(rows) + 1, 0);
  const bool nulls = !cells.null.empty();
  with_values(cells, [&](auto& values) {
    std::size_t out = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto r = static_cast<std::size_t>(row);
      const auto [begin, end] = range(cells.offsets[r], cells.offsets[r + 1]);
      for (std::int64_t place = begin; place < end; ++place, ++out) {
        values[out] = values[static_cast<std::size_t>(place)];
        if (nulls) cells.null[out] = cells.null[static_cast<std::size_t>(place)];
        if (cells.weighted) cells.weights[out] = cells.weights[static_cast<std::size_t>(place)];
      }
      offsets[r + 1] = static_cast<std::int64_t>(out);
    }
    values.resize(out);
    if (nulls) cells.null.resize(out);
    if (cells.weighted) cells.weights.resize(out);
  });
  cells.offsets = std::move(offsets);
}

}  // namespace

void Hash::apply(Cells& cells) const {
  if (cells.type == Type::kInt) {
    for (std::int64_t& value : cells.ints) value = to_id(hash_int(value, key), buckets);
    return;
  }
  cells.ints.resize(cells.bytes.size());
  std::transform(cells.bytes.begin(), cells.bytes.end(), cells.ints.begin(),
                 [&](std::string_view bytes) { return to_id(hash_bytes(bytes, key), buckets); });
  become_ints(cells);
}

Vocabulary::Vocabulary(const std::vector<std::string>& values, bool keep_unknown, std::int64_t unknown)
    : keep_unknown_(keep_unknown), unknown_(unknown) {
  bytes_.reserve(values.size());
  for (const std::string& value : values) bytes_.emplace(value, static_cast<std::int64_t>(bytes_.size()));
}

Vocabulary::Vocabulary(const std::vector<std::int64_t>& values, bool keep_unknown, std::int64_t unknown)
    : keep_unknown_(keep_unknown), unknown_(unknown) {
  ints_.reserve(values.size());
  for (const std::int64_t value : values) ints_.emplace(value, static_cast<std::int64_t>(ints_.size()));
}

void Vocabulary::apply(Cells& cells) const {
  const auto place_of = [&](const auto& known, const auto& value, std::size_t place) {
    const auto found = known.find(value);
    if (found != known.end()) return found->second;
    if (keep_unknown_) return unknown_;
    cells.make_null(static_cast<std::int64_t>(place));
    return std::int64_t{0};
  };
  if (cells.type == Type::kInt) {
    for (std::size_t i = 0; i < cells.ints.size(); ++i) cells.ints[i] = place_of(ints_, cells.ints[i], i);
    return;
  }
  cells.ints.resize(cells.bytes.size());
  for (std::size_t i = 0; i < cells.bytes.size(); ++i) cells.ints[i] = place_of(bytes_, cells.bytes[i], i);
  become_ints(cells);
}

void Bucketise::apply(Cells& cells) const {
  cells.to_floats();
  cells.ints.resize(cells.floats.size());
  for (std::size_t i = 0; i < cells.floats.size(); ++i) {
    const double value = cells.floats[i];
    if (std::isnan(value)) cells.make_null(static_cast<std::int64_t>(i));
    cells.ints[i] = std::upper_bound(boundaries.begin(), boundaries.end(), value) - boundaries.begin();
  }
  become_ints(cells);
}

void Log::apply(Cells& cells) const {
  cells.to_floats();
  // std::max(x, 0) would not do: a null place may hold NaN, and its value does not matter.
  for (double& value : cells.floats) value = std::log1p(value > 0.0 ? value : 0.0);
}

void Clip::apply(Cells& cells) const {
  cells.to_floats();
  for (double& value : cells.floats) value = value < min ? min : (value > max ? max : value);
}

void Affine::apply(Cells& cells) const {
  cells.to_floats();
  for (double& value : cells.floats) value = value * scale + shift;
}

void Slice::apply(Cells& cells) const {
  keep_ranges(cells, [&](std::int64_t begin, std::int64_t) { return std::pair(begin + start, begin + stop); });
}

void Truncate::apply(Cells& cells) const {
  keep_ranges(cells, [&](std::int64_t begin, std::int64_t end) {
    if (end - begin <= length) return std::pair(begin, end);
    return keep_last ? std::pair(end - length, end) : std::pair(begin, begin + length);
  });
}

void Pad::apply(Cells& cells) const {
  const std::int64_t rows = cells.rows();
  const auto spread = [&](auto& values, const auto& filler) {
    std::decay_t<decltype(values)> out;
    std::vector<std::uint8_t> null;
    std::vector<std::int64_t> offsets;
    out.reserve(static_cast<std::size_t>(std::max(cells.size(), rows * length)));
    offsets.reserve(cells.offsets.size());
    offsets.push_back(0);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t begin = cells.offsets[static_cast<std::size_t>(row)];
      const std::int64_t end = cells.offsets[static_cast<std::size_t>(row) + 1];
      out.insert(out.end(), values.begin() + begin, values.begin() + end);
      if (!cells.null.empty()) null.insert(null.end(), cells.null.begin() + begin, cells.null.begin() + end);
      for (std::int64_t short_by = length - (end - begin); short_by > 0; --short_by) out.emplace_back(filler);
      if (!cells.null.empty()) null.resize(out.size(), 0);
      offsets.push_back(static_cast<std::int64_t>(out.size()));
    }
    values = std::move(out);
    cells.null = std::move(null);
    cells.offsets = std::move(offsets);
  };
  switch (cells.type) {
    case Type::kBytes: spread(cells.bytes, std::get<std::string>(value)); break;
    case Type::kInt: spread(cells.ints, std::get<std::int64_t>(value)); break;
    case Type::kFloat: spread(cells.floats, std::get<double>(value)); break;
  }
}

// The product of the lengths; max + 1 stands for anything above max, so that nothing overflows.
template <class Range>
std::int64_t Cross::combinations(std::size_t inputs, Range&& range) const {
  std::int64_t product = 1;
  bool above = false;
  for (std::size_t k = 0; k < inputs; ++k) {
    const auto [begin, end] = range(k);
    if (begin == end) return 0;
    if (above) continue;
    const auto length = static_cast<std::int64_t>(end - begin);
    above = length > max / product;
    product *= above ? 1 : length;
  }
  return above ? max + 1 : product;
}

void Cross::refuse(const std::vector<std::string>& names, std::int64_t row) const {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "'" : " x '") + name + "'";
  throw InvalidInput(names[0], "input '" + names[0] + "', row " + std::to_string(row) + ": the cross of " + all +
                                   " has more than " + std::to_string(max) +
                                   " combinations, its `max`; send shorter lists or raise `max`");
}

Cells Cross::apply(const std::vector<Cells>& inputs, const std::vector<std::string>& names) const {
  std::int64_t rows = 1;
  for (const Cells& cells : inputs) rows = cells.rows() == 1 ? rows : cells.rows();
  // The hash of each value, nulls left out: an input's values are hashed once, not once a combination.
  std::vector<std::vector<std::uint64_t>> hashes(inputs.size());
  std::vector<std::vector<std::size_t>> offsets(inputs.size());
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Cells& cells = inputs[k];
    offsets[k].push_back(0);
    for (std::int64_t row = 0; row < cells.rows(); ++row) {
      for (std::int64_t i = cells.offsets[static_cast<std::size_t>(row)];
           i < cells.offsets[static_cast<std::size_t>(row) + 1]; ++i) {
        if (cells.is_null(i)) continue;
        const auto place = static_cast<std::size_t>(i);
        hashes[k].push_back(cells.type == Type::kInt ? hash_int(cells.ints[place], key)
                                                     : hash_bytes(cells.bytes[place], key));
      }
      offsets[k].push_back(hashes[k].size());
    }
  }
  Cells out;
  out.type = Type::kInt;
  out.offsets.reserve(static_cast<std::size_t>(rows) + 1);
  std::vector<std::uint64_t> states, next;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto range = [&](std::size_t k) {
      const auto r = inputs[k].rows() == 1 ? 0 : static_cast<std::size_t>(row);
      return std::pair(offsets[k][r], offsets[k][r + 1]);
    };
    if (combinations(inputs.size(), range) > max) refuse(names, row);
    states.assign(1, key);
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const auto [begin, end] = range(k);
      next.clear();
      for (const std::uint64_t state : states) {
        for (std::size_t i = begin; i < end; ++i) next.push_back(absorb(state, hashes[k][i]));
      }
      states.swap(next);
      if (states.empty()) break;
    }
    for (const std::uint64_t state : states) out.ints.push_back(to_id(mix(state + key), buckets));
    out.offsets.push_back(static_cast<std::int64_t>(out.ints.size()));
  }
  return out;
}

}  // namespace emberline::features
