// The Python face of the feature engine. Pointers and sizes are taken with the GIL, then it is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <tuple>

#include "features/bind_columns.h"
#include "features/hash.h"
#include "features/program.h"
#include "features/wire_bytes.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace emberline::features;

namespace {

using Uint8s = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Owned = nb::ndarray<nb::numpy, T, nb::c_contig>;

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
  void floor_divide(std::int64_t divisor) { last().transforms.push_back(FloorDivide{checked(divisor)}); }
  void add(const std::vector<std::int64_t>& amounts) {
    if (amounts.empty()) throw std::invalid_argument("add needs an amount");
    last().transforms.push_back(Add{amounts});
  }

  void multiply(std::int64_t factor) { last().transforms.push_back(Multiply{factor}); }

  void replace(std::int64_t low, std::int64_t high, bool outside, std::int64_t by) {
    last().transforms.push_back(Replace{low, high, outside, by});
  }

  void integer() { last().transforms.push_back(Integer{}); }

  void modulo(std::int64_t divisor) { last().transforms.push_back(Modulo{checked(divisor)}); }
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
  void standardise(double mean, double deviation) {
    if (!(deviation > 0)) throw nb::value_error("deviation must be above 0");
    last().transforms.push_back(Standardise{mean, deviation});
  }
  void part_of_week(std::int64_t per_second, std::int64_t shift, std::int64_t period, std::int64_t part) {
    constexpr std::int64_t kWeek = 7 * 24 * 3600;
    if (per_second < 1 || shift < 0 || shift >= kWeek || period < 1 || kWeek % period != 0 || part < 1) {
      throw nb::value_error("expected a period that divides a week, and a shift of less than a week");
    }
    last().transforms.push_back(PartOfWeek{per_second, shift, period, part});
  }
  void is_null() { last().transforms.push_back(IsNull{}); }
  void fill_ints(std::int64_t value) { last().transforms.push_back(Fill{value}); }
  void fill_floats(double value) { last().transforms.push_back(Fill{value}); }
  void fill_bytes(nb::bytes value) { last().transforms.push_back(Fill{std::string(value.c_str(), value.size())}); }
  void split(nb::bytes delimiter, std::int64_t max) {
    if (delimiter.size() == 0) throw nb::value_error("delimiter must not be empty");
    if (max < 1) throw nb::value_error("max must be at least 1");
    Feature& feature = last();
    const std::size_t input = feature.inputs.empty() ? inputs_.size() : feature.inputs.front();
    if (input >= inputs_.size()) throw nb::value_error("split needs an input that was added");
    feature.transforms.push_back(Split{std::string(delimiter.c_str(), delimiter.size()), max, inputs_[input].name});
  }
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
  static std::int64_t checked(std::int64_t divisor) {
    if (divisor < 1) throw nb::value_error("divisor must be at least 1");
    return divisor;
  }
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

// A request of Python columns.
struct PyRequest {
  std::vector<ColumnView> views;
  std::vector<const ColumnView*> columns;
  std::int64_t batch = 0;
};

PyRequest read_request(const Program& program, nb::handle given, Kept& kept) {
  const nb::tuple pair = nb::cast<nb::tuple>(given);
  if (pair.size() != 2) throw nb::value_error("a request is its columns and its number of rows");
  const nb::list columns = nb::cast<nb::list>(pair[0]);
  const std::size_t count = program.inputs().size();
  if (columns.size() != count) throw nb::value_error("one column (or None) an input is expected");
  PyRequest request;
  request.batch = nb::cast<std::int64_t>(pair[1]);
  request.views.reserve(count);
  request.columns.reserve(count);
  for (nb::handle column : columns) {
    if (!column.is_none()) request.views.push_back(read_column(column, kept));
    request.columns.push_back(column.is_none() ? nullptr : &request.views.back());
  }
  return request;
}

Batch run(const Program& program, const nb::list& given) {
  Kept kept;
  std::vector<PyRequest> read;
  std::vector<Request> requests;
  read.reserve(given.size());
  for (nb::handle request : given) {
    read.push_back(read_request(program, request, kept));
    requests.push_back({read.back().columns, read.back().batch});
  }
  const nb::gil_scoped_release released;
  return program.run(requests);
}

Batch run_blocks(const Program& program, const BlockLayout& layout, const nb::list& data,
                 const std::vector<std::int64_t>& batches) {
  if (data.size() != batches.size()) throw nb::value_error("one number of rows a block is expected");
  Kept kept;
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const Array bytes = read_values(data[i], Wire::kBytes, kept);
    blocks.push_back({static_cast<const std::byte*>(bytes.data), bytes.size, batches[i]});
  }
  const nb::gil_scoped_release released;
  return program.run(layout, blocks);
}

