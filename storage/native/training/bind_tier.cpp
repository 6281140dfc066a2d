// The methods of TrainingTable that a store needs, for Python.
#include "training/bind_training.h"

namespace emberline::bind {
namespace {

using Bytes = ArrayView<const std::uint8_t>;
using Words = ArrayView<const std::uint32_t>;

nb::tuple unknown(TrainingTable& table, nb::handle ids, bool hold) {
  const Ids id = Ids::of_rank(1, ids, "ids");
  std::size_t rowless = 0;
  std::vector<std::int64_t> found;
  {
    const nb::gil_scoped_release release;
    found = table.unknown(id.data(), id.size(), hold, &rowless);
  }
  return nb::make_tuple(to_numpy(std::move(found)), rowless);
}

void bring(TrainingTable& table, nb::handle ids, nb::handle records) {
  const Ids id = Ids::of_rank(1, ids, "ids");
  const Bytes record(records, "records", {id.size(), table.record_bytes()});
  const nb::gil_scoped_release release;
  table.bring(id.data(), id.size(), record.data());
}

void bring_bare(TrainingTable& table, nb::handle ids, nb::handle counts, nb::handle waiting, nb::handle removed) {
  const Ids id = Ids::of_rank(1, ids, "ids");
  const Words count(counts, "counts", {id.size()});
  const Words wait(waiting, "waiting", {id.size()});
  const Words gone(removed, "removed", {id.size()});
  const nb::gil_scoped_release release;
  table.bring_bare(id.data(), id.size(), count.data(), wait.data(), gone.data());
}

nb::tuple pack(const TrainingTable& table, nb::handle ids) {
  const Ids id = Ids::of_rank(1, ids, "ids");
  PackedRows all;
  {
    const nb::gil_scoped_release release;
    all = table.pack(id.data(), id.size());
  }
  return nb::make_tuple(to_numpy(std::move(all.records), {id.size(), table.record_bytes()}),
                        to_numpy(std::move(all.stamps)), to_numpy(std::move(all.written)),
                        to_numpy(std::move(all.dirty)));
}

nb::object encode(const TrainingTable& table, nb::handle rows, nb::handle slots, nb::handle counts, nb::handle stamps,
                  nb::handle ticks) {
  const Words count = Words::of_rank(1, counts, "counts");
  const std::size_t n = count.size();
  const Floats row(rows, "rows", {n, table.dim()});
  const Floats slot(slots, "slots", {n, table.slots()});
  const Words stamp(stamps, "stamps", {n});
  const Words tick(ticks, "ticks", {n});
  std::vector<std::uint8_t> records;
  {
    const nb::gil_scoped_release release;
    records = table.encode(n, row.data(), slot.data(), count.data(), stamp.data(), tick.data());
  }
  return to_numpy(std::move(records), {n, table.record_bytes()});
}

nb::tuple pack_bare(const TrainingTable& table) {
  BareIds all;
  {
    const nb::gil_scoped_release release;
    all = table.pack_bare();
  }
  return nb::make_tuple(to_numpy(std::move(all.ids)), to_numpy(std::move(all.counts)), to_numpy(std::move(all.waiting)),
                        to_numpy(std::move(all.removed)));
}

template <auto Method, class T>
nb::object of_each(const TrainingTable& table, nb::handle ids) {
  const Ids id = Ids::of_rank(1, ids, "ids");
  std::vector<T> found;
  {
    const nb::gil_scoped_release release;
    found = (table.*Method)(id.data(), id.size());
  }
  return to_numpy(std::move(found));
}

template <class Make>
nb::object made(Make make) {
  std::vector<std::int64_t> ids;
  {
    const nb::gil_scoped_release release;
    ids = make();
  }
  return to_numpy(std::move(ids));
}

template <auto Method>
std::size_t applied(TrainingTable& table, nb::handle ids) {
  const Ids id = Ids::of_rank(1, ids, "ids");
  const nb::gil_scoped_release release;
  (table.*Method)(id.data(), id.size());
  return id.size();
}

}  // namespace

void bind_training_tier(nb::class_<TrainingTable>& table) {
  table
      .def_prop_ro("record_bytes", &TrainingTable::record_bytes,
                   "Number of bytes of a row in a store: count, stamp and tick (u32 each), weights and optimizer "
                   "values (float32).")
      .def("begin", &TrainingTable::begin, nb::call_guard<nb::gil_scoped_release>(),
           "Begins a batch: rows that the batch before held may leave, and settled ids are asked for again.")
      .def("unknown", &unknown, "ids"_a, "hold"_a,
           nb::sig("def unknown(self, ids: numpy.typing.NDArray[numpy.int64], hold: bool) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], int]"),
           "Returns ids (k,), each once, that only the store can answer; and how many different ids have no row "
           "here.\n\n"
           "hold: existing rows stay until begin().")
      .def("settle", &applied<&TrainingTable::settle>, "ids"_a,
           nb::sig("def settle(self, ids: numpy.typing.NDArray[numpy.int64]) -> int"),
           "Notes that the store has nothing of these ids, until begin(). Returns their number.")
      .def("bring", &bring, "ids"_a, "records"_a,
           nb::sig("def bring(self, ids: numpy.typing.NDArray[numpy.int64], records: "
                   "numpy.typing.NDArray[numpy.uint8]) -> None"),
           "Takes in rows of the store, records (n, record_bytes); existing rows stay as they are.")
      .def("bring_bare", &bring_bare, "ids"_a, "counts"_a, "waiting"_a, "removed"_a,
           nb::sig("def bring_bare(self, ids: numpy.typing.NDArray[numpy.int64], counts: "
                   "numpy.typing.NDArray[numpy.uint32], "
                   "waiting: numpy.typing.NDArray[numpy.uint32], removed: numpy.typing.NDArray[numpy.uint32]) -> None"),
           "Takes in ids without a row: counts, stamps of their last change, stamps of an erasure; 0 is none.")
      .def(
          "coldest", [](TrainingTable& self, std::size_t n) { return made([&] { return self.coldest(n); }); }, "n"_a,
          nb::sig("def coldest(self, n: int) -> numpy.typing.NDArray[numpy.int64]"),
          "Returns ids ascending, at most n, of the rows that were used least; none that is held.")
      .def("held", &TrainingTable::held, nb::call_guard<nb::gil_scoped_release>(),
           "Returns the number of rows that are held.")
      .def("pack", &pack, "ids"_a,
           nb::sig("def pack(self, ids: numpy.typing.NDArray[numpy.int64]) -> tuple[numpy.typing.NDArray[numpy.uint8], "
                   "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32], "
                   "numpy.typing.NDArray[numpy.uint8]]"),
           "Returns records (n, record_bytes), stamps (n,), the stamps (n,) in the store's copies (0: none), and dirty "
           "(n,).\n\n"
           "dirty is 1 where the copy differs from the row.")
      .def(
          "encode", &encode, "rows"_a, "slots"_a, "counts"_a, "stamps"_a, "ticks"_a,
          nb::sig(
              "def encode(self, rows: numpy.typing.NDArray[numpy.float32], slots: numpy.typing.NDArray[numpy.float32], "
              "counts: numpy.typing.NDArray[numpy.uint32], stamps: numpy.typing.NDArray[numpy.uint32], "
              "ticks: numpy.typing.NDArray[numpy.uint32]) -> numpy.typing.NDArray[numpy.uint8]"),
          "Returns the records (n, record_bytes) of rows that restore would take.")
      .def("let_go", &applied<&TrainingTable::let_go>, "ids"_a,
           nb::sig("def let_go(self, ids: numpy.typing.NDArray[numpy.int64]) -> int"),
           "Drops rows that the store has taken. Returns how many ids were given.")
      .def(
          "forget", &applied<&TrainingTable::forget>, "ids"_a,
          nb::sig("def forget(self, ids: numpy.typing.NDArray[numpy.int64]) -> int"),
          "Drops counts and erasures of ids without a row here, after the store was given rows of them. Returns their\n"
          "number.")
      .def(
          "pack_bare", &pack_bare,
          nb::sig("def pack_bare(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32], "
                  "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32]]"),
          "Returns all ids without a row: counts, stamps of their last change, stamps of an erasure.\n\n"
          "Behind them come ids that lost their count lately: count 0, erasure 0. Both parts are ascending.")
      .def("drop_bare", &TrainingTable::drop_bare, nb::call_guard<nb::gil_scoped_release>(),
           "Drops what pack_bare returned, which the store has taken.")
      .def("bare_size", &TrainingTable::bare_size, nb::call_guard<nb::gil_scoped_release>(),
           "Returns the number of ids without a row here.")
      .def("waiting_size", &TrainingTable::waiting_size, nb::call_guard<nb::gil_scoped_release>(),
           "Returns the number of ids here that were seen and have no row.")
      .def(
          "row_ids", [](const TrainingTable& self) { return made([&] { return self.row_ids(); }); },
          nb::sig("def row_ids(self) -> numpy.typing.NDArray[numpy.int64]"),
          "Returns ids (n,) ascending of the rows here.")
      .def("has_row", &of_each<&TrainingTable::has_row, std::uint8_t>, "ids"_a,
           nb::sig("def has_row(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]"),
           "Returns 1 where an id has a row here.")
      .def("has_waited", &of_each<&TrainingTable::has_waited, std::uint8_t>, "ids"_a,
           nb::sig("def has_waited(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]"),
           "Returns 1 where the last change of an id's count is known here.")
      .def("written", &of_each<&TrainingTable::written, std::uint32_t>, "ids"_a,
           nb::sig("def written(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint32]"),
           "Returns the stamps in the store's copies of existing rows; 0 for none.");
}

}  // namespace emberline::bind
