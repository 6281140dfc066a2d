// The Python face of the feature engine. Pointers and sizes are taken with the GIL, then it is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <numeric>

#include "features/program.h"
#include "features/wire_bytes.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace emberline::features;

namespace {

using Flat = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int64s = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableUint8s = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Uint8s = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Owned = nb::ndarray<nb::numpy, T, nb::c_contig>;

nb::dlpack::dtype numpy_dtype(Wire wire) {
  switch (wire) {
    case Wire::kInt64: return nb::dtype<std::int64_t>();
    case Wire::kInt32: return nb::dtype<std::int32_t>();
    case Wire::kUint64: return nb::dtype<std::uint64_t>();
    case Wire::kFp32: return nb::dtype<float>();
    case Wire::kFp64: return nb::dtype<double>();
    case Wire::kBool: return nb::dtype<bool>();
    case Wire::kBytes: break;
  }
  return nb::dtype<std::uint8_t>();
}

Wire wire_of(int code) {
  if (code < 0 || code >= kWires) throw nb::value_error("dtype code out of range");
  return static_cast<Wire>(code);
}

// A column of Python arrays. The caller keeps them alive through the call.
class BoundColumn {
 public:
  BoundColumn(int code, std::int64_t rows, std::int64_t width, const Flat& values, std::optional<Int64s> starts,
              std::optional<Int64s> ends, std::optional<Int64s> offsets, std::optional<Uint8s> valid)
      : values_(values), starts_(starts), ends_(ends), offsets_(offsets), valid_(valid) {
    view_.wire = wire_of(code);
    view_.rows = rows;
    view_.width = width;
    if (values.dtype() != numpy_dtype(view_.wire)) throw nb::type_error("values are not of the column's dtype");
    if (view_.wire == Wire::kBytes) {
      if (!starts_ || !ends_ || starts_->size() != ends_->size()) throw nb::type_error("starts and ends must pair up");
      view_.data = static_cast<const char*>(values_.data());
      view_.data_size = static_cast<std::int64_t>(values_.size());
      view_.starts = starts_->data();
      view_.ends = ends_->data();
      view_.count = static_cast<std::int64_t>(starts_->size());
    } else {
      view_.values = values_.data();
      view_.count = static_cast<std::int64_t>(values_.size());
    }
    if (offsets_) {
      if (offsets_->size() == 0) throw nb::type_error("offsets must have rows + 1 entries");
      view_.offsets = offsets_->data();
      view_.offsets_count = static_cast<std::int64_t>(offsets_->size());
    }
    if (valid_ && valid_->size() == 0) {
      valid_.reset();  // numpy may give no address for no elements; no flags are as good
    } else if (valid_) {
      view_.valid = valid_->data();
      view_.valid_count = static_cast<std::int64_t>(valid_->size());
    }
  }

  const ColumnView& view() const { return view_; }

 private:
  ColumnView view_;
  Flat values_;
  std::optional<Int64s> starts_, ends_, offsets_;
  std::optional<Uint8s> valid_;
};

// The parts of a program, in the order in which Python names them.
class Builder {
 public:
  void add_input(const std::string& name, int code, bool is_list, std::int64_t width, std::int64_t max_length,
                 bool user_side, bool missing_is_null, bool empty_is_null, nb::object fallback) {
    Input input{name,      wire_of(code),   is_list,       width,       max_length,
                user_side, missing_is_null, empty_is_null, std::nullopt};
    if (!fallback.is_none()) {
      switch (type_of(input.wire)) {
        case Type::kBytes: input.fallback = bytes_list(nb::cast<nb::list>(fallback)); break;
        case Type::kInt: input.fallback = nb::cast<std::vector<std::int64_t>>(fallback); break;
        case Type::kFloat: input.fallback = nb::cast<std::vector<double>>(fallback); break;
      }
      const std::size_t size = std::visit([](const auto& values) { return values.size(); }, *input.fallback);
      if (!is_list && size != 1) throw nb::value_error("a fixed input has one default value");
    }
    inputs_.push_back(std::move(input));
  }

