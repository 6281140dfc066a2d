// GpuCache in the module `_table`. Shapes are checked, then the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "gpu/gpu_cache.h"
#include "gpu/parts.h"
#include "table/bind_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {

namespace {

// A set's lists as arrays, made once. row_data, staged_data: of rows and staged, whose rows lie `stride` bytes apart.
struct GpuSetArrays {
  nb::object rows, staged, emptied, ids, words;
  const std::int64_t* row_data;
  const std::uint8_t* staged_data;
  std::size_t count, row_bytes, stride;
};

nb::object pairs(std::vector<std::int64_t>&& list) {
  const std::size_t n = list.size() / 2;
  return to_numpy(std::move(list), {n, 2});
}

std::uint32_t table_of(const GpuCache& cache, std::uint64_t table, const char* name = "table") {
  if (table >= cache.tables()) {
    fail(std::string(name) + ": expected a number below " + std::to_string(cache.tables()) + ", got " +
         std::to_string(table));
  }
  return static_cast<std::uint32_t>(table);
}

std::uint32_t base_tables_of(const GpuCache& cache, std::uint64_t base_tables) {
  if (base_tables < 1 || base_tables > cache.tables()) {
    fail("base_tables: expected 1 to " + std::to_string(cache.tables()) + ", got " + std::to_string(base_tables));
  }
  return static_cast<std::uint32_t>(base_tables);
}

std::uint32_t parts_from(std::uint64_t parts) {
  if (parts < 1 || parts > 255) fail("parts: expected 1 to 255, got " + std::to_string(parts));
  return static_cast<std::uint32_t>(parts);
}

std::uint32_t part_from(std::uint64_t part, std::uint64_t parts) {
  if (part >= parts) fail("part: expected a number below " + std::to_string(parts) + ", got " + std::to_string(part));
  return static_cast<std::uint32_t>(part);
}

Bytes rows_of(const GpuCache& cache, nb::handle rows, std::size_t n) {
  return Bytes(rows, "rows", {n, cache.row_bytes()});
}

// Null where freq is None. The array stays the caller's.
const std::uint8_t* freq_of(nb::handle freq, std::size_t n) {
  return freq.is_none() ? nullptr : Bytes(freq, "freq", {n}).data();
}

// A Python object that the core keeps.
std::shared_ptr<void> kept(nb::handle value) {
  return {value.inc_ref().ptr(), [](void* object) {
            const nb::gil_scoped_acquire acquire;
            Py_DECREF(static_cast<PyObject*>(object));
          }};
}

nb::object staged_of(GpuSet& set, std::size_t count, std::size_t row_bytes) {
  const std::size_t shape[] = {count, row_bytes};
  if (set.lent == nullptr) return to_numpy(std::move(set.staged), {shape[0], shape[1]});
  const nb::handle owner(static_cast<PyObject*>(set.owner.get()));
  const std::int64_t strides[] = {static_cast<std::int64_t>(set.stride), 1};
  return nb::cast(nb::ndarray<nb::numpy, const std::uint8_t>(set.lent, 2, shape, owner, strides));
}

GpuSetArrays arrays_of(GpuSet&& set, std::size_t row_bytes) {
  const std::size_t count = set.rows.size() / 2;
  const std::int64_t* const rows = set.rows.data();
  const std::uint8_t* const staged = set.lent != nullptr ? set.lent : set.staged.data();
  const std::size_t stride = set.lent != nullptr ? set.stride : row_bytes;
  return {pairs(std::move(set.rows)),
          staged_of(set, count, row_bytes),
          pairs(std::move(set.emptied)),
          pairs(std::move(set.ids)),
          pairs(std::move(set.words)),
          rows,
          staged,
          count,
          row_bytes,
          stride};
}

// Implements GpuSet.put_rows.
void put_rows(const GpuSetArrays& set, std::size_t start, const ArrayView<std::int64_t>& entries,
              const ArrayView<std::uint8_t>& rows, std::size_t threads) {
  const std::size_t stride = rows.shape(1);
  in_parts(entries.size(), threads, [&](std::size_t, std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      const std::int64_t* const entry = set.row_data + 2 * (start + i);
      entries.data()[2 * i] = entry[0];
      entries.data()[2 * i + 1] = static_cast<std::int64_t>(i);
      std::uint8_t* const row = rows.data() + i * stride;
      std::memcpy(row, set.staged_data + static_cast<std::size_t>(entry[1]) * set.stride, set.row_bytes);
      std::memset(row + set.row_bytes, 0, stride - set.row_bytes);
    }
  });
}

