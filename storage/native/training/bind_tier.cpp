// Rows of training tables beyond DRAM, for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>

#include "training/bind_training.h"

namespace emberline::bind {
namespace {

void attach(TrainingTable& table, const std::string& name, std::shared_ptr<RowBudget> budget,
            const std::string& folder) {
  table.attach(name, std::move(budget), folder);
}

const TrainingTable& tiered(const TrainingTable& table) {
  if (!table.is_tiered()) fail("the table is not attached to a budget");
  return table;
}

nb::dict figures(const TrainingTable& table) {
  const TierFigures now = tiered(table).figures();
  nb::dict named;
  named["rows_in_dram"] = now.rows_in_dram;
  named["rows_outside"] = now.rows_outside;
  named["file_bytes"] = now.file_bytes;
  named["fetched"] = now.fetched;
  named["waits"] = now.waits;
  named["left"] = now.left;
  named["written"] = now.written;
  return named;
}

void read_ahead(const std::vector<const TrainingTable*>& tables, const nb::list& ids) {
  if (ids.size() != tables.size()) fail("ids: expected one array a table");
  std::vector<Ids> wanted;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    tiered(*tables[i]);
    wanted.push_back(Ids::of_rank(1, ids[i], {"ids", i}));
  }
  const nb::gil_scoped_release release;
  for (std::size_t i = 0; i < tables.size(); ++i) tables[i]->read_ahead(wanted[i].data(), wanted[i].size());
}

void begin_tables(const std::vector<TrainingTable*>& tables) {
  for (TrainingTable* table : tables) {
    tiered(*table);
    table->begin();
  }
}

nb::tuple outside_rows(const TrainingTable& table, std::size_t first, std::uint32_t after, std::uint32_t upto,
                       bool records) {
  OutsideRows found;
  {
    tiered(table);
    const nb::gil_scoped_release release;
    found = table.outside_rows(first, after, upto, records);
  }
  const std::size_t n = records ? found.ids.size() : 0;
  return nb::make_tuple(to_numpy(std::move(found.ids)), to_numpy(std::move(found.records), {n, table.record_bytes()}),
                        found.next);
}

nb::tuple outside_bare(const TrainingTable& table, std::size_t first, std::optional<std::uint32_t> waiting_after,
                       std::optional<std::uint32_t> removed_after) {
  constexpr std::uint32_t kLast = std::numeric_limits<std::uint32_t>::max();
  OutsideBare found;
  {
    tiered(table);
    const nb::gil_scoped_release release;
    found = table.outside_bare(first, waiting_after.value_or(kLast), removed_after.value_or(kLast),
                               !waiting_after && !removed_after);
  }
  return nb::make_tuple(to_numpy(std::move(found.ids)), to_numpy(std::move(found.counts)),
                        to_numpy(std::move(found.waiting)), to_numpy(std::move(found.removed)), found.next);
}

// Raises an exception of the package, whose classes Python code has.
void raise(const char* module, const char* name, const nb::object& error) {
  PyErr_SetObject(nb::module_::import_(module).attr(name).ptr(), error.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const BudgetExceeded& error) {
    const nb::object made =
        nb::module_::import_("storage.errors").attr("ConfigError")(error.what(), "field"_a = "training.dram_bytes");
    raise("storage.errors", "ConfigError", made);
  } catch (const ScratchError& error) {
    const nb::object reason = nb::module_::import_("builtins").attr("OSError")(error.error(), strerror(error.error()));
    const nb::object made =
        nb::module_::import_("storage.tiers.ssd.disk_errors").attr("store_error")(error.what(), reason);
    raise("storage.errors", "StoreError", made);
  }
}

}  // namespace

