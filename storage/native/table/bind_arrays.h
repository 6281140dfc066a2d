// Arrays over the border: what comes in is checked and named in the error, what goes out is handed over without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
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
  if constexpr (std::is_same_v<V, std::uint64_t>) return "uint64";
  if constexpr (std::is_same_v<V, std::uint32_t>) return "uint32";
  if constexpr (std::is_same_v<V, std::uint16_t>) return "uint16";
  if constexpr (std::is_same_v<V, std::uint8_t>) return "uint8";
  return "float32";
}

[[noreturn]] inline void fail(const std::string& message) { throw nb::value_error(message.c_str()); }

inline std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

// Describes an argument for an error message; slow, and called only then.
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

// The name of an argument, or of one entry of a list; spelled out only for an error.
struct ArgumentName {
  ArgumentName(const char* name) : text(name) {}
  ArgumentName(const char* name, std::size_t entry) : text(name), index(entry), listed(true) {}

  std::string str() const { return listed ? std::string(text) + "[" + std::to_string(index) + "]" : text; }

  const char* text;
  std::size_t index = 0;
  bool listed = false;
};

// Returns whether a buffer's format is that of T: one letter, in native order.
template <class T>
bool has_format(const char* format, Py_ssize_t item_bytes) {
  using V = std::remove_const_t<T>;
  if (format == nullptr || item_bytes != static_cast<Py_ssize_t>(sizeof(V))) return false;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return false;
  if constexpr (std::is_same_v<V, std::int64_t>) return *format == 'l' || *format == 'q';
  if constexpr (std::is_same_v<V, std::uint64_t>) return *format == 'L' || *format == 'Q';
  if constexpr (std::is_same_v<V, std::uint32_t>) return *format == 'I' || *format == 'L';
  if constexpr (std::is_same_v<V, std::uint16_t>) return *format == 'H';
  if constexpr (std::is_same_v<V, std::uint8_t>) return *format == 'B';
  return *format == 'f';
}

// A C-contiguous CPU array of exactly this dtype, never converted: a copy would swallow what is written into it. T is
// const for an input, which may be read-only. Throws TypeError and ValueError that name the argument.
//
// numpy arrays are read by the buffer protocol, which takes a fifth of the time of nanobind's way; whatever else knows
// DLPack goes that way.
template <class T>
class ArrayView {
 public:
  ArrayView(nb::handle value, ArgumentName name, std::initializer_list<std::size_t> shape)
      : ArrayView(value, name, shape.begin(), shape.size()) {}
  ArrayView(nb::handle value, ArgumentName name, const std::vector<std::size_t>& shape)
      : ArrayView(value, name, shape.data(), shape.size()) {}
  ArrayView(nb::handle value, ArgumentName name, const std::size_t* shape, std::size_t dimensions) {
    take(value, name, dimensions);
    bool same = true;
    for (std::size_t i = 0; i < dimensions; ++i) same = same && shape_[i] == shape[i];
    if (same) return;
    release();
    fail(name.str() + ": expected shape " + shape_text({shape, shape + dimensions}) + ", got " +
         shape_text({shape_, shape_ + dimensions}));
  }
  ~ArrayView() { release(); }
  ArrayView(ArrayView&& other) noexcept
      : array_(std::move(other.array_)),
        buffer_(other.buffer_),
        held_(std::exchange(other.held_, false)),
        data_(other.data_) {
    std::copy(other.shape_, other.shape_ + kMostDimensions, shape_);
  }
  ArrayView& operator=(ArrayView&&) = delete;

  // Accepts any shape with this number of dimensions.
  static ArrayView of_rank(std::size_t dimensions, nb::handle value, ArgumentName name) {
    ArrayView view;
    view.take(value, name, dimensions);
    return view;
  }

  T* data() const { return data_; }
  std::size_t size() const { return shape_[0]; }
  std::size_t shape(std::size_t axis) const { return shape_[axis]; }

 private:
  using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
  static constexpr std::size_t kMostDimensions = 3;

  ArrayView() = default;

