#include "features/transforms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "features/hash.h"
#include "features/loops.h"

namespace emberline::features {

namespace {

// Copies the values that each row keeps. offsets: of the rows kept; firsts: where each begins among all.
template <class T>
const T* kept(const T* from, std::int64_t rows, const std::int64_t* offsets, const std::int64_t* firsts, Arena& arena) {
  T* __restrict to = arena.take<T>(offsets[rows]);
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* begin = from + firsts[row];
    for (std::int64_t place = offsets[row]; place < offsets[row + 1]; ++place) to[place] = *begin++;
  }
  return to;
}

// Keeps of each row of a list the values that `range(row begin, row end)` says.
template <class Range>
void keep_ranges(Cells& cells, Arena& arena, Range&& range) {
  cells.pack(arena);
  const std::int64_t rows = cells.rows;
  std::int64_t* offsets = arena.take<std::int64_t>(rows + 1);
  std::int64_t* firsts = arena.take<std::int64_t>(rows);
  offsets[0] = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto [begin, end] = range(cells.offsets[row], cells.offsets[row + 1]);
    firsts[row] = begin;
    offsets[row + 1] = offsets[row] + (end - begin);
  }
  if (cells.index != nullptr) {
    cells.index = kept(cells.index, rows, offsets, firsts, arena);
  } else {
    with_values(cells, [&](const auto* values) { cells.values = kept(values, rows, offsets, firsts, arena); });
    if (cells.null != nullptr) cells.null = kept(cells.null, rows, offsets, firsts, arena);
  }
  if (cells.weights != nullptr) cells.weights = kept(cells.weights, rows, offsets, firsts, arena);
  cells.offsets = offsets;
}

// Copies rows, and puts `filler` behind each one that is shorter than its new length.
template <class T>
const T* padded(const T* from, const Cells& cells, const std::int64_t* offsets, const T& filler, Arena& arena) {
  T* __restrict to = arena.take<T>(offsets[cells.rows]);
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    T* end = std::copy(from + cells.begin(row), from + cells.end(row), to + offsets[row]);
    std::fill(end, to + offsets[row + 1], filler);
  }
  return to;
}

template <class T>
const T* filled(const T* from, const Cells& cells, const T& filler, Arena& arena) {
  const std::int64_t size = cells.count();
  T* __restrict to = arena.take<T>(size);
  for (std::int64_t i = 0; i < size; ++i) to[i] = cells.null[i] != 0 ? filler : from[i];
  return to;
}

const double* small_logs() {
  static const std::vector<double> known = [] {
    std::vector<double> made;
    for (int value = 0; value < kSmallLogs; ++value) made.push_back(std::log1p(static_cast<double>(value)));
    return made;
  }();
  return known.data();
}

std::int64_t floor_divided(std::int64_t value, std::int64_t by) { return value / by - (value % by < 0); }

std::int64_t left_over(std::int64_t value, std::int64_t by) {
  const std::int64_t left = value % by;
  return left < 0 ? left + by : left;
}

// Calls with each piece of the text that is not empty.
template <class Call>
void for_pieces(std::string_view text, std::string_view delimiter, Call&& call) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(delimiter), text.size());
    if (end > 0) call(text.substr(0, end));
    text.remove_prefix(std::min(end + delimiter.size(), text.size()));
  }
}

}  // namespace

void Hash::apply(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  const std::int64_t size = cells.count();
  std::int64_t* ids = arena.take<std::int64_t>(size);
  if (cells.type() == Type::kInt) {
    loops().hash(cells.ints(), size, key, buckets, ids);
  } else {
    for (std::int64_t i = 0; i < size; ++i) ids[i] = to_id(hash_bytes(cells.bytes()[i], key), buckets);
  }
  cells.set(ids);
}

void FloorDivide::apply(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  const std::int64_t* from = cells.ints();
  std::int64_t* to = arena.take<std::int64_t>(cells.count());
  for (std::int64_t i = 0; i < cells.count(); ++i) to[i] = floor_divided(from[i], divisor);
  cells.set(to);
}

void Modulo::apply(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  const std::int64_t* from = cells.ints();
  std::int64_t* to = arena.take<std::int64_t>(cells.count());
  for (std::int64_t i = 0; i < cells.count(); ++i) to[i] = left_over(from[i], divisor);
  cells.set(to);
}

