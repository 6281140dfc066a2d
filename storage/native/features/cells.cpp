#include "features/cells.h"

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "features/loops.h"

namespace emberline::features {

namespace {

// Writes all values, one behind the other, each as a To.
template <class To, class From>
const To* packed(const From* from, const Cells& cells, Arena& arena) {
  const std::int64_t size = cells.count();
  To* to = arena.take<To>(size);
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, double>) {
    if (cells.is_dense()) {
      loops().widen(from, size, to);
      return to;
    }
  }
  const auto convert = [](const From& value) { return static_cast<To>(value); };
  if (cells.is_fixed() && cells.index == nullptr) {
    gather_rows(from, cells.rows, cells.width, cells.stride, to, convert);
  } else {
    gather_rows(from, 1, size, size, to, convert);
  }
  return to;
}

template <class To>
const To* packed_values(const Cells& cells, Arena& arena) {
  return with_values(cells, [&]<class From>(const From* from) -> const To* {
    if constexpr (std::is_same_v<From, To> || (std::is_arithmetic_v<From> && std::is_arithmetic_v<To>)) {
      return packed<To>(from, cells, arena);
    }
    throw std::logic_error("values of another type");
  });
}

template <class T>
const T* repeated(const T* once, std::int64_t size, std::int64_t count, Arena& arena) {
  T* to = arena.take<T>(size * count);
  for (std::int64_t row = 0; row < count; ++row) std::copy_n(once, size, to + row * size);
  return to;
}

}  // namespace

void Cells::spread(Arena& arena) {
  if (index == nullptr) return;
  const std::int64_t places = size();
  const auto gather = [&]<class T>(const T* from) -> const T* {
    T* __restrict to = arena.take<T>(places);
    for (std::int64_t i = 0; i < places; ++i) to[i] = from[index[i]];
    return to;
  };
  with_values(*this, [&](const auto* from) { values = gather(from); });
  if (null != nullptr) null = gather(null);
  index = nullptr;
}

void Cells::pack(Arena& arena) {
  const bool is_plain = wire == Wire::kInt64 || wire == Wire::kFp64 || wire == Wire::kBytes;
  if (!is_plain || !is_dense()) {
    if (!is_dense() && null != nullptr) null = packed<std::uint8_t>(null, *this, arena);
    if (!is_dense() && weights != nullptr) weights = packed<double>(weights, *this, arena);
    switch (type()) {
      case Type::kInt: set(packed_values<std::int64_t>(*this, arena)); break;
      case Type::kFloat: set(packed_values<double>(*this, arena)); break;
      case Type::kBytes: set(packed_values<std::string_view>(*this, arena)); break;
    }
  }
  stride = width;
}

void Cells::pack_floats(Arena& arena) {
  pack(arena);
  if (type() == Type::kInt) set(packed<double>(ints(), *this, arena));
}

void Cells::keep_columns(std::int64_t start, std::int64_t stop) {
  if (start < 0 || stop < start || stop > width) throw std::logic_error("columns outside of a row");
  with_values(*this, [&]<class T>(const T* all) { values = all + start; });
  if (null != nullptr) null += start;
  if (weights != nullptr) weights += start;
  width = stop - start;
}

void Cells::repeat(std::int64_t count, Arena& arena) {
  spread(arena);
  pack(arena);
  const std::int64_t length = size();
  with_values(*this, [&]<class T>(const T* once) { values = repeated(once, length, count, arena); });
  if (null != nullptr) null = repeated(null, length, count, arena);
  if (weights != nullptr) weights = repeated(weights, length, count, arena);
  rows = count;
  width = stride = length;
  offsets = nullptr;
}

std::uint8_t* Cells::own_nulls(Arena& arena) {
  const std::int64_t flag_count = count();
  std::uint8_t* flags =
      null == nullptr ? arena.take_filled<std::uint8_t>(flag_count, 0) : arena.take<std::uint8_t>(flag_count);
  if (null != nullptr) std::copy_n(null, flag_count, flags);
  null = flags;
  return flags;
}

}  // namespace emberline::features
