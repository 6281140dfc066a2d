#include "features/input.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace emberline::features {

namespace {

template <class T, class Out>
void append_span(std::vector<Out>& out, const void* values, std::int64_t begin, std::int64_t end) {
  const T* typed = static_cast<const T*>(values);
  out.insert(out.end(), typed + begin, typed + end);
}

// A double as a float32 holds it. The cast of a double beyond float's range is undefined, so it is made infinite first.
double to_single(double value) {
  if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max())) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return static_cast<double>(static_cast<float>(value));
}

// Puts the values [begin, end) of a column behind what `cells` holds; their type is that of the dtype `declared`. A
// float input takes integers. An FP32 input holds float32 values whatever they came as: a double column of training
// data and a float32 tensor of a request give the same features.
void append(Cells& cells, Wire declared, const ColumnView& column, std::int64_t begin, std::int64_t end) {
  if (cells.type == Type::kBytes) {
    for (std::int64_t i = begin; i < end; ++i) {
      cells.bytes.emplace_back(column.data + column.starts[i],
                               static_cast<std::size_t>(column.ends[i] - column.starts[i]));
    }
    return;
  }
  const auto into = [&](auto& out) {
    switch (column.wire) {
      case Wire::kInt64: append_span<std::int64_t>(out, column.values, begin, end); break;
      case Wire::kInt32: append_span<std::int32_t>(out, column.values, begin, end); break;
      case Wire::kUint64: append_span<std::uint64_t>(out, column.values, begin, end); break;
      case Wire::kFp32: append_span<float>(out, column.values, begin, end); break;
      case Wire::kFp64: append_span<double>(out, column.values, begin, end); break;
      case Wire::kBool:  // any byte but zero is true: the wire does not promise ones
        for (std::int64_t i = begin; i < end; ++i)
          out.push_back(static_cast<const std::uint8_t*>(column.values)[i] != 0);
        break;
      case Wire::kBytes: break;
    }
  };
  if (cells.type == Type::kInt) {
    into(cells.ints);
  } else {
    const std::size_t before = cells.floats.size();
    into(cells.floats);
    if (declared == Wire::kFp32 && column.wire != Wire::kFp32) {
      for (std::size_t i = before; i < cells.floats.size(); ++i) cells.floats[i] = to_single(cells.floats[i]);
    }
  }
}

void reserve(Cells& cells, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  switch (cells.type) {
    case Type::kBytes: cells.bytes.reserve(n); break;
    case Type::kInt: cells.ints.reserve(n); break;
    case Type::kFloat: cells.floats.reserve(n); break;
  }
}

}  // namespace

void Input::refuse(const std::string& problem) const { throw InvalidInput(name, "input '" + name + "'" + problem); }

void Input::check(const ColumnView& column, std::int64_t batch) const {
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  const bool listed = column.offsets != nullptr;
  if (!accepts(wire, column.wire)) {
    refuse(std::string(": expected ") + wire_name(wire) + ", got " + wire_name(column.wire));
  }
  if (listed != is_list) {
    refuse(is_list ? ": expected a list, got a column of fixed width" : ": expected a fixed width, got a list");
  }
  if (column.rows < 0) refuse(": negative number of rows");
  if (column.rows != batch) {
    if (column.rows != 1) refuse(": has " + text(column.rows) + " rows, the batch has " + text(batch));
    if (!user_side) {
      refuse(": has 1 row, the batch has " + text(batch) + "; only inputs of side 'user' are broadcast over the batch");
    }
  }
  if (!is_list) {
    if (column.width != width) refuse(": expected width " + text(width) + ", got " + text(column.width));
    // rows is the batch or 1, and both it and width are small enough that their product cannot overflow
    if (column.count != column.rows * width) {
      refuse(": " + text(column.count) + " values do not fill " + text(column.rows) + " rows of width " + text(width));
    }
  } else {
    if (column.offsets_count != column.rows + 1) {
      refuse(": " + text(column.offsets_count) + " offsets, expected " + text(column.rows + 1));
    }
    if (column.offsets[0] != 0) refuse(": the offsets start at " + text(column.offsets[0]) + ", expected 0");
    for (std::int64_t row = 0; row < column.rows; ++row) {
      const std::int64_t begin = column.offsets[row], end = column.offsets[row + 1];
      if (end < begin) refuse(", row " + text(row) + ": negative length");
      if (end > column.count) {
        refuse(", row " + text(row) + ": the lengths add up to more than the " + text(column.count) + " values given");
      }
      if (end - begin > max_length) {
        refuse(", row " + text(row) + ": has " + text(end - begin) + " values, max_length is " + text(max_length) +
               "; send fewer, or raise max_length and cut with the truncate transform");
      }
    }
    if (column.offsets[column.rows] != column.count) {
      refuse(": the lengths add up to " + text(column.offsets[column.rows]) + ", but " + text(column.count) +
             " values were given");
    }
  }
  if (column.valid != nullptr && column.valid_count != (is_list ? column.rows : column.count)) {
    refuse(": " + text(column.valid_count) + " valid flags, expected " + text(is_list ? column.rows : column.count));
  }
  if (column.wire == Wire::kBytes) {
    for (std::int64_t i = 0; i < column.count; ++i) {
      if (column.starts[i] < 0 || column.ends[i] < column.starts[i] || column.ends[i] > column.data_size) {
        refuse(", value " + text(i) + ": its bytes do not lie in the buffer of " + text(column.data_size));
      }
    }
  }
}

Cells Input::load(const ColumnView* column) const { return load(column, missing_is_null || fallback.has_value()); }

