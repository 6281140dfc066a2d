// Input::load: what missing, null and empty mean.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "features/input.h"
#include "features/loops.h"

namespace emberline::features {

namespace {

// A double as a float32 holds it. The cast of a double beyond float's range is undefined, so it is made infinite first.
float to_single(double value) {
  if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max())) {
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value < 0.0 ? -1.0 : 1.0));
  }
  return static_cast<float>(value);
}

// Returns the values of a column, each converted to a To.
template <class From, class To, class Convert>
const To* converted(const WholeColumn& column, Arena& arena, Convert&& convert) {
  const From* from = static_cast<const From*>(column.values);
  To* to = arena.take<To>(column.count);
  for (std::int64_t i = 0; i < column.count; ++i) to[i] = convert(from[i]);
  return to;
}

// A float input takes integers. An FP32 input holds float32 values whatever they came as: a double column of training
// data and a float32 tensor of a request give the same features.
template <class To, class Convert>
const To* as_floats(const WholeColumn& column, Arena& arena, Convert&& round) {
  switch (column.wire) {
    case Wire::kInt32: return converted<std::int32_t, To>(column, arena, [&](std::int32_t v) { return round(v); });
    case Wire::kInt64:
      return converted<std::int64_t, To>(column, arena, [&](std::int64_t v) { return round(static_cast<double>(v)); });
    case Wire::kUint64:
      return converted<std::uint64_t, To>(column, arena,
                                          [&](std::uint64_t v) { return round(static_cast<double>(v)); });
    default: return converted<double, To>(column, arena, round);
  }
}

bool has_nan(const float* values, std::int64_t size) { return loops().singles_have_nan(values, size); }
bool has_nan(const double* values, std::int64_t size) { return loops().doubles_have_nan(values, size); }

bool has_zero(const std::uint8_t* flags, std::int64_t size) {
  return size > 0 && std::memchr(flags, 0, static_cast<std::size_t>(size)) != nullptr;
}

// Copies the rows of a list; a row that is null gets the `filler`.
template <class T>
const T* with_filler(const T* from, const Cells& cells, const std::int64_t* offsets, const std::uint8_t* null,
                     const Cells& filler, Arena& arena) {
  T* to = arena.take<T>(offsets[cells.rows]);
  const T* other = static_cast<const T*>(filler.values);
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    if (null[row] != 0) {
      std::copy_n(other, filler.size(), to + offsets[row]);
    } else {
      std::copy(from + cells.offsets[row], from + cells.offsets[row + 1], to + offsets[row]);
    }
  }
  return to;
}

template <class T>
const T* with_value(const T* from, const Cells& cells, const T& value, Arena& arena) {
  T* to = arena.take<T>(cells.count());
  for (std::int64_t i = 0; i < cells.count(); ++i) to[i] = cells.null[i] != 0 ? value : from[i];
  return to;
}

}  // namespace

Cells Input::load(const WholeColumn* column, Arena& arena) const {
  return load(column, missing_is_null || fallback.has_value(), arena);
}

Cells Input::load_weights(const WholeColumn* column, Arena& arena) const { return load(column, true, arena); }

Cells Input::load(const WholeColumn* column, bool nan_is_null, Arena& arena) const {
  if (column == nullptr) return all_null(arena);
  Cells cells = borrow(*column, arena);
  if (is_list) {
    replace_null_rows(*column, cells, arena);
    mark_nan(nan_is_null, cells, arena);
  } else {
    mark_nulls(*column, nan_is_null, cells, arena);
    if (fallback && cells.null != nullptr) replace_nulls(cells, arena);
  }
  return cells;
}

void Input::refuse_nan(std::int64_t row) const {
  refuse(", row " + std::to_string(row) + (is_list ? ": NaN (or null) in its list" : ": NaN") +
         "; send a number, or give the input `default` or `missing: null` in its spec, so that NaN counts as null");
}

// The column as cells of the input's type, in its own memory where that is possible.
Cells Input::borrow(const WholeColumn& column, Arena& arena) const {
  Cells cells;
  cells.rows = column.rows;
  cells.width = cells.stride = width;
  cells.offsets = column.offsets;
  cells.values = column.values;
  cells.index = column.index;
  cells.entries = column.entries;
  cells.wire = column.wire == Wire::kUint64 ? Wire::kInt64 : column.wire;
  if (column.wire == Wire::kBool) {  // any byte but zero is true: the wire does not promise ones
    cells.set(
        converted<std::uint8_t, std::int64_t>(column, arena, [](std::uint8_t v) { return std::int64_t{v != 0}; }));
  } else if (wire == Wire::kFp32 && column.wire != Wire::kFp32) {
    cells.values = as_floats<float>(column, arena, to_single);
    cells.wire = Wire::kFp32;
  } else if (wire == Wire::kFp64 && type_of(column.wire) == Type::kInt) {
    cells.set(as_floats<double>(column, arena, [](double value) { return value; }));
  }
  return cells;
}