// Calls fill(flags), without the GIL, and gives the (n,) flags to numpy.
template <class Fill>
nb::object flags_of(std::size_t n, const Fill& fill) {
  auto flags = std::make_unique<bool[]>(n);
  {
    const nb::gil_scoped_release release;
    fill(flags.get());
  }
  bool* const kept = flags.release();
  const nb::capsule owner(kept, [](void* pointer) noexcept { delete[] static_cast<bool*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, bool>(kept, {n}, owner));
}

nb::dict stats_of(const GpuCache& cache) {
  const GpuStats& stats = cache.stats();
  nb::dict out;
  out["inserted"] = stats.inserted;
  out["admitted"] = stats.admitted;
  out["rejected"] = stats.rejected;
  out["evicted"] = stats.evicted;
  out["assigned"] = stats.assigned;
  out["erased"] = stats.erased;
  return out;
}

void bind_gpu_set(nb::module_& module) {
  nb::class_<GpuSetArrays>(module, "GpuSet",
                           "Changes for a GPU, as cuda/publish.cuh orders them: rows, emptied, grace, ids, words.\n\n"
                           "A place comes at most once in a list.")
      .def_prop_ro(
          "rows", [](const GpuSetArrays& set) { return set.rows; },
          nb::for_getter(nb::sig("def rows(self) -> numpy.typing.NDArray[numpy.int64]")),
          "Entries (r, 2): slot, number in staged.")
      .def_prop_ro(
          "staged", [](const GpuSetArrays& set) { return set.staged; },
          nb::for_getter(nb::sig("def staged(self) -> numpy.typing.NDArray[numpy.uint8]")),
          "Staged rows (r, row_bytes).")
      .def_prop_ro(
          "emptied", [](const GpuSetArrays& set) { return set.emptied; },
          nb::for_getter(nb::sig("def emptied(self) -> numpy.typing.NDArray[numpy.int64]")),
          "Entries (m, 2): bucket * 8 + 4 + place, word. Places that lose their owner; words of owners whose row "
          "changed.")
      .def_prop_ro(
          "ids", [](const GpuSetArrays& set) { return set.ids; },
          nb::for_getter(nb::sig("def ids(self) -> numpy.typing.NDArray[numpy.int64]")),
          "Entries (k, 2): bucket * 8 + place, id, of new owners.")
      .def_prop_ro(
          "words", [](const GpuSetArrays& set) { return set.words; },
          nb::for_getter(nb::sig("def words(self) -> numpy.typing.NDArray[numpy.int64]")),
          "Entries (k, 2): bucket * 8 + 4 + place, word, of the new owners.")
      .def(
          "put_rows",
          [](const GpuSetArrays& set, std::size_t start, nb::handle entries, nb::handle rows, std::size_t threads) {
            const auto row = ArrayView<std::uint8_t>::of_rank(2, rows, "rows");
            const ArrayView<std::int64_t> entry(entries, "entries", {row.size(), 2});
            if (start > set.count || row.size() > set.count - start) {
              fail("rows: the set has " + std::to_string(set.count) + ", asked for " + std::to_string(row.size()) +
                   " from " + std::to_string(start) + " on");
            }
            if (row.shape(1) < set.row_bytes) {
              fail("rows: expected " + std::to_string(set.row_bytes) + " bytes or more each, got " +
                   std::to_string(row.shape(1)));
            }
            const nb::gil_scoped_release release;
            put_rows(set, start, entry, row, threads);
          },
          "start"_a, "entries"_a, "rows"_a, "threads"_a = 1,
          nb::sig("def put_rows(self, start: int, entries: numpy.typing.NDArray[numpy.int64], "
                  "rows: numpy.typing.NDArray[numpy.uint8], threads: int = 1) -> None"),
          "Writes rows from `start` on, as many as there is room for, in place.\n\n"
          "entries (n, 2): slot, number; rows (n, stride) in the order of their numbers, with zeros behind each.");
}

#define IDS "ids: numpy.typing.NDArray[numpy.int64]"
#define ROWS "rows: numpy.typing.NDArray[numpy.uint8]"
#define FREQ "freq: numpy.typing.NDArray[numpy.uint8] | None = None"
#define FLAGS "numpy.typing.NDArray[numpy.bool_]"

void bind_verbs(nb::class_<GpuCache>& cache) {
  cache
      .def(
          "insert",
          [](GpuCache& self, std::uint64_t table, nb::handle ids, nb::handle rows, nb::handle freq, bool pinned) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            const Bytes row = rows_of(self, rows, id.size());
            const std::uint8_t* uses = freq_of(freq, id.size());
            return flags_of(id.size(),
                            [&](bool* in) { self.insert(of, id.data(), id.size(), row.data(), uses, pinned, in); });
          },
          "table"_a, "ids"_a, "rows"_a, "freq"_a.none() = nb::none(), "pinned"_a = false,
          nb::sig("def insert(self, table: int, " IDS ", " ROWS ", " FREQ ", pinned: bool = False) -> " FLAGS),
          "Writes rows; the coldest ones that are not pinned are evicted for want of room. Returns (n,) which are "
          "in.\n\n"
          "rows (n, row_bytes). freq (n,): logarithmic use counts. pinned: the entry stays until it is erased, at its\n"
          "place; a pinned entry remains pinned. A row is not in where no slot is free in this set, or where all "
          "entries at\n"
          "the places of its id are pinned. One that should have been replaced, and finds no slot, is gone, or asks "
          "the\n"
          "host if it is pinned.")
      .def(
          "insert_absent",
          [](GpuCache& self, std::uint64_t table, nb::handle ids, nb::handle rows, std::size_t threads) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            const auto row = ArrayView<std::uint8_t>::of_rank(2, rows, "rows");
            if (row.size() != id.size() || row.shape(1) < self.row_bytes()) {
              fail("rows: expected " + std::to_string(id.size()) + " of " + std::to_string(self.row_bytes()) +
                   " bytes or more each, got " + shape_text({row.size(), row.shape(1)}));
            }
            std::shared_ptr<void> owner = kept(rows);
            return flags_of(id.size(), [&](bool* in) {
              self.insert_absent(of, id.data(), id.size(), row.data(), row.shape(1), std::move(owner), threads, in);
            });
          },
          "table"_a, "ids"_a, "rows"_a, "threads"_a = 1,
          nb::sig("def insert_absent(self, table: int, " IDS ", " ROWS ", threads: int = 1) -> " FLAGS),
          "Inserts as `insert` does, pinned, for ids that come once and have no entry; by several threads.\n\n"
          "Returns (n,) which are in. rows (n, stride) belongs to the set from now on: rows may be moved there, and "
          "the\n"
          "caller must not change it until the set is on the GPU.")
      .def(
          "offer",
          [](GpuCache& self, std::uint64_t table, nb::handle ids, nb::handle rows, nb::handle freq, bool asked) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            const Bytes row = rows_of(self, rows, id.size());
            const std::uint8_t* uses = freq_of(freq, id.size());
            const nb::gil_scoped_release release;
            return self.offer(of, id.data(), id.size(), row.data(), uses, asked);
          },
          "table"_a, "ids"_a, "rows"_a, "freq"_a.none() = nb::none(), "asked"_a = false,
          nb::sig("def offer(self, table: int, " IDS ", " ROWS ", " FREQ ", asked: bool = False) -> int"),
          "Leaves existing ids; when full, admits one that is hotter than the row it displaces. Returns the number\n"
          "admitted.\n\n"
          "Counts one use of each absent id. asked: `ask` has counted it.")
      .def(
          "ask",
          [](GpuCache& self, std::uint64_t table, nb::handle ids) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            return flags_of(id.size(), [&](bool* admits) { self.ask(of, id.data(), id.size(), admits); });
          },
          "table"_a, "ids"_a, nb::sig("def ask(self, table: int, " IDS ") -> " FLAGS),
          "Counts one use of each absent id. Returns (n,) which of them would be admitted now.")
      .def(
          "insert_ask_host",
          [](GpuCache& self, std::uint64_t table, nb::handle ids) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            return flags_of(id.size(), [&](bool* in) { self.insert_ask_host(of, id.data(), id.size(), in); });
          },
          "table"_a, "ids"_a, nb::sig("def insert_ask_host(self, table: int, " IDS ") -> " FLAGS),
          "Inserts pinned entries that end a search on the GPU as a miss; one with a row gives it up.\n\n"
          "Returns (n,) which are in: one is not where all entries at the places of its id are pinned.")
      .def(
          "assign",
          [](GpuCache& self, std::uint64_t table, nb::handle ids, nb::handle rows) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            const Bytes row = rows_of(self, rows, id.size());
            const nb::gil_scoped_release release;
            return self.assign(of, id.data(), id.size(), row.data());
          },
          "table"_a, "ids"_a, "rows"_a, nb::sig("def assign(self, table: int, " IDS ", " ROWS ") -> int"),
          "Replaces existing rows. Returns the number replaced.\n\n"
          "Where no slot is free in this set, the old row is gone, or asks the host if it is pinned.")
      .def(
          "adopt",
          [](GpuCache& self, std::uint64_t source, std::uint64_t target, nb::handle ids, std::size_t threads) {
            const std::uint32_t from = table_of(self, source, "source"), to = table_of(self, target, "target");
            if (from == to) fail("target: expected another table than source, got " + std::to_string(to));
            const Ids id = Ids::of_rank(1, ids, "ids");
            const nb::gil_scoped_release release;
            return self.adopt(from, to, id.data(), id.size(), threads);
          },
          "source"_a, "target"_a, "ids"_a, "threads"_a = 1,
          nb::sig("def adopt(self, source: int, target: int, " IDS ", threads: int = 1) -> int"),
          "Gives target's entries the rows of source's; where target has none, one is made if the index has a place "
          "for it\n"
          "without an eviction. Returns how many were.\n\n"
          "The row is in use until both are gone. Where source asks the host, target's entry is erased. Source's may "
          "be\n"
          "erased when the set is complete, not before: within a set nothing has an order for lookups.\n\n"
          "threads: more than one for ids that come once.")
      .def(
          "erase",
          [](GpuCache& self, std::uint64_t table, nb::handle ids, std::size_t threads) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            const nb::gil_scoped_release release;
            return self.erase(of, id.data(), id.size(), threads);
          },
          "table"_a, "ids"_a, "threads"_a = 1, nb::sig("def erase(self, table: int, " IDS ", threads: int = 1) -> int"),
          "Erases ids. Returns the number erased.\n\n"
          "threads: more than one for ids that come once.")
      .def(
          "erase_table",
          [](GpuCache& self, std::uint64_t table, std::size_t threads) {
            const std::uint32_t of = table_of(self, table);
            const nb::gil_scoped_release release;
            return self.erase_table(of, threads);
          },
          "table"_a, "threads"_a = 1, "Erases all of a table. Returns the number erased.")
      .def(
          "reserve", [](GpuCache& self, std::uint64_t rows) { self.reserve(rows); }, "rows"_a,
          "Keeps room for `rows` rows, at most all, which free and offer leave alone, and insert and insert_absent "
          "use.");
}