// Reads the pair of capsules that pyarrow gives of a RecordBatch, and keeps them.
template <class T>
const T& in_capsule(nb::handle capsule, const char* name) {
  const void* found = PyCapsule_GetPointer(capsule.ptr(), name);
  if (found == nullptr) throw nb::python_error();
  return *static_cast<const T*>(found);
}

Batch run_arrow(const Program& program, const nb::tuple& rows, const nb::list& places) {
  if (rows.size() != 2) throw nb::value_error("the rows are a schema and an array of Arrow's C data interface");
  const auto& schema = in_capsule<ArrowSchema>(rows[0], "arrow_schema");
  const auto& array = in_capsule<ArrowArray>(rows[1], "arrow_array");
  Kept kept;
  std::vector<ColumnView> views;
  std::vector<ArrowInput> inputs;
  views.reserve(places.size());
  for (nb::handle place : places) {
    if (place.is_none()) {
      inputs.push_back({});
    } else if (nb::isinstance<nb::int_>(place)) {
      inputs.push_back({nb::cast<std::int64_t>(place), nullptr});
    } else {
      views.push_back(read_column(place, kept));
      inputs.push_back({-1, &views.back()});
    }
  }
  const nb::gil_scoped_release released;
  return program.run(schema, array, inputs);
}

void make_layout(BlockLayout* self, const std::vector<std::tuple<std::size_t, int, std::int64_t>>& columns,
                 std::size_t inputs) {
  std::vector<BlockLayout::Column> made;
  for (const auto& [input, code, width] : columns) made.push_back({input, wire_of(code), width});
  new (self) BlockLayout(made, inputs);
}

// Arrays over the memory of a batch. numpy cuts an array in a fifth of the time that a new one takes, so there is one
// over all memory of each type, which others are cut from.
class Arrays {
 public:
  explicit Arrays(nb::handle owner) : owner_(nb::borrow(owner)), memory_(nb::cast<const Batch&>(owner).memory()) {}

  template <class T>
  nb::object cut(std::span<T> values) {
    const auto* begin = reinterpret_cast<const std::byte*>(values.data());
    for (std::size_t number = 0; number < memory_.chunk_count(); ++number) {
      const std::span<std::byte> chunk = memory_.chunk(number);
      if (begin < chunk.data() || begin >= chunk.data() + chunk.size()) continue;
      const auto first = static_cast<Py_ssize_t>((begin - chunk.data()) / static_cast<std::ptrdiff_t>(sizeof(T)));
      nb::object& all = whole(number, std::is_same_v<T, float>);
      if (!all.is_valid()) all = over(std::span(reinterpret_cast<T*>(chunk.data()), chunk.size() / sizeof(T)));
      PyObject* piece = PySequence_GetSlice(all.ptr(), first, first + static_cast<Py_ssize_t>(values.size()));
      if (piece == nullptr) throw nb::python_error();
      return nb::steal(piece);
    }
    return over(values);
  }

  template <class T>
  nb::object matrix(std::span<T> values, std::int64_t rows, std::int64_t width) {
    return over(values, {static_cast<std::size_t>(rows), static_cast<std::size_t>(width)});
  }

 private:
  template <class T>
  nb::object over(std::span<T> values, std::vector<std::size_t> shape = {}) {
    if (shape.empty()) shape = {values.size()};
    return Owned<T>(values.data(), shape.size(), shape.data(), owner_).cast();
  }
  nb::object& whole(std::size_t number, bool floats) {
    wholes_.resize(2 * memory_.chunk_count());
    return wholes_[2 * number + (floats ? 1 : 0)];
  }

  nb::object owner_;
  const Arena& memory_;
  std::vector<nb::object> wholes_;
};

nb::list ids_of(nb::handle_t<Batch> self) {
  Arrays arrays(self);
  nb::list out;
  const std::int64_t* last = nullptr;
  nb::object offsets;
  for (const Jagged& bags : nb::cast<const Batch&>(self).ids) {
    if (bags.offsets.data() != last) offsets = arrays.cut(bags.offsets);
    last = bags.offsets.data();
    nb::object weights = bags.weighted ? arrays.cut(bags.weights) : nb::none();
    out.append(nb::make_tuple(arrays.cut(bags.values), offsets, weights));
  }
  return out;
}

