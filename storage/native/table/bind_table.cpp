// The module `_table`: Table and Lookup; the other classes stand in bind_*.cpp. Shapes are checked, then the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "table/bind_arrays.h"
#include "table/lookup.h"
#include "table/table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {

void bind_cache(nb::module_& module);
void bind_overlay(nb::module_& module);
void bind_rows(nb::module_& module);
void bind_training(nb::module_& module);

namespace {

void bind_tables(nb::module_& module) {
  nb::exception<CapacityExceeded>(module, "CapacityExceeded", PyExc_RuntimeError);

  nb::class_<RowSource>(module, "RowSource", "Where a Lookup reads the rows of one table: a Table, or a table's share of a cache.");

  nb::class_<Table, RowSource>(module, "Table",
                    "Rows of one embedding table in DRAM, by int64 id. Readers take no lock; one writer at a time.\n\n"
                    "dim: values of a row. extra: float32 values behind them, of fp32 rows. capacity_rows: 0 grows without bound.\n"
                    "row_type: how rows are held, fp32, fp16, bf16 or int8. Rows given as float32 are encoded, rows given as uint8\n"
                    "(n, row_bytes) are taken as encoded already; for fp32 these are the same bytes.\n"
                    "Arrays are C-contiguous and of the exact dtype. Raises TypeError or ValueError that names the argument.")
      .def(
          "__init__",
          [](Table* self, std::uint32_t dim, std::uint32_t extra, std::uint64_t capacity_rows, const std::string& row_type) {
            new (self) Table(dim, extra, capacity_rows, row_type_named(row_type));
          },
          "dim"_a, nb::kw_only(), "extra"_a = 0, "capacity_rows"_a = 0, "row_type"_a = "fp32")
      .def_prop_ro("dim", &Table::dim)
      .def_prop_ro("extra", &Table::extra)
      .def_prop_ro("row_type", [](const Table& table) { return row_type_name(table.format().type); })
      .def_prop_ro("row_bytes", &Table::stride, "Bytes of an encoded row, `extra` included.")
      .def_prop_ro("capacity_rows", &Table::capacity_rows)
      .def("size", &Table::size, "Rows in the table.")
      .def("memory_bytes", &Table::memory_bytes, nb::call_guard<nb::gil_scoped_release>(),
           "Bytes of memory that index, rows and counters take.")
      .def(
          "find",
          [](const Table& table, nb::handle ids, nb::handle out, nb::handle found) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<float> to(out, "out", {id.size(), table.dim()});
            const ArrayView<std::uint8_t> flags(found, "found", {id.size()});
            const nb::gil_scoped_release release;
            return table.find(id.data(), id.size(), to.data(), flags.data());
          },
          "ids"_a, "out"_a, "found"_a,
          nb::sig("def find(self, ids: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32], found: numpy.typing.NDArray[numpy.uint8]) -> int"),
          "ids (n,), out (n, dim) and found (n,) written in place; absent rows are zeros. Returns the number found.")
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
          nb::sig("def insert_or_assign(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8], "
                  "freq: numpy.typing.NDArray[numpy.uint8] | None = None) -> None"),
          "ids (n,), rows (n, dim + extra) or encoded, freq (n,) logarithmic use counts as export_batch gives them.\n\n"
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
          nb::sig("def insert_and_evict(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8]) -> int"),
          "As a cache: leaves rows that are there; when full, admits an id that is hotter than the row it displaces.\n\n"
          "Returns the number admitted.")
      .def(
          "assign",
          [](Table& table, nb::handle ids, nb::handle rows) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const RowsArgument row(rows, "rows", id.size(), std::size_t{table.dim()} + table.extra(), table.stride());
            const nb::gil_scoped_release release;
            return table.assign(id.data(), id.size(), row.input());
          },
          "ids"_a, "rows"_a, nb::sig("def assign(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8]) -> int"),
          "Replaces rows that are there, leaves out the others. Returns the number replaced.")
      .def(
          "erase",
          [](Table& table, nb::handle ids) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const nb::gil_scoped_release release;
            return table.erase(id.data(), id.size());
          },
          "ids"_a, nb::sig("def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int"), "Returns the number erased.")
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
                  "tuple[int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint8]]"),
          "At most `limit` rows from cursor on, 0 first: next cursor (-1 at the end), ids, rows (m, dim + extra), freq.\n\n"
          "Every row comes once if nothing is inserted between the calls.")
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
                                  to_numpy(std::move(batch.encoded), {n, table.stride()}), to_numpy(std::move(batch.freq)));
          },
          "cursor"_a, "limit"_a,
          nb::sig("def export_encoded(self, cursor: int, limit: int) -> "
                  "tuple[int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint8]]"),
          "As export_batch, with the rows as they are held: uint8 (m, row_bytes).")
      .def("check_integrity", &Table::check_integrity, nb::call_guard<nb::gil_scoped_release>(),
           "Raises RuntimeError that says which rule of the table is broken. Slow; for tests.");
}