void bind_reads(nb::class_<GpuCache>& cache) {
  cache
      .def(
          "find",
          [](const GpuCache& self, std::uint64_t table, nb::handle ids, std::size_t threads) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            std::vector<std::uint32_t> found(id.size());
            {
              const nb::gil_scoped_release release;
              self.find(of, id.data(), id.size(), found.data(), threads);
            }
            return to_numpy(std::move(found));
          },
          "table"_a, "ids"_a, "threads"_a = 1,
          nb::sig("def find(self, table: int, " IDS ", threads: int = 1) -> numpy.typing.NDArray[numpy.uint32]"),
          "Returns slots (n,): 0 where there is no entry, 0xFFFFFFFF where it asks the host.\n\n"
          "threads, here and elsewhere: number of threads at most, 1 to 64; one for each 2,048 ids.")
      .def(
          "contains_any",
          [](const GpuCache& self, std::uint64_t table, std::uint64_t base_tables, nb::handle ids) {
            const std::uint32_t of = table_of(self, table), base = base_tables_of(self, base_tables);
            const Ids id = Ids::of_rank(1, ids, "ids");
            return flags_of(id.size(), [&](bool* any) { self.contains_any(of, base, id.data(), id.size(), any); });
          },
          "table"_a, "base_tables"_a, "ids"_a,
          nb::sig("def contains_any(self, table: int, base_tables: int, " IDS ") -> " FLAGS),
          "Returns (n,) whether there is an entry under table, or under a number that differs from it by a multiple "
          "of\n"
          "base_tables.\n\n"
          "Entries that ask the host count.")
      .def(
          "hot_ids",
          [](const GpuCache& self, std::size_t limit, std::uint64_t base_tables) {
            const std::uint32_t base = base_tables_of(self, base_tables);
            HotIds hot;
            {
              const nb::gil_scoped_release release;
              hot = self.hot_ids(limit, base);
            }
            return nb::make_tuple(to_numpy(std::move(hot.tables)), to_numpy(std::move(hot.ids)),
                                  to_numpy(std::move(hot.counts)));
          },
          "limit"_a, "base_tables"_a,
          nb::sig("def hot_ids(self, limit: int, base_tables: int) -> "
                  "tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint8]]"),
          "Returns the hottest ids of the tables below base_tables, hottest first, at most `limit`: tables (m,), ids "
          "(m,),\n"
          "logarithmic use counts (m,).")
      .def(
          "buckets",
          [](const GpuCache& self) {
            std::vector<std::uint8_t> buckets;
            {
              const nb::gil_scoped_release release;
              buckets = self.published_buckets();
            }
            return to_numpy(std::move(buckets));
          },
          nb::sig("def buckets(self) -> numpy.typing.NDArray[numpy.uint8]"),
          "Returns the index as the GPU has it after the last complete set: (bucket_count * 64,). Words have no "
          "counts.");
}

}  // namespace