  void add_ids_feature(const std::string& name, std::vector<std::size_t> inputs, std::int64_t cut,
                       std::optional<std::size_t> weights) {
    Feature feature;
    feature.name = name;
    feature.inputs = std::move(inputs);
    feature.slot = ids_++;
    feature.cut = cut;
    feature.weights = weights;
    features_.push_back(std::move(feature));
  }

  void add_dense_feature(const std::string& name, std::vector<std::size_t> inputs, std::size_t group,
                         std::int64_t column, std::int64_t width) {
    Feature feature;
    feature.name = name;
    feature.inputs = std::move(inputs);
    feature.is_dense = true;
    feature.slot = group;
    feature.column = column;
    feature.width = width;
    features_.push_back(std::move(feature));
  }

  void cross(std::uint64_t seed, std::uint64_t buckets, std::int64_t max) {
    if (max < 1) throw nb::value_error("max must be at least 1");
    last().cross.emplace(hash_key(seed, ""), buckets, max);
  }
  void hash(std::uint64_t seed, const std::string& salt, std::uint64_t buckets) {
    last().transforms.push_back(Hash{hash_key(seed, salt), buckets});
  }
  void vocabulary(nb::list values, std::optional<std::int64_t> unknown) {
    const bool bytes = values.size() > 0 && nb::isinstance<nb::bytes>(values[0]);
    last().transforms.push_back(
        bytes ? Vocabulary(bytes_list(values), unknown.has_value(), unknown.value_or(0))
              : Vocabulary(nb::cast<std::vector<std::int64_t>>(values), unknown.has_value(), unknown.value_or(0)));
  }
  void bucketise(std::vector<double> boundaries) { last().transforms.push_back(Bucketise{std::move(boundaries)}); }
  void log() { last().transforms.push_back(Log{}); }
  void clip(double min, double max) { last().transforms.push_back(Clip{min, max}); }
  void affine(double scale, double shift) { last().transforms.push_back(Affine{scale, shift}); }
  void slice(std::int64_t start, std::int64_t stop) { last().transforms.push_back(Slice{start, stop}); }
  void truncate(std::int64_t length, bool keep_last) { last().transforms.push_back(Truncate{length, keep_last}); }
  void pad_ints(std::int64_t length, std::int64_t value) { last().transforms.push_back(Pad{length, value}); }
  void pad_floats(std::int64_t length, double value) { last().transforms.push_back(Pad{length, value}); }
  void pad_bytes(std::int64_t length, nb::bytes value) {
    last().transforms.push_back(Pad{length, std::string(value.c_str(), value.size())});
  }

  std::unique_ptr<Program> build(std::vector<std::int64_t> group_widths) {
    return std::make_unique<Program>(std::exchange(inputs_, {}), std::exchange(features_, {}), std::move(group_widths));
  }

 private:
  Feature& last() {
    if (features_.empty()) throw nb::value_error("a transform needs a feature before it");
    return features_.back();
  }
  static std::vector<std::string> bytes_list(const nb::list& values) {
    std::vector<std::string> out;
    for (nb::handle value : values) {
      const auto bytes = nb::cast<nb::bytes>(value);
      out.emplace_back(bytes.c_str(), bytes.size());
    }
    return out;
  }

  std::vector<Input> inputs_;
  std::vector<Feature> features_;
  std::size_t ids_ = 0;
};

nb::tuple run(const Program& program, nb::list columns, std::int64_t batch) {
  std::vector<const ColumnView*> views;
  views.reserve(columns.size());
  for (nb::handle column : columns) {
    views.push_back(column.is_none() ? nullptr : &nb::cast<const BoundColumn&>(column).view());
  }
  if (views.size() != program.inputs().size()) throw nb::value_error("one column (or None) an input is expected");
  auto kept = std::make_unique<Batch>();
  {
    nb::gil_scoped_release released;
    *kept = program.run(views, batch);
  }
  // All arrays of a run have one owner: they live as long as any of them does.
  Batch& out = *kept;
  nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<Batch*>(p); });
  nb::list dense, ids;
  const auto rows = static_cast<std::size_t>(batch);
  for (std::size_t g = 0; g < out.dense.size(); ++g) {
    const std::size_t shape[2] = {rows, static_cast<std::size_t>(program.group_widths()[g])};
    dense.append(Owned<float>(out.dense[g].data(), 2, shape, owner).cast());
  }
  for (Jagged& jagged : out.ids) {
    const std::size_t values[1] = {jagged.values.size()}, offsets[1] = {jagged.offsets.size()};
    nb::object weights = nb::none();
    if (jagged.weighted) weights = nb::cast(Owned<float>(jagged.weights.data(), 1, values, owner));
    ids.append(nb::make_tuple(Owned<std::int64_t>(jagged.values.data(), 1, values, owner).cast(),
                              Owned<std::int64_t>(jagged.offsets.data(), 1, offsets, owner).cast(), weights));
  }
  return nb::make_tuple(dense, ids);
}

