// The codec for Python.
#include <nanobind/nanobind.h>

#include "rows/absent.h"
#include "rows/isa.h"
#include "table/bind_arrays.h"
#include "table/numa.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {
namespace {

nb::object encode(const std::string& row_type, nb::handle rows) {
  const Floats from = Floats::of_rank(2, rows, "rows");
  const RowFormat format{row_type_named(row_type), static_cast<std::uint32_t>(from.shape(1))};
  const std::size_t n = from.shape(0);
  std::vector<std::uint8_t> encoded(n * format.bytes());
  {
    const nb::gil_scoped_release release;
    encode_rows(format, from.data(), n, reinterpret_cast<char*>(encoded.data()));
  }
  return to_numpy(std::move(encoded), {n, format.bytes()});
}

nb::object decode(const std::string& row_type, std::uint32_t dim, nb::handle encoded) {
  const RowFormat format{row_type_named(row_type), dim};
  const Bytes any = Bytes::of_rank(2, encoded, "encoded");
  const std::size_t n = any.shape(0);
  const Bytes from(encoded, "encoded", {n, format.bytes()});
  std::vector<float> rows(n * dim);
  {
    const nb::gil_scoped_release release;
    decode_rows(format, reinterpret_cast<const char*>(from.data()), n, rows.data());
  }
  return to_numpy(std::move(rows), {n, dim});
}

nb::object absent_rows(const std::string& kind, float scale, std::uint64_t seed, std::uint32_t dim, nb::handle ids) {
  const Ids id = Ids::of_rank(1, ids, "ids");
  const std::size_t n = id.size();
  std::vector<float> rows(n * dim);
  {
    const nb::gil_scoped_release release;
    const AbsentRows absent({initializer_of(kind, scale), seed}, {RowType::kFp32, dim});
    for (std::size_t i = 0; i < n; ++i) absent.write(id.data()[i], rows.data() + i * dim);
  }
  return to_numpy(std::move(rows), {n, dim});
}

}  // namespace

void bind_rows(nb::module_& module) {
  module.def("isa", [] { return isa_name(isa()); }, "Returns the instruction set that the loops of this module use.");
  module.def(
      "isas",
      [] {
        nb::list names;
        for (const Isa set : isas()) names.append(nb::str(isa_name(set)));
        return names;
      },
      nb::sig("def isas() -> list[str]"),
      "Returns the instruction sets that this processor and this build have, the best one last.");
  module.def(
      "numa_nodes",
      [] {
        nb::list nodes;
        for (const int node : numa_nodes()) nodes.append(nb::int_(node));
        return nodes;
      },
      nb::sig("def numa_nodes() -> list[int]"),
      "Returns the nodes that have memory; over more than one, tables are dealt out in turn.");
  module.def("set_isa", &set_isa, "name"_a,
             "Sets the instruction set, for tests: all sets give the same bits. Raises ValueError for one that is not\n"
             "available.");
  module.def(
      "row_bytes",
      [](const std::string& row_type, std::uint32_t dim) { return row_bytes(row_type_named(row_type), dim); },
      "row_type"_a, "dim"_a,
      "Returns the bytes of an encoded row of `dim` values. row_type: fp32, fp16, bf16 or int8.");
  module.def(
      "encode_rows", &encode, "row_type"_a, "rows"_a,
      nb::sig("def encode_rows(row_type: str, rows: numpy.typing.NDArray[numpy.float32]) -> "
              "numpy.typing.NDArray[numpy.uint8]"),
      "Encodes rows (n, dim) as (n, row_bytes). Raises ValueError for a value that is not finite, where int8 cannot\n"
      "hold it.");
  module.def("decode_rows", &decode, "row_type"_a, "dim"_a, "encoded"_a,
             nb::sig("def decode_rows(row_type: str, dim: int, encoded: numpy.typing.NDArray[numpy.uint8]) -> "
                     "numpy.typing.NDArray[numpy.float32]"),
             "Decodes encoded rows (n, row_bytes) to (n, dim).");
  module.def("absent_rows", &absent_rows, "kind"_a, "scale"_a, "seed"_a, "dim"_a, "ids"_a,
             nb::sig("def absent_rows(kind: str, scale: float, seed: int, dim: int, ids: "
                     "numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.float32]"),
             "Returns what ids (n,) without a row read as, (n, dim), before any rounding.");
}

}  // namespace emberline::bind