nb::list dense_of(nb::handle_t<Batch> self) {
  Arrays arrays(self);
  const Batch& batch = nb::cast<const Batch&>(self);
  nb::list out;
  for (const Dense& group : batch.dense) out.append(arrays.matrix(group.values, batch.rows, group.width));
  return out;
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

  nb::class_<Batch>(m, "Batch", "The results of a run. All arrays lie in its memory and keep it alive.")
      .def_ro("rows", &Batch::rows)
      .def("dense", &dense_of, nb::sig("def dense(self) -> list[numpy.typing.NDArray[numpy.float32]]"),
           "Returns the dense groups, (rows, width) each.")
      .def("ids", &ids_of,
           nb::sig("def ids(self) -> list[tuple[numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32] | None]]"),
           "Returns (values, offsets, weights or None) of each feature. Features may share offsets.");

  nb::class_<BlockLayout>(m, "BlockLayout", "The columns of requests that are one block of bytes each.")
      .def("__init__", &make_layout, "columns"_a, "inputs"_a,
           nb::sig("def __init__(self, columns: Sequence[tuple[int, int, int]], inputs: int) -> None"),
           "columns: (input, dtype, width) in the order of the blocks. inputs: the number of those of the program.");

  nb::class_<Program>(m, "Program", "An immutable program; any number of threads may run it.")
      .def("run", &run, "requests"_a,
           nb::sig("def run(self, requests: list[tuple[list[storage.features.columns.Column | None], int]]) -> Batch"),
           "Runs the program over all rows of requests. Each has a column or None for each input, and its number of\n"
           "rows; all have the same inputs in the same forms.")
      .def("run_arrow", &run_arrow, "rows"_a, "places"_a,
           nb::sig("def run_arrow(self, rows: tuple[object, object], "
                   "places: list[int | storage.features.columns.Column | None]) -> Batch"),
           "Runs the program over a RecordBatch of pyarrow, given as the capsules of its __arrow_c_array__. places: "
           "for\n"
           "each input the number of its column in it, or a column that was made of it, or None.")
      .def("run_blocks", &run_blocks, "layout"_a, "blocks"_a, "batches"_a,
           nb::sig("def run_blocks(self, layout: BlockLayout, blocks: list[numpy.typing.NDArray[numpy.uint8]], "
                   "batches: Sequence[int]) -> Batch"),
           "Runs the program over all rows of requests that are one block each.");

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
      .def("floor_divide", &Builder::floor_divide, "divisor"_a)
      .def("modulo", &Builder::modulo, "divisor"_a)
      .def("add", &Builder::add, "amounts"_a)
      .def("multiply", &Builder::multiply, "factor"_a)
      .def("replace", &Builder::replace, "low"_a, "high"_a, "outside"_a, "by"_a)
      .def("integer", &Builder::integer)
      .def("vocabulary", &Builder::vocabulary, "values"_a, nb::arg("unknown").none(),
           nb::sig("def vocabulary(self, values: list[bytes | int], unknown: int | None) -> None"))
      .def("bucketise", &Builder::bucketise, "boundaries"_a)
      .def("log", &Builder::log)
      .def("clip", &Builder::clip, "min"_a, "max"_a)
      .def("affine", &Builder::affine, "scale"_a, "shift"_a)
      .def("standardise", &Builder::standardise, "mean"_a, "deviation"_a)
      .def("part_of_week", &Builder::part_of_week, "per_second"_a, "shift"_a, "period"_a, "part"_a)
      .def("is_null", &Builder::is_null)
      .def("fill_ints", &Builder::fill_ints, "value"_a)
      .def("fill_floats", &Builder::fill_floats, "value"_a)
      .def("fill_bytes", &Builder::fill_bytes, "value"_a)
      .def("split", &Builder::split, "delimiter"_a, "max"_a)
      .def("slice", &Builder::slice, "start"_a, "stop"_a)
      .def("truncate", &Builder::truncate, "length"_a, "keep_last"_a)
      .def("pad_ints", &Builder::pad_ints, "length"_a, "value"_a)
      .def("pad_floats", &Builder::pad_floats, "length"_a, "value"_a)
      .def("pad_bytes", &Builder::pad_bytes, "length"_a, "value"_a)
      .def("build", &Builder::build, "group_widths"_a);

  m.def("split_wire_bytes", &split, nb::arg("data").noconvert(), "count"_a, "field"_a = "",
        nb::sig("def split_wire_bytes(data: numpy.typing.NDArray[numpy.uint8], count: int, field: str = '') -> "
                "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]"),
        "Splits KServe's length-prefixed BYTES, uint8 (m,), into starts (count,), ends (count,) int64.");
}
