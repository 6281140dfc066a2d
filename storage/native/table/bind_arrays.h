// Arrays over the border: what comes in is checked and named in the error, what goes out is handed over without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rows/codec.h"

namespace emberline::bind {

namespace nb = nanobind;

template <class T>
constexpr const char* dtype_name() {
  using V = std::remove_const_t<T>;
  if constexpr (std::is_same_v<V, std::int64_t>) return "int64";
  if constexpr (std::is_same_v<V, std::uint32_t>) return "uint32";
  if constexpr (std::is_same_v<V, std::uint8_t>) return "uint8";
  return "float32";
}

[[noreturn]] inline void fail(const std::string& message) { throw nb::value_error(message.c_str()); }

inline std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

// What an argument is, for an error message; slow, and only then.
inline std::string describe(nb::handle value) {
  std::string text = nb::cast<std::string>(nb::str(value.type().attr("__name__")));
  for (const char* name : {"dtype", "shape", "strides"}) {
    if (!nb::hasattr(value, name)) continue;
    const nb::object attribute = value.attr(name);
    text += std::string(" ") + name + " " + nb::cast<std::string>(nb::str(attribute));
  }
  if (nb::hasattr(value, "flags") && nb::hasattr(value.attr("flags"), "writeable") &&
      !nb::cast<bool>(value.attr("flags").attr("writeable"))) {
    text += ", read-only";
  }
  return text;
}

// A C-contiguous CPU array of exactly this dtype, never converted: a copy would swallow what is written into it. T is const
// for an input, which may be read-only. Throws TypeError and ValueError that name the argument.
template <class T>
class ArrayView {
 public:
  using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

  ArrayView(nb::handle value, const std::string& name, const std::vector<std::size_t>& shape) {
    take(value, name, shape.size());
    bool same = true;
    for (std::size_t i = 0; i < shape.size(); ++i) same = same && array_.shape(i) == shape[i];
    if (same) return;
    std::vector<std::size_t> got;
    for (std::size_t i = 0; i < array_.ndim(); ++i) got.push_back(array_.shape(i));
    fail(name + ": expected shape " + shape_text(shape) + ", got " + shape_text(got));
  }

  // Any shape of so many dimensions.
  static ArrayView of_rank(std::size_t dimensions, nb::handle value, const std::string& name) {
    ArrayView view;
    view.take(value, name, dimensions);
    return view;
  }

  T* data() const { return array_.data(); }
  std::size_t size() const { return array_.shape(0); }
  std::size_t shape(std::size_t axis) const { return array_.shape(axis); }
  const Array& array() const { return array_; }

 private:
  ArrayView() = default;

  void take(nb::handle value, const std::string& name, std::size_t dimensions) {
    const bool cast = nb::try_cast<Array>(value, array_, false);
    if (cast && array_.ndim() == dimensions) return;
    const std::string message = name + ": expected a C-contiguous" + (std::is_const_v<T> ? "" : ", writable") + " " +
                                dtype_name<T>() + " array of " + std::to_string(dimensions) +
                                (dimensions == 1 ? " dimension" : " dimensions") + ", got " + describe(value);
    if (cast) fail(message);
    throw nb::type_error(message.c_str());
  }

  Array array_;
};

using Ids = ArrayView<const std::int64_t>;
using Floats = ArrayView<const float>;
using Bytes = ArrayView<const std::uint8_t>;

// Rows to be written: float32 (n, width), encoded on the way, or uint8 (n, stride) encoded already.
class RowsArgument {
 public:
  RowsArgument(nb::handle value, const std::string& name, std::size_t n, std::size_t width, std::size_t stride)
      : owner_(nb::borrow(value)), input_(take(value, name, n, width, stride)) {}

  RowInput input() const { return input_; }

 private:
  static RowInput take(nb::handle value, const std::string& name, std::size_t n, std::size_t width, std::size_t stride) {
    nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu> bytes;
    if (nb::try_cast(value, bytes, false)) {
      return reinterpret_cast<const char*>(Bytes(value, name, {n, stride}).data());
    }
    return Floats(value, name, {n, width}).data();
  }

  nb::object owner_;  // numpy's memory stays while its array does
  RowInput input_;
};

// Gives a vector to numpy; the array owns it.
template <class T>
nb::object to_numpy(std::vector<T>&& values, std::vector<std::size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.data(), owner));
}

template <class T>
nb::object to_numpy(std::vector<T>&& values) {
  const std::size_t n = values.size();
  return to_numpy(std::move(values), {n});
}

}  // namespace emberline::bind
