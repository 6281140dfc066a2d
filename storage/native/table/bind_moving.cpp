// Rows that are copied, checked and summed in bulk, for Python.
#include <nanobind/nanobind.h>

#include <algorithm>

#include "rows/moving.h"
#include "table/bind_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {
namespace {

nb::object found(std::size_t row, std::size_t n) {
  if (row == n) return nb::none();
  return nb::int_(row);
}

void check_rows(const Ids& rows, const char* name, std::size_t count) {
  const std::int64_t* begin = rows.data();
  const std::int64_t* end = begin + rows.size();
  const auto last = static_cast<std::int64_t>(count);
  if (std::any_of(begin, end, [last](std::int64_t row) { return row < 0 || row >= last; })) {
    fail(std::string(name) + ": expected row numbers below " + std::to_string(count));
  }
}

nb::object move(nb::handle source, nb::handle places, nb::handle out, nb::handle targets) {
  const Floats from = Floats::of_rank(2, source, "source");
  const ArrayView<float> to = ArrayView<float>::of_rank(2, out, "out");
  const Ids of = Ids::of_rank(1, places, "places");
  const std::size_t n = of.size();
  const std::size_t dim = from.shape(1);
  const Ids into(targets, "targets", {n});
  if (to.shape(1) != dim) {
    fail("out: expected rows of " + std::to_string(dim) + " values, got " + std::to_string(to.shape(1)));
  }
  std::size_t bad = n;
  {
    const nb::gil_scoped_release release;
    check_rows(of, "places", from.shape(0));
    check_rows(into, "targets", to.shape(0));
    bad = move_rows(from.data(), of.data(), to.data(), into.data(), n, dim);
  }
  return found(bad, n);
}

std::uint64_t fingerprint(nb::handle ids, nb::handle rows, nb::handle keys) {
  const Ids id = Ids::of_rank(1, ids, "ids");
  const auto key = ArrayView<const std::uint64_t>::of_rank(1, keys, "keys");
  const Bytes row(rows, "rows", {id.size(), key.size() * 4});
  const nb::gil_scoped_release release;
  return rows_fingerprint(id.data(), reinterpret_cast<const char*>(row.data()), id.size(), key.data(), key.size());
}

nb::object first_bad(nb::handle rows) {
  const Floats row = Floats::of_rank(2, rows, "rows");
  std::size_t bad = 0;
  {
    const nb::gil_scoped_release release;
    bad = first_not_finite(row.data(), row.shape(0), row.shape(1));
  }
  return found(bad, row.shape(0));
}

nb::tuple kinds_not_finite(nb::handle values, bool bf16) {
  NotFinite kinds;
  if (bf16) {
    const auto words = ArrayView<const std::uint16_t>::of_rank(1, values, "values");
    const nb::gil_scoped_release release;
    kinds = not_finite_bf16(words.data(), words.size());
  } else {
    const Floats floats = Floats::of_rank(1, values, "values");
    const nb::gil_scoped_release release;
    kinds = not_finite(floats.data(), floats.size());
  }
  return nb::make_tuple(kinds.nan, kinds.infinity);
}

}  // namespace

void bind_moving(nb::module_& module) {
  module.def("move_rows", &move, "source"_a, "places"_a, "out"_a, "targets"_a,
             nb::sig("def move_rows(source: numpy.typing.NDArray[numpy.float32], places: "
                     "numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32], targets: "
                     "numpy.typing.NDArray[numpy.int64]) -> int | None"),
             "Sets out[targets[i]] = source[places[i]] for rows (dim). Returns the first i whose row holds NaN or\n"
             "infinity, None without one. Raises ValueError for a row number that is not there.");
  module.def("rows_fingerprint", &fingerprint, "ids"_a, "rows"_a, "keys"_a,
             nb::sig("def rows_fingerprint(ids: numpy.typing.NDArray[numpy.int64], rows: "
                     "numpy.typing.NDArray[numpy.uint8], keys: numpy.typing.NDArray[numpy.uint64]) -> int"),
             "Returns the sum of the rows' terms modulo 2^64, as storage.checkpoint.fingerprint defines it. rows:\n"
             "(n, 4 * words) as they are stored. keys: (words,).");
  module.def("first_not_finite", &first_bad, "rows"_a,
             nb::sig("def first_not_finite(rows: numpy.typing.NDArray[numpy.float32]) -> int | None"),
             "Returns the index of the first row (n, dim) that holds NaN or infinity; None when none does.");
  module.def("not_finite", &kinds_not_finite, "values"_a, "bf16"_a,
             nb::sig("def not_finite(values: numpy.typing.NDArray[numpy.float32 | numpy.uint16], bf16: bool) -> "
                     "tuple[bool, bool]"),
             "Returns whether values (n,) hold NaN, and infinity. bf16: they are the bits of bfloat16 as uint16.");
}

}  // namespace emberline::bind