void Input::mark_nulls(const WholeColumn& column, bool nan_is_null, Cells& cells, Arena& arena) const {
  const std::int64_t size = cells.count();
  if (column.valid != nullptr && has_zero(column.valid, size)) {
    std::uint8_t* null = cells.own_nulls(arena);
    for (std::int64_t i = 0; i < size; ++i) null[i] = std::uint8_t{column.valid[i] == 0};
  }
  mark_nan(nan_is_null, cells, arena);
  if (!empty_is_null) return;
  const auto is_empty = [](std::string_view value) { return value.empty(); };
  if (!std::any_of(cells.bytes(), cells.bytes() + size, is_empty)) return;
  std::uint8_t* null = cells.own_nulls(arena);
  for (std::int64_t i = 0; i < size; ++i) null[i] |= std::uint8_t{is_empty(cells.bytes()[i])};
}

void Input::mark_nan(bool nan_is_null, Cells& cells, Arena& arena) const {
  if (cells.type() != Type::kFloat) return;
  const std::int64_t size = cells.size();
  with_values(cells, [&]<class T>(const T* values) {
    if constexpr (std::is_floating_point_v<T>) {
      if (!has_nan(values, size)) return;
      std::uint8_t* null = cells.own_nulls(arena);
      for (std::int64_t i = 0; i < size; ++i) {
        if (!std::isnan(values[i])) continue;
        if (!nan_is_null && null[i] == 0) {
          refuse_nan(cells.is_fixed()
                         ? i / width
                         : std::upper_bound(cells.offsets, cells.offsets + cells.rows + 1, i) - cells.offsets - 1);
        }
        null[i] = 1;
      }
    }
  });
}

void Input::replace_nulls(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  const Cells filler = fallback_row(arena);
  with_values(cells, [&]<class T>(const T* values) {
    cells.values = with_value(values, cells, *static_cast<const T*>(filler.values), arena);
  });
  cells.null = nullptr;
}

void Input::replace_null_rows(const WholeColumn& column, Cells& cells, Arena& arena) const {
  const bool has_nulls = column.valid != nullptr && has_zero(column.valid, cells.rows);
  if (!has_nulls && !empty_is_null) return;
  std::uint8_t* null = arena.take<std::uint8_t>(cells.rows);
  std::int64_t* offsets = arena.take<std::int64_t>(cells.rows + 1);
  const Cells filler = fallback_row(arena);
  offsets[0] = 0;
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    const std::int64_t length = cells.offsets[row + 1] - cells.offsets[row];
    null[row] = std::uint8_t{(has_nulls && column.valid[row] == 0) || (empty_is_null && length == 0)};
    offsets[row + 1] = offsets[row] + (null[row] != 0 ? filler.size() : length);
  }
  if (filler.size() == 0 && offsets[cells.rows] == cells.offsets[cells.rows]) return;  // nulls have no values already
  cells.spread(arena);
  cells.pack(arena);
  with_values(cells,
              [&](const auto* values) { cells.values = with_filler(values, cells, offsets, null, filler, arena); });
  cells.offsets = offsets;
}

// The values that stand in for a null, packed: one row of them, empty without a default.
Cells Input::fallback_row(Arena& arena) const {
  Cells row;
  row.rows = 1;
  row.width = 0;
  row.wire = type_of(wire) == Type::kInt ? Wire::kInt64 : type_of(wire) == Type::kFloat ? Wire::kFp64 : Wire::kBytes;
  if (fallback) {
    std::visit(
        [&]<class T>(const std::vector<T>& given) {
          row.width = static_cast<std::int64_t>(given.size());
          if constexpr (std::is_same_v<T, std::string>) {
            std::string_view* views = arena.take<std::string_view>(row.width);
            std::copy(given.begin(), given.end(), views);
            row.set(views);
          } else {
            row.set(given.data());
          }
        },
        *fallback);
  }
  row.stride = row.width;
  return row;
}

// A missing input is one null row that is broadcast: every row is the same.
Cells Input::all_null(Arena& arena) const {
  Cells row = fallback_row(arena);
  if (is_list) {
    std::int64_t* offsets = arena.take<std::int64_t>(2);
    offsets[0] = 0, offsets[1] = row.width;
    row.offsets = offsets;
    return row;
  }
  const auto fill = [&]<class T>(const T* given) { row.values = arena.take_filled<T>(width, fallback ? *given : T{}); };
  if (type_of(wire) == Type::kInt) {
    fill(row.ints());
  } else if (type_of(wire) == Type::kFloat) {
    fill(row.floats());
  } else {
    fill(row.bytes());
  }
  row.width = row.stride = width;
  if (!fallback) row.null = arena.take_filled<std::uint8_t>(width, 1);
  return row;
}

}  // namespace emberline::features
