// Cache and CacheTable in the module `_table`. Shapes are checked, then the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <vector>

#include "cache/cache_table.h"
#include "table/bind_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {

namespace {

std::uint32_t table_of(const Cache& cache, std::uint64_t table) {
  if (table >= cache.tables()) {
    fail("table: expected a number below " + std::to_string(cache.tables()) + ", got " + std::to_string(table));
  }
  return static_cast<std::uint32_t>(table);
}

nb::tuple points(const std::vector<CurvePoint>& curve) {
  std::vector<std::int64_t> rows;
  std::vector<double> rates;
  for (const CurvePoint& point : curve) {
    rows.push_back(static_cast<std::int64_t>(point.rows));
    rates.push_back(point.hit_rate);
  }
  return nb::make_tuple(to_numpy(std::move(rows)), to_numpy(std::move(rates)));
}

nb::dict stats_of(const Cache& cache) {
  CacheStats stats;
  {
    const nb::gil_scoped_release release;
    stats = cache.stats();
  }
  nb::dict out;
  out["lookups"] = stats.lookups;
  out["hits"] = stats.hits;
  out["inserted"] = stats.inserted;
  out["admitted"] = stats.admitted;
  out["rejected"] = stats.rejected;
  out["evicted"] = stats.evicted;
  out["assigned"] = stats.assigned;
  out["erased"] = stats.erased;
  out["changes"] = stats.changes;
  out["resizes"] = stats.resizes;
  return out;
}

void bind_whole_cache(nb::module_& module) {
  nb::class_<Cache>(
      module, "Cache",
      "Rows of one size, of many tables that compete for them by one policy. Readers take no lock.\n\n"
      "row_bytes: bytes of an encoded row. capacity_rows: rows in all. tables: how many tables there are.\n"
      "Raises ValueError that names the argument.")
      .def(nb::init<std::size_t, std::uint64_t, std::uint32_t>(), "row_bytes"_a, "capacity_rows"_a, "tables"_a)
      .def_prop_ro("row_bytes", &Cache::row_bytes)
      .def_prop_ro("capacity_rows", &Cache::capacity_rows)
      .def_prop_ro("tables", &Cache::tables)
      .def("size", &Cache::size, "Rows in the cache.")
      .def("memory_bytes", &Cache::memory_bytes, nb::call_guard<nb::gil_scoped_release>(),
           "Bytes of memory that index, rows, counts and estimates take.")
      .def_static("bytes_of", &Cache::bytes_of, "row_bytes"_a, "capacity_rows"_a, "tables"_a,
                  "Returns the most that memory_bytes() can be, once the cache is full.")
      .def_static("capacity_for", &Cache::capacity_for, "row_bytes"_a, "bytes"_a, "tables"_a,
                  "Returns the most rows that fit in so many bytes; 0 where none does.")
      .def(
          "rows_of", [](const Cache& cache, std::uint64_t table) { return cache.rows_of(table_of(cache, table)); },
          "table"_a, "Returns the rows of one table.")
      .def(
          "lookups_of",
          [](const Cache& cache, std::uint64_t table) { return cache.lookups_of(table_of(cache, table)); }, "table"_a,
          "Returns how many ids of one table were looked up.")
      .def(
          "hits_of", [](const Cache& cache, std::uint64_t table) { return cache.hits_of(table_of(cache, table)); },
          "table"_a, "Returns how many of these lookups were hits.")
      .def(
          "mark_complete", [](Cache& cache, std::uint64_t table) { cache.mark_complete(table_of(cache, table)); },
          "table"_a, nb::call_guard<nb::gil_scoped_release>(), "Marks a table as complete: all its rows are in.")
      .def(
          "clear_complete", [](Cache& cache, std::uint64_t table) { cache.clear_complete(table_of(cache, table)); },
          "table"_a, "Removes the mark.")
      .def(
          "is_complete",
          [](const Cache& cache, std::uint64_t table) { return cache.is_complete(table_of(cache, table)); }, "table"_a,
          "Returns whether the table is marked and no row of it was evicted since. Call it after a miss.")
      .def(
          "evicted_of",
          [](const Cache& cache, std::uint64_t table) { return cache.evicted_of(table_of(cache, table)); }, "table"_a,
          "Returns how many rows of a table were evicted since it was marked, or since the beginning.")
      .def(
          "resize", &Cache::resize, "capacity_rows"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Changes the capacity while readers and writers continue. The coldest rows are evicted first; on return the\n"
          "memory is freed.\n\n"
          "While it runs, the old and the new index are both held.")
      .def("absorb", &Cache::absorb, nb::call_guard<nb::gil_scoped_release>(),
           "Counts the uses that readers reported. Writes do so too; this is for a cache that is read for long without "
           "one.")
      .def(
          "hot_ids",
          [](const Cache& cache, std::size_t limit) {
            HotIds hot;
            {
              const nb::gil_scoped_release release;
              hot = cache.hot_ids(limit);
            }
            return nb::make_tuple(to_numpy(std::move(hot.tables)), to_numpy(std::move(hot.ids)),
                                  to_numpy(std::move(hot.counts)));
          },
          "limit"_a,
          nb::sig("def hot_ids(self, limit: int) -> "
                  "tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint8]]"),
          "Returns the hottest ids, hottest first, at most `limit`: tables (m,), ids (m,), logarithmic use counts "
          "(m,).")
      .def(
          "curve",
          [](const Cache& cache, std::optional<std::uint64_t> table) {
            const std::optional<std::uint32_t> of = table ? std::optional(table_of(cache, *table)) : std::nullopt;
            std::vector<CurvePoint> curve;
            {
              const nb::gil_scoped_release release;
              curve = of ? cache.curve_of(*of) : cache.curve();
            }
            return points(curve);
          },
          "table"_a.none() = nb::none(),
          nb::sig("def curve(self, table: int | None = None) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.float64]]"),
          "Returns the hit rate at growing numbers of rows, as estimated from recent lookups: rows (k,), hit rates "
          "(k,), 0\n"
          "rows first.\n\n"
          "The curve is that of all tables, or of one by its own rows. Empty until lookups worth 16 times the capacity "
          "were\n"
          "seen.")
      .def(
          "curve_parts",
          [](const Cache& cache) {
            std::pair<std::vector<CurvePoint>, std::vector<double>> found;
            {
              const nb::gil_scoped_release release;
              found = cache.curve_and_parts();
            }
            return points(found.first) + nb::make_tuple(to_numpy(std::move(found.second)));
          },
          nb::sig(
              "def curve_parts(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float64], "
              "numpy.typing.NDArray[numpy.float64]]"),
          "Returns `curve` of all tables, and the hit rates of eighths of the sampled ids, each alone.\n\n"
          "The arrays are rows (k,), hit rates (k,), hit rates (8 * k,), one eighth after the other.")
      .def(
          "predict",
          [](const Cache& cache, std::uint64_t capacity_rows,
             std::optional<std::uint64_t> table) -> std::optional<double> {
            const std::optional<std::uint32_t> of = table ? std::optional(table_of(cache, *table)) : std::nullopt;
            const nb::gil_scoped_release release;
            const double rate = of ? cache.predict_of(*of, capacity_rows) : cache.predict(capacity_rows);
            return rate < 0 ? std::nullopt : std::optional(rate);
          },
          "capacity_rows"_a, "table"_a.none() = nb::none(),
          "Predicts the hit rate of all lookups, or of one table's, at a capacity. None until enough was seen.")
      .def("stats", &stats_of, nb::sig("def stats(self) -> dict[str, int]"),
           "Returns counts since the beginning, by name.")
      .def("check_integrity", &Cache::check_integrity, nb::call_guard<nb::gil_scoped_release>(),
           "Raises RuntimeError that says which rule of the cache is broken. Slow; for tests.");
}

const std::uint8_t* counts_of(nb::handle freq, std::size_t n) {
  return freq.is_none() ? nullptr : ArrayView<const std::uint8_t>(freq, "freq", {n}).data();
}

nb::object exported(const CacheTable& table, std::uint64_t cursor, std::uint64_t limit, bool encoded) {
  if (limit == 0) fail("limit: expected 1 or more, got 0");
  CachedRows batch;
  std::vector<float> floats;
  {
    const nb::gil_scoped_release release;
    batch = table.export_batch(cursor, limit);
    if (!encoded) {
      floats.resize(batch.ids.size() * table.dim());
      decode_rows(table.format(), batch.rows.data(), batch.ids.size(), floats.data());
    }
  }
  const std::size_t n = batch.ids.size();
  if (!encoded) {
    return nb::make_tuple(batch.next_cursor, to_numpy(std::move(batch.ids)),
                          to_numpy(std::move(floats), {n, table.dim()}), to_numpy(std::move(batch.freq)));
  }
  std::vector<std::uint8_t> bytes(batch.rows.begin(), batch.rows.end());
  return nb::make_tuple(batch.next_cursor, to_numpy(std::move(batch.ids)),
                        to_numpy(std::move(bytes), {n, table.format().bytes()}), to_numpy(std::move(batch.freq)));
}

void bind_cache_table(nb::module_& module) {
  nb::class_<CacheTable, RowSource>(
      module, "CacheTable",
      "One table's share of a Cache, with the verbs of Table.\n\n"
      "table: its number in the cache. A row of dim values as row_type takes the cache's row_bytes. Rows are float32\n"
      "(n, dim), encoded on the way, or uint8 (n, row_bytes), encoded already.")
      .def(
          "__init__",
          [](CacheTable* self, Cache& cache, std::uint64_t table, std::uint32_t dim, const std::string& row_type) {
            new (self) CacheTable(cache, table_of(cache, table), RowFormat{row_type_named(row_type), dim});
          },
          "cache"_a, "table"_a, "dim"_a, "row_type"_a = "fp32", nb::keep_alive<1, 2>())
      .def_prop_ro("table", &CacheTable::table)
      .def_prop_ro("dim", &CacheTable::dim)
      .def_prop_ro("row_type", [](const CacheTable& table) { return row_type_name(table.format().type); })
      .def_prop_ro("row_bytes", [](const CacheTable& table) { return table.format().bytes(); })
      .def("size", &CacheTable::size, "Rows of this table.")
      .def(
          "find",
          [](const CacheTable& table, nb::handle ids, nb::handle out, nb::handle found) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<float> to(out, "out", {id.size(), table.dim()});
            const ArrayView<std::uint8_t> flags(found, "found", {id.size()});
            const nb::gil_scoped_release release;
            return table.find(id.data(), id.size(), to.data(), flags.data());
          },
          "ids"_a, "out"_a, "found"_a,
          nb::sig("def find(self, ids: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32], "
                  "found: numpy.typing.NDArray[numpy.uint8]) -> int"),
          "Looks up ids (n,); out (n, dim) and found (n,) are written in place, absent rows as zeros. Returns the "
          "number\n"
          "found.")
      .def(
          "insert_or_assign",
          [](CacheTable& table, nb::handle ids, nb::handle rows, nb::handle freq) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const RowsArgument row(rows, "rows", id.size(), table.dim(), table.format().bytes());
            const std::uint8_t* counts = counts_of(freq, id.size());
            const nb::gil_scoped_release release;
            table.insert_or_assign(id.data(), id.size(), row.input(), counts);
          },
          "ids"_a, "rows"_a, "freq"_a.none() = nb::none(),
          nb::sig("def insert_or_assign(self, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8], "
                  "freq: numpy.typing.NDArray[numpy.uint8] | None = None) -> None"),
          "Writes rows whether or not the ids are there; a full cache evicts its coldest rows.\n\n"
          "freq (n,): logarithmic counts. Raises CapacityExceeded when the cache has room for no row at all.")
      .def(
          "insert_and_evict",
          [](CacheTable& table, nb::handle ids, nb::handle rows, nb::handle freq) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const RowsArgument row(rows, "rows", id.size(), table.dim(), table.format().bytes());
            const std::uint8_t* counts = counts_of(freq, id.size());
            const nb::gil_scoped_release release;
            return table.insert_and_evict(id.data(), id.size(), row.input(), counts);
          },
          "ids"_a, "rows"_a, "freq"_a.none() = nb::none(),
          nb::sig("def insert_and_evict(self, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8], "
                  "freq: numpy.typing.NDArray[numpy.uint8] | None = None) -> int"),
          "Leaves existing rows; when full, admits an id that is hotter than the row it displaces.\n\n"
          "Counts one use of each absent id; freq (n,): known logarithmic counts of them, added to it. Returns the "
          "number\n"
          "admitted.")
      .def(
          "assign",
          [](CacheTable& table, nb::handle ids, nb::handle rows) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const RowsArgument row(rows, "rows", id.size(), table.dim(), table.format().bytes());
            const nb::gil_scoped_release release;
            return table.assign(id.data(), id.size(), row.input());
          },
          "ids"_a, "rows"_a,
          nb::sig("def assign(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.float32] "
                  "| numpy.typing.NDArray[numpy.uint8]) -> int"),
          "Replaces existing rows, leaves out the other ids. Returns the number replaced.")
      .def(
          "erase",
          [](CacheTable& table, nb::handle ids) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const nb::gil_scoped_release release;
            return table.erase(id.data(), id.size());
          },
          "ids"_a, nb::sig("def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int"),
          "Erases rows. Returns the number erased.")
      .def(
          "export_batch",
          [](const CacheTable& table, std::uint64_t cursor, std::uint64_t limit) {
            return exported(table, cursor, limit, false);
          },
          "cursor"_a, "limit"_a,
          nb::sig("def export_batch(self, cursor: int, limit: int) -> "
                  "tuple[int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32], "
                  "numpy.typing.NDArray[numpy.uint8]]"),
          "Exports at most `limit` rows from cursor on, 0 first.\n\n"
          "Returns next cursor (-1 at the end), ids, rows (m, dim), freq. Every row comes once if nothing is inserted "
          "or\n"
          "resized between the calls.")
      .def(
          "export_encoded",
          [](const CacheTable& table, std::uint64_t cursor, std::uint64_t limit) {
            return exported(table, cursor, limit, true);
          },
          "cursor"_a, "limit"_a,
          nb::sig("def export_encoded(self, cursor: int, limit: int) -> "
                  "tuple[int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], "
                  "numpy.typing.NDArray[numpy.uint8]]"),
          "Exports as export_batch does, with the rows as they are encoded: uint8 (m, row_bytes).");
}

}  // namespace

void bind_cache(nb::module_& module) {
  bind_whole_cache(module);
  bind_cache_table(module);
}

}  // namespace emberline::bind