void bind_gpu(nb::module_& module) {
  bind_gpu_set(module);
  nb::class_<GpuCache> cache(
      module, "GpuCache",
      "The host's side of a cache in GPU memory: what is there, where, and which changes the GPU lacks.\n\n"
      "row_bytes: bytes of an encoded row. capacity_rows: rows in all. tables: number of all table numbers. Not\n"
      "thread-safe. Raises ValueError that names the argument.");
  cache.def(nb::init<std::size_t, std::uint64_t, std::uint32_t>(), "row_bytes"_a, "capacity_rows"_a, "tables"_a)
      .def_prop_ro("row_bytes", &GpuCache::row_bytes)
      .def_prop_ro("capacity_rows", &GpuCache::capacity_rows)
      .def_prop_ro("tables", &GpuCache::tables)
      .def_prop_ro("slots", &GpuCache::slots, "The highest slot; the lowest is 1.")
      .def_prop_ro("bucket_count", &GpuCache::bucket_count)
      .def_prop_ro("changed_rows", &GpuCache::changed_rows, "Number of rows in the set that is being collected.")
      .def_prop_ro("free_slots", &GpuCache::free_slots,
                   "Number of rows that may still come in or be replaced in this set.")
      .def("size", &GpuCache::size, "Returns the entries of all tables, with those that share a row or ask the host.")
      .def(
          "rows_of", [](const GpuCache& self, std::uint64_t table) { return self.rows_of(table_of(self, table)); },
          "table"_a, "Returns the entries of one table, with those that share a row or ask the host.")
      .def("free", &GpuCache::free, "Returns how many rows could be offered now and come in without an eviction.")
      .def_prop_ro("reserved", &GpuCache::reserved, "Rows that `reserve` keeps free.")
      .def("memory_bytes", &GpuCache::memory_bytes, "Returns the bytes of host memory.")
      .def_static("bytes_of", &GpuCache::bytes_of, "capacity_rows"_a,
                  "Returns the most that memory_bytes() can be while no changes are collected.");
  bind_verbs(cache);
  bind_reads(cache);
  cache
      .def(
          "take_set",
          [](GpuCache& self, std::size_t threads) {
            GpuSet set;
            {
              const nb::gil_scoped_release release;
              set = self.take_set(threads);
            }
            return arrays_of(std::move(set), self.row_bytes());
          },
          "threads"_a = 1, nb::rv_policy::move,
          "Returns the changes since the last set. Raises RuntimeError while that one is not complete.")
      .def("complete_set", &GpuCache::complete_set, nb::call_guard<nb::gil_scoped_release>(),
           "Completes the set: it is on the GPU, and no lookup from before is running, so slots that left with it are "
           "free.\n\n"
           "Raises RuntimeError when none is taken.")
      .def(
          "note_uses",
          [](GpuCache& self, nb::handle marks, std::uint32_t weight, std::uint64_t base_tables, std::uint64_t parts,
             std::uint64_t part) {
            const Bytes mark(marks, "marks", {std::size_t{self.slots()} + 1});
            const GpuPart own{base_tables_of(self, base_tables), parts_from(parts), part_from(part, parts)};
            const nb::gil_scoped_release release;
            self.note_uses(mark.data(), weight, own);
          },
          "marks"_a, "weight"_a, "base_tables"_a = 1, "parts"_a = 1, "part"_a = 0,
          nb::sig("def note_uses(self, marks: numpy.typing.NDArray[numpy.uint8], weight: int, base_tables: int = 1, "
                  "parts: int = 1, part: int = 0) -> None"),
          "Counts marks (slots + 1,): each row whose mark is not 0 was used `weight` times.\n\n"
          "parts, part: number of GPUs that share rows, and this one's number; rows of other parts are left out, "
          "which\n"
          "`use` counts. base_tables: number of tables; entries under a number that differs by a multiple of it are "
          "rows of\n"
          "the same table.")
      .def(
          "use",
          [](GpuCache& self, std::uint64_t table, nb::handle ids) {
            const std::uint32_t of = table_of(self, table);
            const Ids id = Ids::of_rank(1, ids, "ids");
            const nb::gil_scoped_release release;
            self.use(of, id.data(), id.size());
          },
          "table"_a, "ids"_a, nb::sig("def use(self, table: int, " IDS ") -> None"),
          "Counts one use of each existing id, as often as it comes.")
      .def_static(
          "parts_of",
          [](std::uint64_t table, nb::handle ids, std::uint64_t parts) {
            if (table >= GpuCache::kMostTables)
              fail("table: expected a number below 65536, got " + std::to_string(table));
            const Ids id = Ids::of_rank(1, ids, "ids");
            const std::uint32_t of = parts_from(parts);
            std::vector<std::uint8_t> out(id.size());
            {
              const nb::gil_scoped_release release;
              GpuCache::parts_of_ids(static_cast<std::uint32_t>(table), id.data(), id.size(), of, out.data());
            }
            return to_numpy(std::move(out));
          },
          "table"_a, "ids"_a, "parts"_a,
          nb::sig("def parts_of(table: int, " IDS ", parts: int) -> numpy.typing.NDArray[numpy.uint8]"),
          "Returns (n,) the part of each id of a table, from 0 on, among `parts` GPUs that share rows.")
      .def("pass_lookups", &GpuCache::pass_lookups, "lookups"_a, "hits"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Ages use counts: `lookups` ids were looked up, `hits` of them found on the GPU.")
      .def("stats", &stats_of, nb::sig("def stats(self) -> dict[str, int]"),
           "Returns counts since the beginning, by name.")
      .def("check_integrity", &GpuCache::check_integrity, nb::call_guard<nb::gil_scoped_release>(),
           "Raises RuntimeError that says which rule of the cache is broken. Slow; for tests.");
}

}  // namespace emberline::bind