void Add::apply(Cells& cells, Arena& arena) const {
  if (amounts.size() > 1) cells.spread(arena);
  cells.pack(arena);
  const std::int64_t* from = cells.ints();
  const std::int64_t size = cells.count();
  std::int64_t* to = arena.take<std::int64_t>(size);
  const auto sum = [](std::int64_t value, std::int64_t amount) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + static_cast<std::uint64_t>(amount));
  };
  if (amounts.size() == 1) {
    const std::int64_t amount = amounts[0];
    for (std::int64_t i = 0; i < size; ++i) to[i] = sum(from[i], amount);
  } else {
    const auto width = static_cast<std::int64_t>(amounts.size());
    for (std::int64_t begin = 0; begin < size; begin += width) {
      for (std::int64_t k = 0; k < width; ++k) {
        to[begin + k] = sum(from[begin + k], amounts[static_cast<std::size_t>(k)]);
      }
    }
  }
  cells.set(to);
}

void Multiply::apply(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  const std::int64_t* from = cells.ints();
  std::int64_t* to = arena.take<std::int64_t>(cells.count());
  for (std::int64_t i = 0; i < cells.count(); ++i) {
    to[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(from[i]) * static_cast<std::uint64_t>(factor));
  }
  cells.set(to);
}

void Replace::apply(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  const std::int64_t* from = cells.ints();
  std::int64_t* to = arena.take<std::int64_t>(cells.count());
  for (std::int64_t i = 0; i < cells.count(); ++i) {
    const bool is_inside = from[i] >= low && from[i] <= high;
    to[i] = is_inside != outside ? by : from[i];
  }
  cells.set(to);
}

void Integer::apply(Cells& cells, Arena& arena) const {
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  cells.pack_floats(arena);
  const double* from = cells.floats();
  std::int64_t* to = arena.take<std::int64_t>(cells.count());
  for (std::int64_t i = 0; i < cells.count(); ++i) {
    const bool fits = from[i] >= -kEnd && from[i] < kEnd;  // false for NaN
    to[i] = fits ? static_cast<std::int64_t>(from[i]) : std::numeric_limits<std::int64_t>::min();
  }
  cells.set(to);
}

Bucketise::Bucketise(const std::vector<double>& boundaries)
    : count_(boundaries.size()), half_(std::bit_ceil(count_ + 1) / 2), boundaries_(boundaries) {
  boundaries_.resize(2 * half_, std::numeric_limits<double>::quiet_NaN());
}

void Bucketise::apply(Cells& cells, Arena& arena) const {
  cells.pack_floats(arena);
  const std::int64_t size = cells.count();
  const double* values = cells.floats();
  if (loops().doubles_have_nan(values, size)) {
    std::uint8_t* null = cells.own_nulls(arena);
    for (std::int64_t i = 0; i < size; ++i) null[i] |= std::uint8_t{std::isnan(values[i])};
  }
  std::int64_t* buckets = arena.take<std::int64_t>(size);
  loops().bucketise(values, size, boundaries_.data(), half_, count_, buckets);
  cells.set(buckets);
}

void Log::apply(Cells& cells, Arena& arena) const {
  cells.pack_floats(arena);
  const std::int64_t size = cells.count();
  const double* from = cells.floats();
  double* to = arena.take<double>(size);
  loops().log(from, size, small_logs(), to);
  cells.set(to);
}

void Clip::apply(Cells& cells, Arena& arena) const {
  cells.pack_floats(arena);
  double* to = arena.take<double>(cells.count());
  loops().clip(cells.floats(), cells.count(), min, max, to);
  cells.set(to);
}

void Affine::apply(Cells& cells, Arena& arena) const {
  cells.pack_floats(arena);
  double* to = arena.take<double>(cells.count());
  loops().affine(cells.floats(), cells.count(), scale, shift, to);
  cells.set(to);
}

void Standardise::apply(Cells& cells, Arena& arena) const {
  cells.pack_floats(arena);
  const double* from = cells.floats();
  double* __restrict to = arena.take<double>(cells.count());
  for (std::int64_t i = 0; i < cells.count(); ++i) to[i] = (from[i] - mean) / deviation;
  cells.set(to);
}

void PartOfWeek::apply(Cells& cells, Arena& arena) const {
  constexpr std::int64_t kWeek = 7 * 24 * 3600;
  cells.pack(arena);
  const std::int64_t* from = cells.ints();
  std::int64_t* to = arena.take<std::int64_t>(cells.count());
  // Reduced to a week before the shift is added, so that no time overflows.
  for (std::int64_t i = 0; i < cells.count(); ++i) {
    to[i] = (left_over(floor_divided(from[i], per_second), kWeek) + shift) % period / part;
  }
  cells.set(to);
}

