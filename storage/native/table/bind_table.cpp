// The module `_table`, and Table; the other classes stand in bind_*.cpp. Shapes are checked, then the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "table/bind_arrays.h"
#include "table/table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {

void bind_cache(nb::module_& module);
void bind_gpu(nb::module_& module);
void bind_lookup(nb::module_& module);
void bind_moving(nb::module_& module);
void bind_overlay(nb::module_& module);
void bind_rows(nb::module_& module);
void bind_training(nb::module_& module);

namespace {

void bind_tables(nb::module_& module) {
  nb::exception<CapacityExceeded>(module, "CapacityExceeded", PyExc_RuntimeError);

  nb::class_<RowSource>(module, "RowSource",
                        "The rows of one table that a Lookup reads: a Table, or a table's share of a cache.");

  nb::class_<Table, RowSource>(
      module, "Table",
      "Rows of one embedding table in DRAM, by int64 id. Readers take no lock; one writer at a time.\n\n"
      "dim: values of a row. extra: float32 values behind them, of fp32 rows. capacity_rows: 0 grows without bound.\n"
      "row_type: encoding of the rows, fp32, fp16, bf16 or int8. Rows given as float32 are encoded, rows given as "
      "uint8\n"
      "(n, row_bytes) are taken as encoded already; for fp32 these are the same bytes. Arrays are C-contiguous and of\n"
      "the exact dtype. Raises TypeError or ValueError that names the argument.")
      .def(
          "__init__",
          [](Table* self, std::uint32_t dim, std::uint32_t extra, std::uint64_t capacity_rows,
             const std::string& row_type) { new (self) Table(dim, extra, capacity_rows, row_type_named(row_type)); },
          "dim"_a, nb::kw_only(), "extra"_a = 0, "capacity_rows"_a = 0, "row_type"_a = "fp32")
      .def_prop_ro("dim", &Table::dim)
      .def_prop_ro("extra", &Table::extra)
      .def_prop_ro("row_type", [](const Table& table) { return row_type_name(table.format().type); })
      .def_prop_ro("row_bytes", &Table::stride, "Bytes of an encoded row, `extra` included.")
      .def_prop_ro("capacity_rows", &Table::capacity_rows)
      .def("size", &Table::size, "Returns the number of rows in the table.")
      .def("memory_bytes", &Table::memory_bytes, nb::call_guard<nb::gil_scoped_release>(),
           "Bytes of memory that index, rows and counters take.")
      .def(
          "find",
          [](const Table& table, nb::handle ids, nb::handle out, nb::handle found, std::size_t threads) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<float> to(out, "out", {id.size(), table.dim()});
            const ArrayView<std::uint8_t> flags(found, "found", {id.size()});
            const nb::gil_scoped_release release;
            return table.find(id.data(), id.size(), to.data(), flags.data(), threads);
          },
          "ids"_a, "out"_a, "found"_a, "threads"_a = 1,
          nb::sig("def find(self, ids: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32], "
                  "found: numpy.typing.NDArray[numpy.uint8], threads: int = 1) -> int"),
          "Looks up ids (n,); out (n, dim) and found (n,) are written in place, absent rows as zeros. Returns the "
          "number\n"
          "found.\n\n"
          "threads: number of threads at most, 1 to 64; one for each 2,048 ids.")
      .def(
          "insert_or_assign",
          [](Table& table, nb::handle ids, nb::handle rows, nb::handle freq) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const RowsArgument row(rows, "rows", id.size(), std::size_t{table.dim()} + table.extra(), table.stride());
            const std::uint8_t* counts = nullptr;
            if (!freq.is_none()) counts = ArrayView<const std::uint8_t>(freq, "freq", {id.size()}).data();
            const nb::gil_scoped_release release;
            table.insert_or_assign(id.data(), id.size(), row.input(), counts);
          },
          "ids"_a, "rows"_a, "freq"_a.none() = nb::none(),
          nb::sig("def insert_or_assign(self, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8], "
                  "freq: numpy.typing.NDArray[numpy.uint8] | None = None) -> None"),
          "Writes rows (n, dim + extra) or encoded of ids (n,), with freq (n,), logarithmic use counts as in "
          "export_batch.\n\n"
          "Raises CapacityExceeded at the first id that does not fit; those before it are in.")
      .def(
          "insert_and_evict",
          [](Table& table, nb::handle ids, nb::handle rows) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const RowsArgument row(rows, "rows", id.size(), std::size_t{table.dim()} + table.extra(), table.stride());
            const nb::gil_scoped_release release;
            return table.insert_and_evict(id.data(), id.size(), row.input());
          },
          "ids"_a, "rows"_a,
          nb::sig("def insert_and_evict(self, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8]) -> int"),
          "Inserts rows as a cache: leaves existing rows; when full, admits an id that is hotter than the row it "
          "displaces.\n\n"
          "Returns the number admitted.")
      .def(
          "assign",
          [](Table& table, nb::handle ids, nb::handle rows) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const RowsArgument row(rows, "rows", id.size(), std::size_t{table.dim()} + table.extra(), table.stride());
            const nb::gil_scoped_release release;
            return table.assign(id.data(), id.size(), row.input());
          },
          "ids"_a, "rows"_a,
          nb::sig("def assign(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.float32] "
                  "| numpy.typing.NDArray[numpy.uint8]) -> int"),
          "Replaces existing rows, leaves out the other ids. Returns the number replaced.")
      .def(
          "erase",
          [](Table& table, nb::handle ids) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const nb::gil_scoped_release release;
            return table.erase(id.data(), id.size());
          },
          "ids"_a, nb::sig("def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int"),
          "Erases rows. Returns the number erased.")
      .def("reserve", &Table::reserve, "rows"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Makes room in the index for this many rows in all.")
      .def(
          "export_batch",
          [](const Table& table, std::uint64_t cursor, std::uint64_t limit) {
            if (limit == 0) fail("limit: expected 1 or more, got 0");
            ExportedRows batch;
            {
              const nb::gil_scoped_release release;
              batch = table.export_batch(cursor, limit);
            }
            const std::size_t n = batch.ids.size();
            return nb::make_tuple(batch.next_cursor, to_numpy(std::move(batch.ids)),
                                  to_numpy(std::move(batch.rows), {n, std::size_t{table.dim()} + table.extra()}),
                                  to_numpy(std::move(batch.freq)));
          },
          "cursor"_a, "limit"_a,
          nb::sig("def export_batch(self, cursor: int, limit: int) -> "
                  "tuple[int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32], "
                  "numpy.typing.NDArray[numpy.uint8]]"),
          "Exports at most `limit` rows from cursor on, 0 first.\n\n"
          "Returns next cursor (-1 at the end), ids, rows (m, dim + extra), freq. Every row comes once if nothing is\n"
          "inserted between the calls.")
      .def(
          "export_encoded",
          [](const Table& table, std::uint64_t cursor, std::uint64_t limit) {
            if (limit == 0) fail("limit: expected 1 or more, got 0");
            ExportedRows batch;
            {
              const nb::gil_scoped_release release;
              batch = table.export_encoded(cursor, limit);
            }
            const std::size_t n = batch.ids.size();
            return nb::make_tuple(batch.next_cursor, to_numpy(std::move(batch.ids)),
                                  to_numpy(std::move(batch.encoded), {n, table.stride()}),
                                  to_numpy(std::move(batch.freq)));
          },
          "cursor"_a, "limit"_a,
          nb::sig("def export_encoded(self, cursor: int, limit: int) -> "
                  "tuple[int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], "
                  "numpy.typing.NDArray[numpy.uint8]]"),
          "Exports as export_batch does, with the rows as they are encoded: uint8 (m, row_bytes).")
      .def("check_integrity", &Table::check_integrity, nb::call_guard<nb::gil_scoped_release>(),
           "Raises RuntimeError that says which rule of the table is broken. Slow; for tests.");
}

}  // namespace
}  // namespace emberline::bind

NB_MODULE(_table, module) {
  // Objects that live until the interpreter ends, such as those of globals, are no leak that a user should read of.
  nb::set_leak_warnings(false);
  module.doc() =
      "Embedding tables in DRAM, lookups over them, and tables that train. The core is storage/native/table.";
  emberline::bind::bind_rows(module);
  emberline::bind::bind_moving(module);
  emberline::bind::bind_tables(module);
  emberline::bind::bind_cache(module);
  emberline::bind::bind_gpu(module);
  emberline::bind::bind_overlay(module);
  emberline::bind::bind_lookup(module);
  emberline::bind::bind_training(module);
}