  void take(nb::handle value, ArgumentName name, std::size_t dimensions) {
    if (take_buffer(value, dimensions)) return;
    const bool cast = nb::try_cast<Array>(value, array_, false);
    if (cast && array_.ndim() == dimensions) {
      data_ = array_.data();
      for (std::size_t i = 0; i < dimensions; ++i) shape_[i] = array_.shape(i);
      return;
    }
    const std::string message = name.str() + ": expected a C-contiguous" + (std::is_const_v<T> ? "" : ", writable") +
                                " " + dtype_name<T>() + " array of " + std::to_string(dimensions) +
                                (dimensions == 1 ? " dimension" : " dimensions") + ", got " + describe(value);
    if (cast) fail(message);
    throw nb::type_error(message.c_str());
  }

  bool take_buffer(nb::handle value, std::size_t dimensions) {
    if (!PyObject_CheckBuffer(value.ptr())) return false;
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE);
    if (PyObject_GetBuffer(value.ptr(), &buffer_, flags) != 0) {
      PyErr_Clear();
      return false;
    }
    held_ = true;
    if (!has_format<T>(buffer_.format, buffer_.itemsize) || buffer_.ndim != static_cast<int>(dimensions)) {
      release();
      return false;
    }
    data_ = static_cast<T*>(buffer_.buf);
    for (std::size_t i = 0; i < dimensions; ++i) shape_[i] = static_cast<std::size_t>(buffer_.shape[i]);
    return true;
  }

  void release() {
    if (std::exchange(held_, false)) PyBuffer_Release(&buffer_);
  }

  Array array_;
  Py_buffer buffer_;
  bool held_ = false;
  T* data_ = nullptr;
  std::size_t shape_[kMostDimensions] = {};
};

// A writable float32 array whose rows are C-contiguous and lie `stride` floats apart, such as some columns of a larger
// array. Throws as ArrayView does.
class OutputRows {
 public:
  OutputRows(nb::handle value, ArgumentName name, const std::size_t* shape, std::size_t dimensions) {
    if (take_buffer(value, shape, dimensions)) return;
    data_ = ArrayView<float>(value, name, shape, dimensions).data();
    stride_ = 1;
    for (std::size_t i = 1; i < dimensions; ++i) stride_ *= shape[i];
  }

  float* data() const { return data_; }
  std::size_t stride() const { return stride_; }

 private:
  bool take_buffer(nb::handle value, const std::size_t* shape, std::size_t dimensions) {
    Py_buffer buffer;
    if (!PyObject_CheckBuffer(value.ptr()) ||
        PyObject_GetBuffer(value.ptr(), &buffer, PyBUF_STRIDES | PyBUF_FORMAT | PyBUF_WRITABLE) != 0) {
      PyErr_Clear();
      return false;
    }
    bool fits = has_format<float>(buffer.format, buffer.itemsize) && buffer.ndim == static_cast<int>(dimensions);
    for (std::size_t i = 0; fits && i < dimensions; ++i) fits = buffer.shape[i] == static_cast<Py_ssize_t>(shape[i]);
    if (fits) fits = take_strides(buffer, dimensions);
    PyBuffer_Release(&buffer);
    return fits;
  }

  bool take_strides(const Py_buffer& buffer, std::size_t dimensions) {
    Py_ssize_t bytes = buffer.itemsize;
    for (std::size_t i = dimensions - 1; i > 0; --i) {
      if (buffer.shape[i] > 1 && buffer.strides[i] != bytes) return false;
      bytes *= buffer.shape[i];
    }
    const Py_ssize_t step = buffer.shape[0] > 1 ? buffer.strides[0] : bytes;
    if (step < bytes || step % buffer.itemsize != 0) return false;
    data_ = static_cast<float*>(buffer.buf);
    stride_ = static_cast<std::size_t>(step / buffer.itemsize);
    return true;
  }

  float* data_ = nullptr;
  std::size_t stride_ = 0;
};

using Ids = ArrayView<const std::int64_t>;
using Floats = ArrayView<const float>;
using Bytes = ArrayView<const std::uint8_t>;

// Rows to be written: float32 (n, width), encoded on the way, or uint8 (n, stride) encoded already.
class RowsArgument {
 public:
  RowsArgument(nb::handle value, ArgumentName name, std::size_t n, std::size_t width, std::size_t stride)
      : owner_(nb::borrow(value)), input_(take(value, name, n, width, stride)) {}

  RowInput input() const { return input_; }

 private:
  static RowInput take(nb::handle value, ArgumentName name, std::size_t n, std::size_t width, std::size_t stride) {
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