// Keeps the tables and overlays, and between begin and finish the caller's arrays.
struct PyLookup {
  std::vector<nb::object> owners;
  Lookup lookup;
  std::vector<nb::object> held;
  bool begun = false;

  PyLookup(std::vector<nb::object> kept, std::vector<const RowSource*> tables, std::vector<LookupFeature> features,
           std::vector<const OverlayTable*> overlays)
      : owners(std::move(kept)), lookup(std::move(tables), std::move(features), std::move(overlays)) {}

  std::size_t table_index(std::size_t table) const {
    if (table >= lookup.table_count()) {
      fail("table: expected a number below " + std::to_string(lookup.table_count()) + ", got " + std::to_string(table));
    }
    return table;
  }
};

// The native objects of a list; `owners` keeps them alive.
template <class T>
std::vector<const T*> pointers_of(const nb::list& list, const std::string& name, std::vector<nb::object>& owners) {
  std::vector<const T*> pointers;
  for (nb::handle object : list) {
    const T* pointer = nullptr;
    if (!nb::try_cast<const T*>(object, pointer, false) || pointer == nullptr) {
      const std::string expected = nb::cast<std::string>(nb::type<T>().attr("__name__"));
      throw nb::type_error((name + ": expected " + expected + ", got " + describe(object)).c_str());
    }
    owners.push_back(nb::borrow(object));
    pointers.push_back(pointer);
  }
  return pointers;
}

void make_lookup(PyLookup* self, const nb::list& tables,
                 const std::vector<std::tuple<std::uint32_t, int, std::uint32_t>>& features,
                 const std::optional<nb::list>& overlays) {
  std::vector<nb::object> owners;
  std::vector<const RowSource*> pointers = pointers_of<RowSource>(tables, "tables", owners);
  std::vector<const OverlayTable*> over;
  if (overlays) over = pointers_of<OverlayTable>(*overlays, "overlays", owners);
  std::vector<LookupFeature> plan;
  for (std::size_t f = 0; f < features.size(); ++f) {
    const auto& [table, pooling, length] = features[f];
    const std::string name = "features[" + std::to_string(f) + "]: ";
    if (pooling < 0 || pooling > 3) fail(name + "pooling is 0 sum, 1 mean, 2 none or 3 weighted, got " + std::to_string(pooling));
    if (pooling == 2 && length == 0) fail(name + "an unpooled feature needs a length of 1 or more");
    plan.push_back({table, static_cast<Pooling>(pooling), length});
  }
  new (self) PyLookup(std::move(owners), std::move(pointers), std::move(plan), std::move(over));
}

std::size_t begin(PyLookup& self, std::size_t batch, const nb::list& values, const nb::list& offsets, const nb::list& outputs,
                  const nb::list& masks, std::uint64_t mask, const std::optional<nb::list>& weights) {
  const std::vector<LookupFeature>& features = self.lookup.features();
  for (const auto& [name, list] : {std::pair{"values", &values}, {"offsets", &offsets}, {"outputs", &outputs}, {"masks", &masks}}) {
    if (list->size() != features.size()) {
      fail(std::string(name) + ": expected " + std::to_string(features.size()) + " entries, one a feature, got " +
           std::to_string(list->size()));
    }
  }
  if (weights && weights->size() != features.size()) {
    fail("weights: expected " + std::to_string(features.size()) + " entries, one a feature, got " + std::to_string(weights->size()));
  }
  self.begun = false;
  self.held.clear();
  std::vector<LookupInput> inputs;
  inputs.reserve(features.size());
  for (std::size_t f = 0; f < features.size(); ++f) {
    const std::string at = "[" + std::to_string(f) + "]";
    const std::size_t dim = self.lookup.format(features[f].table).dim;
    const Ids ids = Ids::of_rank(1, values[f], "values" + at);
    const Ids ends(offsets[f], "offsets" + at, {batch + 1});
    const bool pooled = features[f].pooling != Pooling::kNone;
    const std::size_t length = features[f].length;
    const ArrayView<float> output(outputs[f], "outputs" + at,
                                  pooled ? std::vector<std::size_t>{batch, dim} : std::vector<std::size_t>{batch, length, dim});
    std::uint8_t* found = nullptr;
    if (!pooled) {
      found = ArrayView<std::uint8_t>(masks[f], "masks" + at, {batch, length}).data();
    } else if (!masks[f].is_none()) {
      fail("masks" + at + ": a pooled feature has no mask, expected None");
    }
    const float* factors = nullptr;
    const nb::object given = weights ? nb::object((*weights)[f]) : nb::none();
    if (features[f].pooling == Pooling::kWeighted) {
      factors = Floats(given, "weights" + at, {ids.size()}).data();
      self.held.push_back(given);
    } else if (!given.is_none()) {
      fail("weights" + at + ": only a weighted feature takes them, expected None");
    }
    inputs.push_back({ids.data(), ids.size(), ends.data(), output.data(), found, factors});
    for (nb::handle kept : {nb::handle(outputs[f]), nb::handle(masks[f])}) self.held.push_back(nb::borrow(kept));
  }
  std::size_t missing = 0;
  {
    const nb::gil_scoped_release release;
    missing = self.lookup.begin(batch, inputs, mask);
  }
  self.begun = true;
  return missing;
}

