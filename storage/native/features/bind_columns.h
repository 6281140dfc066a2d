// Columns and blocks of Python: their addresses and sizes are read with the GIL, and nothing is copied.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <utility>
#include <vector>

#include "features/column.h"

namespace emberline::features {

namespace nb = nanobind;

inline Wire wire_of(int code) {
  if (code < 0 || code >= kWires) throw nb::value_error("dtype code out of range");
  return static_cast<Wire>(code);
}

// Python objects that columns and blocks point into; they are kept for as long as C++ reads them.
using Kept = std::vector<nb::object>;

// The attributes of storage.features.Column and BytesValues, as interned names.
struct Names {
  nb::str dtype = nb::str("dtype"), rows = nb::str("rows"), width = nb::str("width"), values = nb::str("values"),
          offsets = nb::str("offsets"), valid = nb::str("valid"), data = nb::str("data"), starts = nb::str("starts"),
          ends = nb::str("ends");
};

inline const Names& names() {
  static const Names* known = new Names;  // lives as long as the interpreter
  return *known;
}

inline nb::object attribute(nb::handle object, const nb::str& name) {
  PyObject* found = PyObject_GetAttr(object.ptr(), name.ptr());
  if (found == nullptr) throw nb::python_error();
  return nb::steal(found);
}

inline Wire wire_of(nb::handle dtype) {
  const char* name = PyUnicode_AsUTF8(dtype.ptr());
  if (name == nullptr) throw nb::python_error();
  for (int code = 0; code < kWires; ++code) {
    if (std::strcmp(name, wire_name(static_cast<Wire>(code))) == 0) return static_cast<Wire>(code);
  }
  throw nb::value_error("a column of an unknown dtype");
}

// The letters that a buffer of a dtype may have as its format, in native order.
inline const char* formats(Wire wire) {
  switch (wire) {
    case Wire::kInt64: return "lq";
    case Wire::kInt32: return "il";
    case Wire::kUint64: return "LQ";
    case Wire::kBytes: return "B";
    case Wire::kFp32: return "f";
    case Wire::kFp64: return "d";
    case Wire::kBool: return "?";
  }
  return "";
}

struct Array {
  const void* data = nullptr;
  std::int64_t size = 0;
};

// Reads the address of a one-dimensional, contiguous array with one of these formats. numpy moves the memory of no
// array that others hold, so the array is kept and the buffer is not.
inline Array read_array(nb::object array, const char* letters, std::size_t item_bytes, Kept& kept) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    throw nb::type_error("a column's array is not C-contiguous");
  }
  const char* format = buffer.format == nullptr ? "" : buffer.format;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  const bool fits = buffer.ndim == 1 && buffer.itemsize == static_cast<Py_ssize_t>(item_bytes) && format[0] != '\0' &&
                    format[1] == '\0' && std::strchr(letters, format[0]) != nullptr;
  const Array out{buffer.buf, fits ? static_cast<std::int64_t>(buffer.shape[0]) : 0};
  PyBuffer_Release(&buffer);
  if (!fits) throw nb::type_error("a column's array is not of its dtype, or not of one dimension");
  kept.push_back(std::move(array));
  return out;
}

inline Array read_values(nb::object array, Wire wire, Kept& kept) {
  const std::size_t bytes = wire == Wire::kBytes || wire == Wire::kBool   ? 1
                            : wire == Wire::kInt32 || wire == Wire::kFp32 ? 4
                                                                          : 8;
  return read_array(std::move(array), formats(wire), bytes, kept);
}

inline const std::int64_t* int64s(const Array& array) { return static_cast<const std::int64_t*>(array.data); }

// Reads a storage.features.Column.
inline ColumnView read_column(nb::handle column, Kept& kept) {
  const Names& of = names();
  ColumnView view;
  view.wire = wire_of(attribute(column, of.dtype));
  view.rows = nb::cast<std::int64_t>(attribute(column, of.rows));
  view.width = nb::cast<std::int64_t>(attribute(column, of.width));
  const nb::object values = attribute(column, of.values);
  if (view.wire == Wire::kBytes) {
    const Array data = read_values(attribute(values, of.data), Wire::kBytes, kept);
    const Array starts = read_values(attribute(values, of.starts), Wire::kInt64, kept);
    const Array ends = read_values(attribute(values, of.ends), Wire::kInt64, kept);
    if (starts.size != ends.size) throw nb::type_error("starts and ends must pair up");
    view.data = static_cast<const char*>(data.data);
    view.data_size = data.size;
    view.starts = int64s(starts);
    view.ends = int64s(ends);
    view.count = starts.size;
  } else {
    const Array numbers = read_values(values, view.wire, kept);
    view.values = numbers.data;
    view.count = numbers.size;
  }
  if (nb::object offsets = attribute(column, of.offsets); !offsets.is_none()) {
    const Array ends = read_values(std::move(offsets), Wire::kInt64, kept);
    if (ends.size == 0) throw nb::type_error("offsets must have rows + 1 entries");
    view.offsets = int64s(ends);
    view.offsets_count = ends.size;
  }
  if (nb::object valid = attribute(column, of.valid); !valid.is_none()) {
    const Array flags = read_array(std::move(valid), "B?", 1, kept);
    // numpy may give no address for no elements; no flags are as good
    if (flags.size > 0) view.valid = static_cast<const std::uint8_t*>(flags.data);
    view.valid_count = flags.size;
  }
  return view;
}

}  // namespace emberline::features