void IsNull::apply(Cells& cells, Arena& arena) const {
  cells.pack(arena);
  const std::int64_t size = cells.count();
  std::int64_t* flags = arena.take_filled<std::int64_t>(size, 0);
  if (cells.null != nullptr) {
    for (std::int64_t i = 0; i < size; ++i) flags[i] = cells.null[i] != 0;
  }
  cells.set(flags);
  cells.null = nullptr;
}

void Fill::apply(Cells& cells, Arena& arena) const {
  if (cells.null == nullptr) return;
  cells.pack(arena);
  switch (cells.type()) {
    case Type::kBytes:
      cells.set(filled(cells.bytes(), cells, std::string_view(std::get<std::string>(value)), arena));
      break;
    case Type::kInt: cells.set(filled(cells.ints(), cells, std::get<std::int64_t>(value), arena)); break;
    case Type::kFloat: cells.set(filled(cells.floats(), cells, std::get<double>(value), arena)); break;
  }
  cells.null = nullptr;
}

void Split::apply(Cells& cells, Arena& arena) const {
  cells.spread(arena);
  cells.pack(arena);
  const auto for_row = [&](std::int64_t row, auto&& call) {
    for (std::int64_t i = cells.begin(row); i < cells.end(row); ++i) {
      if (cells.null == nullptr || cells.null[i] == 0) for_pieces(cells.bytes()[i], delimiter, call);
    }
  };
  std::int64_t* offsets = arena.take<std::int64_t>(cells.rows + 1);
  offsets[0] = 0;
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    std::int64_t count = 0;
    for_row(row, [&](std::string_view) { ++count; });
    if (count > most) {
      throw InvalidInput(input, "input '" + input + "', row " + std::to_string(row) + ": splits into " +
                                    std::to_string(count) + " pieces, more than " + std::to_string(most) +
                                    ", the `max` of split; send fewer or raise `max`");
    }
    offsets[row + 1] = offsets[row] + count;
  }
  auto* pieces = arena.take<std::string_view>(offsets[cells.rows]);
  std::int64_t place = 0;
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    for_row(row, [&](std::string_view piece) { pieces[place++] = piece; });
  }
  cells.set(pieces);
  cells.offsets = offsets;
  cells.null = nullptr;
}

void Slice::apply(Cells& cells, Arena& arena) const {
  if (cells.is_fixed()) {
    cells.spread(arena);
    return cells.keep_columns(start, stop);
  }
  keep_ranges(cells, arena, [this](std::int64_t begin, std::int64_t end) {
    if (end - begin < stop) throw std::logic_error("columns outside of a row");
    return std::pair(begin + start, begin + stop);
  });
}

void Truncate::apply(Cells& cells, Arena& arena) const {
  if (cells.is_fixed()) {
    cells.spread(arena);
    const std::int64_t width = std::min(cells.width, length), start = keep_last ? cells.width - width : 0;
    return cells.keep_columns(start, start + width);
  }
  bool is_longer = false;
  for (std::int64_t row = 0; row < cells.rows; ++row) is_longer |= cells.offsets[row + 1] - cells.offsets[row] > length;
  if (!is_longer) return;
  keep_ranges(cells, arena, [this](std::int64_t begin, std::int64_t end) {
    if (end - begin <= length) return std::pair(begin, end);
    return keep_last ? std::pair(end - length, end) : std::pair(begin, begin + length);
  });
}

void Pad::apply(Cells& cells, Arena& arena) const {
  if (cells.is_fixed() && cells.width >= length) return;
  cells.spread(arena);
  cells.pack(arena);
  std::int64_t* offsets = arena.take<std::int64_t>(cells.rows + 1);
  offsets[0] = 0;
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    offsets[row + 1] = offsets[row] + std::max(length, cells.end(row) - cells.begin(row));
  }
  switch (cells.type()) {
    case Type::kBytes:
      cells.set(padded(cells.bytes(), cells, offsets, std::string_view(std::get<std::string>(value)), arena));
      break;
    case Type::kInt: cells.set(padded(cells.ints(), cells, offsets, std::get<std::int64_t>(value), arena)); break;
    case Type::kFloat: cells.set(padded(cells.floats(), cells, offsets, std::get<double>(value), arena)); break;
  }
  if (cells.null != nullptr) cells.null = padded(cells.null, cells, offsets, std::uint8_t{0}, arena);
  if (cells.is_fixed()) {
    cells.width = cells.stride = length;
  } else {
    cells.offsets = offsets;
  }
}

}  // namespace emberline::features