void bind_lookup(nb::module_& module) {
  nb::class_<PyLookup>(module, "Lookup",
                       "The lookups of one lane over shared tables, in one call for all features. Not thread-safe.\n\n"
                       "features: (table index, pooling 0 sum 1 mean 2 none 3 weighted, length of an unpooled one), one each.\n"
                       "overlays: one a table, or None. Calls go begin, supply for each table with missing ids, finish.")
      .def("__init__", &make_lookup, "tables"_a, "features"_a, "overlays"_a = nb::none(),
           nb::sig("def __init__(self, tables: list[RowSource], features: list[tuple[int, int, int]], overlays: list[OverlayTable] | None = None) -> None"))
      .def("begin", &begin, "batch"_a, "values"_a, "offsets"_a, "outputs"_a, "masks"_a, "mask"_a = 0, "weights"_a = nb::none(),
           nb::sig("def begin(self, batch: int, values: list[numpy.typing.NDArray[numpy.int64]], offsets: list[numpy.typing.NDArray[numpy.int64]], "
                   "outputs: list[numpy.typing.NDArray[numpy.float32]], masks: list[numpy.typing.NDArray[numpy.uint8] | None], mask: int = 0, weights: list[numpy.typing.NDArray[numpy.float32] | None] | None = None) -> int"),
           "values[f] (N,), offsets[f] (B + 1,); outputs[f] (B, dim), or (B, length, dim) with masks[f] (B, length), written\n"
           "in place, by finish where rows are missing. mask: bit i makes overlay i visible. weights[f] (N,) of a weighted\n"
           "feature, else None.\n\n"
           "Returns how many distinct ids are missing.")
      .def(
          "missing",
          [](const PyLookup& self, std::size_t table) {
            return to_numpy(std::vector<std::int64_t>(self.lookup.missing(self.table_index(table))));
          },
          "table"_a, nb::sig("def missing(self, table: int) -> numpy.typing.NDArray[numpy.int64]"), "The missing ids of a table, each once.")
      .def(
          "missing_sources",
          [](const PyLookup& self, std::size_t table) {
            return to_numpy(std::vector<std::uint8_t>(self.lookup.missing_sources(self.table_index(table))));
          },
          "table"_a, nb::sig("def missing_sources(self, table: int) -> numpy.typing.NDArray[numpy.uint8]"),
          "Where the rows of missing(table) lie: the overlay that spilled it, or 255 for the base. An overlay may be merged\n"
          "since: what it no longer has, the base has.")
      .def(
          "supply",
          [](PyLookup& self, std::size_t table, nb::handle rows, nb::handle state) {
            const std::size_t m = self.lookup.missing(self.table_index(table)).size();
            const RowFormat format = self.lookup.format(table);
            const RowsArgument row(rows, "rows", m, format.dim, format.bytes());
            const ArrayView<const std::uint8_t> states(state, "state", {m});
            self.lookup.supply(table, row.input(), states.data());
          },
          "table"_a, "rows"_a, "state"_a,
          nb::sig("def supply(self, table: int, rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8], state: numpy.typing.NDArray[numpy.uint8]) -> None"),
          "rows (m, dim), or encoded (m, row_bytes), and state (m,) for the ids of missing(table), copied: 0 absent,\n"
          "1 found, 2 unresolved.")
      .def(
          "finish",
          [](PyLookup& self) {
            if (!self.begun) fail("finish: call begin first");
            LookupTotals totals;
            {
              const nb::gil_scoped_release release;
              totals = self.lookup.finish();
            }
            self.begun = false;
            self.held.clear();
            return std::make_tuple(totals.dram, totals.supplied, totals.absent, totals.unresolved, totals.overlay);
          },
          "Completes the outputs. Returns occurrences of ids: answered by the tables, supplied, absent, unresolved,\n"
          "answered by overlays. What an overlay removed is absent.")
      .def(
          "table_totals",
          [](const PyLookup& self) {
            const std::vector<LookupTotals>& totals = self.lookup.table_totals();
            std::vector<std::uint64_t> flat;
            for (const LookupTotals& of : totals) {
              flat.insert(flat.end(), {of.dram, of.supplied, of.absent, of.unresolved, of.overlay});
            }
            return to_numpy(std::move(flat), {totals.size(), 5});
          },
          nb::sig("def table_totals(self) -> numpy.typing.NDArray[numpy.uint64]"),
          "What the last finish gave, by table: (T, 5), columns as finish returns them.");
}

}  // namespace
}  // namespace emberline::bind

NB_MODULE(_table, module) {
  module.doc() = "Embedding tables in DRAM, lookups over them, and tables that train. The core is storage/native/table.";
  emberline::bind::bind_rows(module);
  emberline::bind::bind_tables(module);
  emberline::bind::bind_cache(module);
  emberline::bind::bind_overlay(module);
  emberline::bind::bind_lookup(module);
  emberline::bind::bind_training(module);
}