nb::tuple split(const Uint8s& data, std::int64_t count, const std::string& field) {
  auto kept = std::make_unique<ByteRanges>();
  const char* bytes = reinterpret_cast<const char*>(data.data());
  const auto size = static_cast<std::int64_t>(data.size());
  {
    nb::gil_scoped_release released;
    *kept = split_wire_bytes(bytes, size, count, field);
  }
  ByteRanges& out = *kept;
  nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<ByteRanges*>(p); });
  const std::size_t shape[1] = {out.starts.size()};
  return nb::make_tuple(Owned<std::int64_t>(out.starts.data(), 1, shape, owner).cast(),
                        Owned<std::int64_t>(out.ends.data(), 1, shape, owner).cast());
}

// The rows of several requests, each of whose columns lie one behind the other, column by column behind each other.
void gather_columns(const std::vector<Uint8s>& parts, const std::vector<std::int64_t>& batches,
                    const std::vector<std::int64_t>& row_bytes, const std::vector<MutableUint8s>& outputs) {
  if (parts.size() != batches.size() || row_bytes.size() != outputs.size()) {
    throw InvalidInput("", "gather_columns: as many batches as parts, and as many outputs as columns, are needed");
  }
  const std::int64_t of_row = std::accumulate(row_bytes.begin(), row_bytes.end(), std::int64_t{0});
  std::int64_t rows = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const auto size = static_cast<std::int64_t>(parts[part].size());
    // Compared first: the product of what is not true could be anything.
    if (batches[part] < 0 || (of_row > 0 && batches[part] > size / of_row) || size != batches[part] * of_row) {
      throw InvalidInput("", "gather_columns: a part is not as long as its rows");
    }
    rows += batches[part];
  }
  for (std::size_t column = 0; column < outputs.size(); ++column) {
    if (row_bytes[column] < 0 || static_cast<std::int64_t>(outputs[column].size()) != rows * row_bytes[column]) {
      throw InvalidInput("", "gather_columns: an output is not as long as the rows of its column");
    }
  }
  std::int64_t before = 0;
  for (std::size_t column = 0; column < outputs.size(); ++column) {
    std::uint8_t* out = outputs[column].data();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const std::int64_t bytes = batches[part] * row_bytes[column];
      std::memcpy(out, parts[part].data() + batches[part] * before, static_cast<std::size_t>(bytes));
      out += bytes;
    }
    before += row_bytes[column];
  }
}

}  // namespace