void bind_training_tier(nb::module_& module, nb::class_<TrainingTable>& table) {
  nb::register_exception_translator(translate);
  nb::class_<RowBudget>(module, "RowBudget",
                        "A budget of DRAM that training tables share: rows, optimizer values, index and counts.")
      .def(nb::new_([](std::size_t dram_bytes) { return std::make_shared<RowBudget>(dram_bytes); }), "dram_bytes"_a)
      .def_prop_ro("dram_bytes", &RowBudget::dram_bytes)
      .def_prop_ro("kept_bytes", &RowBudget::kept, "Gives what every table can have, whatever the others took.")
      .def("begin_batch", &RowBudget::begin_batch,
           "Begins a batch of all tables. Returns whether reading ahead is worth it: batches waited for the disk.");
  module.def("begin_tables", &begin_tables, "tables"_a,
             nb::sig("def begin_tables(tables: collections.abc.Sequence[TrainingTable]) -> None"),
             "Begins a batch of attached tables: rows that the batch before used may leave DRAM.");
  module.def("read_ahead", &read_ahead, "tables"_a, "ids"_a,
             nb::sig("def read_ahead(tables: collections.abc.Sequence[TrainingTable], ids: "
                     "list[numpy.typing.NDArray[numpy.int64]]) -> None"),
             "Asks the kernel to read what the files of attached tables have of ids (n,) each, without waiting.");
  table
      .def("attach", &attach, "name"_a, "budget"_a, "folder"_a,
           "Lets rows leave DRAM for a file without a name in a folder, when the budget needs their memory.\n\n"
           "The table must be empty. Afterwards changed_since, expired, removed, removed_since, waiting_since,\n"
           "export_rows and export_counts are about what is in DRAM; outside_rows and outside_bare give the rest.\n"
           "Raises ConfigError when the budget does not hold the table's filter.")
      .def_prop_ro("is_tiered", &TrainingTable::is_tiered, "Tells whether rows may lie outside DRAM.")
      .def_prop_ro("record_bytes", &TrainingTable::record_bytes,
                   "Number of bytes of a row in the file: count, stamp and tick (u32 each), weights and optimizer "
                   "values (float32).")
      .def("tier_figures", &figures, nb::sig("def tier_figures(self) -> dict[str, int]"),
           "Returns rows_in_dram, rows_outside and file_bytes, and since the table was made rows fetched, waits for\n"
           "the disk, rows that left DRAM, and rows written.")
      .def("outside_rows", &outside_rows, "first"_a, "after"_a, "upto"_a, "records"_a,
           nb::sig("def outside_rows(self, first: int, after: int, upto: int, records: bool) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], int]"),
           "Returns ids (n,) in no order of rows outside DRAM that changed last at a stamp in (after, upto].\n\n"
           "Begins at a page of the file; the last value is the page to go on from, 0 at the end. records: with\n"
           "records (n, record_bytes), otherwise (0, record_bytes).")
      .def("outside_bare", &outside_bare, "first"_a, "waiting_after"_a.none(), "removed_after"_a.none(),
           nb::sig("def outside_bare(self, first: int, waiting_after: int | None, removed_after: int | None) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32], "
                   "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32], int]"),
           "Returns ids without a row outside DRAM, in no order: counts, stamps of their last change, stamps of an\n"
           "erasure; 0 is none.\n\n"
           "Pages where no count changed after waiting_after and no id was erased after removed_after are left out,\n"
           "unless both are None. The last value is as outside_rows gives it.")
      .def("waiting_size", &TrainingTable::waiting_size, nb::call_guard<nb::gil_scoped_release>(),
           "Returns the number of ids that were seen and have no row; with a filter, an estimate.")
      .def(
          "row_ids",
          [](const TrainingTable& self) {
            std::vector<std::int64_t> ids;
            {
              const nb::gil_scoped_release release;
              ids = self.row_ids();
            }
            return to_numpy(std::move(ids));
          },
          nb::sig("def row_ids(self) -> numpy.typing.NDArray[numpy.int64]"),
          "Returns ids (n,) ascending of the rows in DRAM.")
      .def(
          "has_waited",
          [](const TrainingTable& self, nb::handle ids) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            return to_numpy(self.has_waited(id.data(), id.size()));
          },
          "ids"_a,
          nb::sig("def has_waited(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]"),
          "Returns 1 where DRAM knows the last change of an id's count.");
}

}  // namespace emberline::bind
