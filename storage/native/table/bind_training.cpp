// TrainingTable for Python.
#include "table/bind_training.h"

namespace emberline::bind {
namespace {

Pooling pooling_of(int mode) {
  if (mode != 0 && mode != 1) fail("mode: expected 0 (sum) or 1 (mean), got " + std::to_string(mode));
  return static_cast<Pooling>(mode);
}

std::size_t bags_of(const Ids& offsets) {
  if (offsets.size() == 0) fail("offsets: expected one entry more than bags, got none");
  return offsets.size() - 1;
}

nb::object pool_backward_of(nb::handle offsets, int mode, nb::handle grad) {
  const Ids ends = Ids::of_rank(1, offsets, "offsets");
  const std::size_t batch = bags_of(ends);
  const Floats from = Floats::of_rank(2, grad, "grad");
  const auto dim = static_cast<std::uint32_t>(from.shape(1));
  const Floats checked(grad, "grad", {batch, dim});
  const Pooling pooling = pooling_of(mode);
  const auto n = static_cast<std::size_t>(std::max<std::int64_t>(0, ends.data()[batch]));
  check_offsets(ends.data(), batch, n, "offsets");
  std::vector<float> grads(n * dim);
  {
    const nb::gil_scoped_release release;
    pool_backward(ends.data(), batch, dim, pooling, from.data(), grads.data());
  }
  return to_numpy(std::move(grads), {n, dim});
}

// rows, optimizer values, occurrences, stamps.
nb::list exported(const TrainingTable& table, TrainingRows&& all) {
  const std::size_t n = all.counts.size();
  nb::list parts;
  parts.append(to_numpy(std::move(all.rows), {n, table.dim()}));
  parts.append(to_numpy(std::move(all.slots), {n, table.slots()}));
  parts.append(to_numpy(std::move(all.counts)));
  parts.append(to_numpy(std::move(all.stamps)));
  return parts;
}

// Rows beside the table; both None, or both given.
SideRows side_of(const TrainingTable& table, nb::handle ids, nb::handle rows) {
  if (ids.is_none() && rows.is_none()) return {};
  const Ids id = Ids::of_rank(1, ids, "side_ids");
  const Floats row(rows, "side_rows", {id.size(), table.dim()});
  return {id.data(), id.size(), row.data()};
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
      "slots: float32 values of the optimizer a row (dim for Adagrad, 0 for SGD). init_scale: new rows are uniform in\n"
      "[-init_scale, init_scale), by seed and id alone. admit_after: occurrences that make a row. tiered: a part of "
      "the\n"
      "rows lies in a store, and the caller brings them before they are trained.");
  bound
      .def(nb::init<std::uint32_t, std::uint32_t, std::uint64_t, float, std::uint32_t, bool>(), "dim"_a, nb::kw_only(),
           "slots"_a, "seed"_a, "init_scale"_a, "admit_after"_a, "tiered"_a = false)
      .def_prop_ro("dim", &TrainingTable::dim)
      .def_prop_ro("slots", &TrainingTable::slots)
      .def("size", &TrainingTable::size, "Returns the number of rows in the table.")
      .def("memory_bytes", &TrainingTable::memory_bytes, nb::call_guard<nb::gil_scoped_release>(),
           "Bytes of memory that index, rows and counters take.")
      .def(
          "lookup",
          [](TrainingTable& table, nb::handle ids, nb::handle out, bool train, float initial_slot, nb::handle side_ids,
             nb::handle side_rows) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<float> to(out, "out", {id.size(), table.dim()});
            const SideRows side = side_of(table, side_ids, side_rows);
            const nb::gil_scoped_release release;
            return table.lookup(id.data(), id.size(), to.data(), train, initial_slot, side);
          },
          "ids"_a, "out"_a, "train"_a, "initial_slot"_a, "side_ids"_a = nb::none(), "side_rows"_a = nb::none(),
          nb::sig("def lookup(self, ids: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32], "
                  "train: bool, "
                  "initial_slot: float, side_ids: numpy.typing.NDArray[numpy.int64] | None = None, "
                  "side_rows: numpy.typing.NDArray[numpy.float32] | None = None) -> int"),
          "Looks up rows: out (n, dim), zeros for ids without a row. train: counts occurrences and creates the rows "
          "that\n"
          "are due.\n\n"
          "side_ids (k,), side_rows (k, dim): rows of ids that have none here, for this call alone. Returns the "
          "occurrences\n"
          "that have a row.")
      .def(
          "pool",
          [](TrainingTable& table, nb::handle values, nb::handle offsets, int mode, nb::handle out, bool train,
             float initial_slot, nb::handle side_ids, nb::handle side_rows) {
            const Ids ids = Ids::of_rank(1, values, "values");
            const Ids ends = Ids::of_rank(1, offsets, "offsets");
            const std::size_t batch = bags_of(ends);
            const ArrayView<float> to(out, "out", {batch, table.dim()});
            const Pooling pooling = pooling_of(mode);
            const SideRows side = side_of(table, side_ids, side_rows);
            const nb::gil_scoped_release release;
            return table.pool(ids.data(), ends.data(), batch, ids.size(), pooling, to.data(), train, initial_slot,
                              side);
          },
          "values"_a, "offsets"_a, "mode"_a, "out"_a, "train"_a, "initial_slot"_a, "side_ids"_a = nb::none(),
          "side_rows"_a = nb::none(),
          nb::sig("def pool(self, values: numpy.typing.NDArray[numpy.int64], offsets: "
                  "numpy.typing.NDArray[numpy.int64], mode: int, "
                  "out: numpy.typing.NDArray[numpy.float32], train: bool, initial_slot: float, "
                  "side_ids: numpy.typing.NDArray[numpy.int64] | None = None, "
                  "side_rows: numpy.typing.NDArray[numpy.float32] | None = None) -> int"),
          "Looks up as `lookup` does, pooled by bags: out (B, dim). mode: 0 sum, 1 mean over the ids given, those "
          "without a\n"
          "row included.")
      .def_static("pool_backward", &pool_backward_of, "offsets"_a, "mode"_a, "grad"_a,
                  nb::sig("def pool_backward(offsets: numpy.typing.NDArray[numpy.int64], mode: int, grad: "
                          "numpy.typing.NDArray[numpy.float32]) -> "
                          "numpy.typing.NDArray[numpy.float32]"),
                  "Returns the gradient (N, dim) of each id from those of the bags, grad (B, dim).")
      .def(
          "adagrad",
          [](TrainingTable& table, nb::handle ids, nb::handle grads, float lr, float eps) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const Floats grad(grads, "grads", {id.size(), table.dim()});
            const nb::gil_scoped_release release;
            return table.adagrad(id.data(), id.size(), grad.data(), lr, eps);
          },
          "ids"_a, "grads"_a, "lr"_a, "eps"_a,
          nb::sig("def adagrad(self, ids: numpy.typing.NDArray[numpy.int64], grads: "
                  "numpy.typing.NDArray[numpy.float32], lr: float, eps: float) -> int"),
          "Adds the gradients (n, dim) of equal ids in order, then steps each row once; ids without a row are "
          "dropped.\n\n"
          "Returns the rows stepped.")
      .def(
          "sgd",
          [](TrainingTable& table, nb::handle ids, nb::handle grads, float lr) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const Floats grad(grads, "grads", {id.size(), table.dim()});
            const nb::gil_scoped_release release;
            return table.sgd(id.data(), id.size(), grad.data(), lr);
          },
          "ids"_a, "grads"_a, "lr"_a,
          nb::sig("def sgd(self, ids: numpy.typing.NDArray[numpy.int64], grads: numpy.typing.NDArray[numpy.float32], "
                  "lr: float) -> int"),
          "Steps rows as `adagrad` does, without optimizer values.")
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
                  "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32]]"),
          "Returns ids (n,) ascending, rows (n, dim), optimizer values (n, slots), occurrences (n,), stamps (n,).")
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
                  "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32]]"),
          "Returns rows (n, dim), optimizer values (n, slots), occurrences (n,), stamps (n,); ValueError for an id "
          "without\n"
          "a row.")
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
          "restore",
          [](TrainingTable& table, nb::handle ids, nb::handle rows, nb::handle slots, nb::handle counts,
             nb::handle stamps) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const Floats row(rows, "rows", {id.size(), table.dim()});
            const Floats slot(slots, "slots", {id.size(), table.slots()});
            const ArrayView<const std::uint32_t> count(counts, "counts", {id.size()});
            const ArrayView<const std::uint32_t> stamp(stamps, "stamps", {id.size()});
            const nb::gil_scoped_release release;
            table.restore(id.data(), id.size(), row.data(), slot.data(), count.data(), stamp.data());
          },
          "ids"_a, "rows"_a, "slots"_a, "counts"_a, "stamps"_a,
          nb::sig("def restore(self, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.float32], slots: numpy.typing.NDArray[numpy.float32], "
                  "counts: numpy.typing.NDArray[numpy.uint32], stamps: numpy.typing.NDArray[numpy.uint32]) -> None"),
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
  bind_training_tier(bound);
}

}  // namespace emberline::bind