Cells Input::load_weights(const ColumnView* column) const { return load(column, true); }

Cells Input::load(const ColumnView* column, bool nan_is_null) const {
  if (column == nullptr) return all_null();
  return is_list ? load_list(*column, nan_is_null) : load_fixed(*column, nan_is_null);
}

void Input::refuse_nan(std::int64_t row) const {
  refuse(", row " + std::to_string(row) + (is_list ? ": NaN (or null) in its list" : ": NaN") +
         "; send a number, or give the input `default` or `missing: null` in its spec, so that NaN counts as null");
}

Cells Input::load_fixed(const ColumnView& column, bool nan_is_null) const {
  Cells cells;
  cells.type = type_of(wire);
  cells.offsets.resize(static_cast<std::size_t>(column.rows) + 1);
  for (std::int64_t row = 0; row <= column.rows; ++row) cells.offsets[static_cast<std::size_t>(row)] = row * width;
  reserve(cells, column.count);
  append(cells, wire, column, 0, column.count);
  if (column.valid != nullptr) {
    for (std::int64_t i = 0; i < column.count; ++i) {
      if (column.valid[i] == 0) cells.make_null(i);
    }
  }
  if (cells.type == Type::kFloat) {
    for (std::int64_t i = 0; i < column.count; ++i) {
      if (!std::isnan(cells.floats[static_cast<std::size_t>(i)])) continue;
      if (!nan_is_null && !cells.is_null(i)) refuse_nan(i / width);
      cells.make_null(i);
    }
  }
  if (empty_is_null) {
    for (std::int64_t i = 0; i < column.count; ++i) {
      if (cells.bytes[static_cast<std::size_t>(i)].empty()) cells.make_null(i);
    }
  }
  if (fallback && !cells.null.empty()) {
    for (std::size_t i = 0; i < cells.null.size(); ++i) {
      if (cells.null[i] == 0) continue;
      switch (cells.type) {
        case Type::kBytes: cells.bytes[i] = std::get<2>(*fallback)[0]; break;
        case Type::kInt: cells.ints[i] = std::get<0>(*fallback)[0]; break;
        case Type::kFloat: cells.floats[i] = std::get<1>(*fallback)[0]; break;
      }
    }
    cells.null.clear();
  }
  return cells;
}

Cells Input::load_list(const ColumnView& column, bool nan_is_null) const {
  Cells cells;
  cells.type = type_of(wire);
  cells.offsets.reserve(static_cast<std::size_t>(column.rows) + 1);
  reserve(cells, column.count);
  std::int64_t total = 0;
  const auto fallback_size =
      static_cast<std::int64_t>(fallback ? std::visit([](const auto& values) { return values.size(); }, *fallback) : 0);
  if (column.valid == nullptr && !empty_is_null) {
    append(cells, wire, column, 0, column.count);
    cells.offsets.assign(column.offsets, column.offsets + column.rows + 1);
  } else {
    for (std::int64_t row = 0; row < column.rows; ++row) {
      const std::int64_t begin = column.offsets[row], end = column.offsets[row + 1];
      const bool null = (column.valid != nullptr && column.valid[row] == 0) || (empty_is_null && begin == end);
      if (null) {
        append_fallback(cells);
        total += fallback_size;
      } else {
        append(cells, wire, column, begin, end);
        total += end - begin;
      }
      cells.offsets.push_back(total);
    }
  }
  if (cells.type == Type::kFloat) {
    for (std::size_t i = 0; i < cells.floats.size(); ++i) {
      if (!std::isnan(cells.floats[i])) continue;
      const auto place = static_cast<std::int64_t>(i);
      if (!nan_is_null) {
        refuse_nan(std::upper_bound(cells.offsets.begin(), cells.offsets.end(), place) - cells.offsets.begin() - 1);
      }
      cells.make_null(place);
    }
  }
  return cells;
}

// A missing input is one null row that is broadcast: every row is the same.
Cells Input::all_null() const {
  Cells cells;
  cells.type = type_of(wire);
  if (is_list) {
    append_fallback(cells);
    const auto size = std::max({cells.bytes.size(), cells.ints.size(), cells.floats.size()});
    cells.offsets.push_back(static_cast<std::int64_t>(size));
    return cells;
  }
  cells.offsets.push_back(width);
  const auto count = static_cast<std::size_t>(width);
  switch (cells.type) {
    case Type::kBytes: cells.bytes.assign(count, fallback ? std::string_view(std::get<2>(*fallback)[0]) : ""); break;
    case Type::kInt: cells.ints.assign(count, fallback ? std::get<0>(*fallback)[0] : 0); break;
    case Type::kFloat: cells.floats.assign(count, fallback ? std::get<1>(*fallback)[0] : 0.0); break;
  }
  if (!fallback) cells.null.assign(count, 1);
  return cells;
}

void Input::append_fallback(Cells& cells) const {
  if (!fallback) return;
  switch (cells.type) {
    case Type::kBytes: {
      const auto& values = std::get<2>(*fallback);
      cells.bytes.insert(cells.bytes.end(), values.begin(), values.end());
      break;
    }
    case Type::kInt: {
      const auto& values = std::get<0>(*fallback);
      cells.ints.insert(cells.ints.end(), values.begin(), values.end());
      break;
    }
    case Type::kFloat: {
      const auto& values = std::get<1>(*fallback);
      cells.floats.insert(cells.floats.end(), values.begin(), values.end());
      break;
    }
  }
}

}  // namespace emberline::features