NB_MODULE(_features, m) {
  m.doc() = "The C++ feature engine; storage.features is its Python side.";

  // Errors of the engine are errors of the project's own tree.
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const InvalidInput& error) {
      const nb::object type = nb::module_::import_("storage.errors").attr("InvalidInput");
      const std::string what = error.what();
      // Names come from requests: what is not UTF-8 is replaced, never a second error.
      const auto decoded = [](const std::string& text) {
        return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
      };
      const nb::object raised = type(decoded(what), "field"_a = decoded(error.field()));
      PyErr_SetObject(type.ptr(), raised.ptr());
    }
  });

  nb::class_<BoundColumn>(m, "BoundColumn", "A raw column; borrows its arrays and keeps them alive.")
      .def(nb::init<int, std::int64_t, std::int64_t, const Flat&, std::optional<Int64s>, std::optional<Int64s>,
                    std::optional<Int64s>, std::optional<Uint8s>>(),
           "dtype"_a, "rows"_a, "width"_a, nb::arg("values").noconvert(), nb::arg("starts").noconvert().none(),
           nb::arg("ends").noconvert().none(), nb::arg("offsets").noconvert().none(),
           nb::arg("valid").noconvert().none(),
           nb::sig("def __init__(self, dtype: int, rows: int, width: int, values: numpy.typing.NDArray[typing.Any], "
                   "starts: numpy.typing.NDArray[numpy.int64] | None, ends: numpy.typing.NDArray[numpy.int64] | None, "
                   "offsets: numpy.typing.NDArray[numpy.int64] | None, valid: numpy.typing.NDArray[numpy.uint8] | "
                   "None) -> None"));

  nb::class_<Program>(m, "Program", "An immutable program; any number of threads may run it.")
      .def("run", &run, "columns"_a, "batch"_a,
           nb::sig("def run(self, columns: list[BoundColumn | None], batch: int) -> "
                   "tuple[list[numpy.typing.NDArray[numpy.float32]], list[tuple[numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32] | None]]]"),
           "Runs the program over one BoundColumn or None for each input.\n\n"
           "Returns ([dense (batch, width)], [(values, offsets, weights or None)]).");

  nb::class_<Builder>(m, "Builder", "Collects inputs and features; transforms belong to the feature added last.")
      .def(nb::init<>())
      .def(
          "add_input", &Builder::add_input, "name"_a, "dtype"_a, "is_list"_a, "width"_a, "max_length"_a, "user_side"_a,
          "missing_is_null"_a, "empty_is_null"_a, nb::arg("default").none(),
          nb::sig(
              "def add_input(self, name: str, dtype: int, is_list: bool, width: int, max_length: int, user_side: bool, "
              "missing_is_null: bool, empty_is_null: bool, default: list[bytes | int | float] | None) -> None"))
      .def("add_ids_feature", &Builder::add_ids_feature, "name"_a, "inputs"_a, "cut"_a,
           nb::arg("weights").none() = nb::none())
      .def("add_dense_feature", &Builder::add_dense_feature, "name"_a, "inputs"_a, "group"_a, "column"_a, "width"_a)
      .def("cross", &Builder::cross, "seed"_a, "buckets"_a, "max"_a)
      .def("hash", &Builder::hash, "seed"_a, "salt"_a, "buckets"_a)
      .def("vocabulary", &Builder::vocabulary, "values"_a, nb::arg("unknown").none(),
           nb::sig("def vocabulary(self, values: list[bytes | int], unknown: int | None) -> None"))
      .def("bucketise", &Builder::bucketise, "boundaries"_a)
      .def("log", &Builder::log)
      .def("clip", &Builder::clip, "min"_a, "max"_a)
      .def("affine", &Builder::affine, "scale"_a, "shift"_a)
      .def("slice", &Builder::slice, "start"_a, "stop"_a)
      .def("truncate", &Builder::truncate, "length"_a, "keep_last"_a)
      .def("pad_ints", &Builder::pad_ints, "length"_a, "value"_a)
      .def("pad_floats", &Builder::pad_floats, "length"_a, "value"_a)
      .def("pad_bytes", &Builder::pad_bytes, "length"_a, "value"_a)
      .def("build", &Builder::build, "group_widths"_a);

  m.def("gather_columns", &gather_columns, "parts"_a, "batches"_a, "row_bytes"_a, nb::arg("outputs").noconvert(),
        nb::sig("def gather_columns(parts: Sequence[numpy.typing.NDArray[numpy.uint8]], batches: Sequence[int], "
                "row_bytes: Sequence[int], outputs: Sequence[numpy.typing.NDArray[numpy.uint8]]) -> None"),
        "Gathers each column of all requests into outputs; the columns of a request lie one behind the other. All "
        "uint8.");

  m.def("split_wire_bytes", &split, nb::arg("data").noconvert(), "count"_a, "field"_a = "",
        nb::sig("def split_wire_bytes(data: numpy.typing.NDArray[numpy.uint8], count: int, field: str = '') -> "
                "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]"),
        "Splits KServe's length-prefixed BYTES, uint8 (m,), into starts (count,), ends (count,) int64.");
}
