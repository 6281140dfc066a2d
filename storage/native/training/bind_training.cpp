// TrainingTable for Python.
#include "training/bind_training.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

namespace emberline::bind {
namespace {

// rows, optimizer values, occurrences, stamps, ticks.
nb::list exported(const TrainingTable& table, TrainingRows&& all) {
  const std::size_t n = all.counts.size();
  nb::list parts;
  parts.append(to_numpy(std::move(all.rows), {n, table.dim()}));
  parts.append(to_numpy(std::move(all.slots), {n, table.slots()}));
  parts.append(to_numpy(std::move(all.counts)));
  parts.append(to_numpy(std::move(all.stamps)));
  parts.append(to_numpy(std::move(all.ticks)));
  return parts;
}

template <auto Method>
nb::object since(const TrainingTable& table, std::uint32_t stamp) {
  std::vector<std::int64_t> ids;
  {
    const nb::gil_scoped_release release;
    ids = (table.*Method)(stamp);
  }
  return to_numpy(std::move(ids));
}

}  // namespace

void bind_training(nb::module_& module) {
  nb::class_<TrainingTable> bound(
      module, "TrainingTable",
      "A table that trains: rows appear when an id was seen often enough, and are stepped in place.\n\n"
      "optimizer: decides the float32 values behind a row. initial_accumulator: Adagrad's and FTRL's start.\n"
      "rows, absent: initializers, as (kind, scale), of new rows, and of what an id without a row reads as; the kinds\n"
      "are constant, uniform, normal and truncated_normal, and values follow from seed and id alone. admit_after:\n"
      "occurrences that make a row. bloom: expected distinct ids, false rate, rank and ranks of a filter that counts\n"
      "ids of this rank without a row; None counts them exactly. evicts: rows are kept by parts, for idle(). fixed: "
      "no\n"
      "id gets a row but by `restore`, and ids without one are not counted.");
  bound
      .def(
          "__init__",
          [](TrainingTable* self, std::uint32_t dim, const std::string& optimizer, float initial_accumulator,
             std::uint64_t seed, const std::pair<std::string, float>& rows, const std::pair<std::string, float>& absent,
             std::uint32_t admit_after,
             const std::optional<std::tuple<std::uint64_t, double, std::uint32_t, std::uint32_t>>& bloom, bool evicts,
             bool fixed) {
            BloomOptions filter;
            if (bloom) filter = {std::get<0>(*bloom), std::get<1>(*bloom), std::get<2>(*bloom), std::get<3>(*bloom)};
            if (bloom && filter.expected_ids == 0) fail("bloom: expected 1 expected id or more, got 0");
            new (self) TrainingTable({dim, rule_of(optimizer), initial_accumulator, seed,
                                      initializer_of(rows.first, rows.second),
                                      initializer_of(absent.first, absent.second), admit_after, filter, evicts, fixed});
          },
          "dim"_a, nb::kw_only(), "optimizer"_a = "sgd", "initial_accumulator"_a = 0.0f, "seed"_a = 0,
          "rows"_a = std::pair<std::string, float>("uniform", 0.05f),
          "absent"_a = std::pair<std::string, float>("constant", 0.0f), "admit_after"_a = 1, "bloom"_a = nb::none(),
          "evicts"_a = false, "fixed"_a = false)
      .def_prop_ro("dim", &TrainingTable::dim)
      .def_prop_ro("slots", &TrainingTable::slots)
      .def_prop_rw("steps", &TrainingTable::steps, &TrainingTable::set_steps,
                   "Steps of the optimizer so far, on which Adam and its kin depend.")
      .def("set_admit_after", &TrainingTable::set_admit_after, "admit_after"_a,
           "Sets the occurrences that make a row, for ids that have none yet.")
      .def("size", &TrainingTable::size, "Returns the number of rows in the table.")
      .def("memory_bytes", &TrainingTable::memory_bytes, nb::call_guard<nb::gil_scoped_release>(),
           "Bytes of memory that index, rows and counters take.")
      .def(
          "lookup",
          [](TrainingTable& table, nb::handle ids, nb::handle out, bool train) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<float> to(out, "out", {id.size(), table.dim()});
            const nb::gil_scoped_release release;
            return table.lookup(id.data(), id.size(), to.data(), train);
          },
          "ids"_a, "out"_a, "train"_a,
          nb::sig("def lookup(self, ids: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32], "
                  "train: bool) -> int"),
          "Looks up rows: out (n, dim); ids without a row read as `absent`. train: counts occurrences and creates the\n"
          "rows that are due. Returns the occurrences that have a row.")
      .def(
          "lookup_counted",
          [](TrainingTable& table, nb::handle ids, nb::handle counts, nb::handle out, bool train) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<const std::uint32_t> count(counts, "counts", {id.size()});
            const ArrayView<float> to(out, "out", {id.size(), table.dim()});
            std::vector<std::uint8_t> has_row(id.size());
            {
              const nb::gil_scoped_release release;
              table.lookup_counted(id.data(), count.data(), id.size(), to.data(), has_row.data(), train);
            }
            return to_numpy(std::move(has_row));
          },
          "ids"_a, "counts"_a, "out"_a, "train"_a,
          nb::sig("def lookup_counted(self, ids: numpy.typing.NDArray[numpy.int64], counts: "
                  "numpy.typing.NDArray[numpy.uint32], out: numpy.typing.NDArray[numpy.float32], train: bool) -> "
                  "numpy.typing.NDArray[numpy.uint8]"),
          "Looks up rows as `lookup` does, of ids (n,) that stand for counts (n,) occurrences each.\n\n"
          "Returns 1 for each of them that has a row, and 0 for the others.")
      .def(
          "export_rows",
          [](const TrainingTable& table) {
            TrainingRows all;
            {
              const nb::gil_scoped_release release;
              all = table.export_rows();
            }
            nb::list parts;
            parts.append(to_numpy(std::move(all.ids)));
            for (nb::handle part : exported(table, std::move(all))) parts.append(part);
            return nb::tuple(parts);
          },
          nb::sig("def export_rows(self) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32], "
                  "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32], "
                  "numpy.typing.NDArray[numpy.uint32]]"),
          "Returns ids (n,) ascending, rows (n, dim), optimizer values (n, slots), occurrences (n,), stamps (n,) and\n"
          "ticks (n,) of the last use.")
      .def(
          "export_ids",
          [](const TrainingTable& table, nb::handle ids) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            TrainingRows all;
            {
              const nb::gil_scoped_release release;
              all = table.export_ids(id.data(), id.size());
            }
            return nb::tuple(exported(table, std::move(all)));
          },
          "ids"_a,
          nb::sig("def export_ids(self, ids: numpy.typing.NDArray[numpy.int64]) -> "
                  "tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32], "
                  "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32], "
                  "numpy.typing.NDArray[numpy.uint32]]"),
          "Returns rows (n, dim), optimizer values (n, slots), occurrences (n,), stamps (n,), ticks (n,); ValueError\n"
          "for an id without a row.")
      .def(
          "export_counts",
          [](const TrainingTable& table) {
            IdCounts all;
            {
              const nb::gil_scoped_release release;
              all = table.export_counts();
            }
            return nb::make_tuple(to_numpy(std::move(all.ids)), to_numpy(std::move(all.counts)));
          },
          nb::sig("def export_counts(self) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint32]]"),
          "Returns ids (n,) ascending and occurrences (n,) of ids that have no row yet.")
      .def(
          "most_seen",
          [](const TrainingTable& table, std::size_t n) {
            IdCounts most;
            {
              const nb::gil_scoped_release release;
              most = table.most_seen(n);
            }
            return nb::make_tuple(to_numpy(std::move(most.ids)), to_numpy(std::move(most.counts)));
          },
          "n"_a,
          nb::sig("def most_seen(self, n: int) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint32]]"),
          "Returns ids and occurrences of the rows in DRAM that were seen most, at most n, the most frequent first.")
      .def(
          "write",
          [](TrainingTable& table, nb::handle ids, nb::handle rows, nb::handle slots) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const Floats row(rows, "rows", {id.size(), table.dim()});
            const Floats slot(slots, "slots", {id.size(), table.slots()});
            const nb::gil_scoped_release release;
            table.write(id.data(), id.size(), row.data(), slot.data());
          },
          "ids"_a, "rows"_a, "slots"_a,
          nb::sig("def write(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.float32], "
                  "slots: numpy.typing.NDArray[numpy.float32]) -> None"),
          "Gives rows the values that a copy elsewhere has: rows (n, dim), optimizer values (n, slots). Neither use "
          "nor\n"
          "change is noted; ids without a row are left out.")
      .def(
          "restore",
          [](TrainingTable& table, nb::handle ids, nb::handle rows, nb::handle slots, nb::handle counts,
             nb::handle stamps, nb::handle ticks) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const Floats row(rows, "rows", {id.size(), table.dim()});
            const Floats slot(slots, "slots", {id.size(), table.slots()});
            const ArrayView<const std::uint32_t> count(counts, "counts", {id.size()});
            const ArrayView<const std::uint32_t> stamp(stamps, "stamps", {id.size()});
            const ArrayView<const std::uint32_t> tick(ticks, "ticks", {id.size()});
            const nb::gil_scoped_release release;
            table.restore(id.data(), id.size(), row.data(), slot.data(), count.data(), stamp.data(), tick.data());
          },
          "ids"_a, "rows"_a, "slots"_a, "counts"_a, "stamps"_a, "ticks"_a,
          nb::sig("def restore(self, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.float32], slots: numpy.typing.NDArray[numpy.float32], "
                  "counts: numpy.typing.NDArray[numpy.uint32], stamps: numpy.typing.NDArray[numpy.uint32], "
                  "ticks: numpy.typing.NDArray[numpy.uint32]) -> None"),
          "Puts back what export_rows returned, over existing rows. Stamps are at most the table's own: call "
          "set_stamp\n"
          "first.")
      .def(
          "restore_counts",
          [](TrainingTable& table, nb::handle ids, nb::handle counts) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<const std::uint32_t> count(counts, "counts", {id.size()});
            const nb::gil_scoped_release release;
            table.restore_counts(id.data(), id.size(), count.data());
          },
          "ids"_a, "counts"_a,
          nb::sig("def restore_counts(self, ids: numpy.typing.NDArray[numpy.int64], counts: "
                  "numpy.typing.NDArray[numpy.uint32]) -> None"),
          "Puts back what export_counts or waiting_since returned; a count of 0 removes the id.")
      .def(
          "restore_removed",
          [](TrainingTable& table, nb::handle ids, nb::handle stamps) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<const std::uint32_t> stamp(stamps, "stamps", {id.size()});
            const nb::gil_scoped_release release;
            table.restore_removed(id.data(), id.size(), stamp.data());
          },
          "ids"_a, "stamps"_a,
          nb::sig("def restore_removed(self, ids: numpy.typing.NDArray[numpy.int64], stamps: "
                  "numpy.typing.NDArray[numpy.uint32]) -> None"),
          "Puts back what removed returned; ids that have a row are left out.")
      .def(
          "erase",
          [](TrainingTable& table, nb::handle ids) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const nb::gil_scoped_release release;
            return table.erase(id.data(), id.size());
          },
          "ids"_a, nb::sig("def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int"),
          "Forgets rows, optimizer values and counts; an id seen again is new. Returns how many had a row.")
      .def_prop_ro("stamp", &TrainingTable::stamp)
      .def("advance", &TrainingTable::advance, nb::call_guard<nb::gil_scoped_release>(),
           "Closes the stamp and returns it; later changes carry the next one.")
      .def("set_stamp", &TrainingTable::set_stamp, "stamp"_a,
           "Sets the stamp. Raises ValueError for a stamp below the table's own.")
      .def("changed_since", since<&TrainingTable::changed_since>, "stamp"_a,
           nb::sig("def changed_since(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]"),
           "Returns ids (n,) ascending of rows created, stepped or looked up in training after a stamp.")
      .def("expired", since<&TrainingTable::expired>, "stamp"_a,
           nb::sig("def expired(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]"),
           "Returns ids (n,) ascending of rows that changed last at that stamp or before.")
      .def("removed_since", since<&TrainingTable::removed_since>, "stamp"_a,
           nb::sig("def removed_since(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]"),
           "Returns ids (n,) ascending that were erased after a stamp and have no row now.")
      .def(
          "removed",
          [](const TrainingTable& table) {
            IdStamps all;
            {
              const nb::gil_scoped_release release;
              all = table.removed();
            }
            return nb::make_tuple(to_numpy(std::move(all.ids)), to_numpy(std::move(all.stamps)));
          },
          nb::sig("def removed(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]"),
          "Returns ids (n,) ascending that were erased and have no row now, and the stamps (n,) of their erasure.")
      .def("forget_removed", &TrainingTable::forget_removed, "upto_stamp"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Forgets that ids were erased, for erasures at that stamp or before.")
      .def(
          "waiting_since",
          [](const TrainingTable& table, std::uint32_t stamp) {
            IdCounts all;
            {
              const nb::gil_scoped_release release;
              all = table.waiting_since(stamp);
            }
            return nb::make_tuple(to_numpy(std::move(all.ids)), to_numpy(std::move(all.counts)));
          },
          "stamp"_a,
          nb::sig("def waiting_since(self, stamp: int) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint32]]"),
          "Returns ids (n,) ascending without a row whose count changed after a stamp, and counts (n,).\n\n"
          "A count of 0: the id has a row now, or was erased. The stamp must be one of the last 64.");
  bind_training_tier(module, bound);
  bind_eviction(bound);
  bind_bloom(bound);
  bind_batch_lookup(module);
  bind_device_rows(module);
  bind_pairs(module);
}

}  // namespace emberline::bind
