// Lookup for Python. The arrays of a call are checked, then the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "table/bind_arrays.h"
#include "table/lookup.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {
namespace {

// Keeps the tables and overlays, and the caller's arrays: until finish, or, of a prepared call, until the next.
struct PyLookup {
  std::vector<nb::object> owners;
  Lookup lookup;
  std::vector<LookupInput> inputs;
  std::vector<nb::object> held;
  std::size_t batch = 0;
  bool begun = false;
  // A prepared call: how many values its arrays have room for.
  bool prepared = false;
  std::vector<std::size_t> rooms;

  PyLookup(std::vector<nb::object> kept, std::vector<const RowSource*> tables, std::vector<LookupFeature> features,
           std::vector<const OverlayTable*> overlays)
      : owners(std::move(kept)), lookup(std::move(tables), std::move(features), std::move(overlays)) {}

  std::size_t table_index(std::size_t table) const {
    if (table >= lookup.table_count()) {
      fail("table: expected a number below " + std::to_string(lookup.table_count()) + ", got " + std::to_string(table));
    }
    return table;
  }

  std::size_t begin(std::uint64_t mask, std::size_t threads) {
    begun = false;
    std::size_t missing = 0;
    {
      const nb::gil_scoped_release release;
      missing = lookup.begin(batch, inputs, mask, threads);
    }
    begun = true;
    return missing;
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
  std::vector<LookupFeature> wanted;
  for (std::size_t f = 0; f < features.size(); ++f) {
    const auto& [table, pooling, length] = features[f];
    const std::string name = "features[" + std::to_string(f) + "]: ";
    if (pooling < 0 || pooling > 3) {
      fail(name + "pooling is 0 sum, 1 mean, 2 none or 3 weighted, got " + std::to_string(pooling));
    }
    if (pooling == 2 && length == 0) fail(name + "an unpooled feature needs a length of 1 or more");
    wanted.push_back({table, static_cast<Pooling>(pooling), length});
  }
  new (self) PyLookup(std::move(owners), std::move(pointers), std::move(wanted), std::move(over));
}

void check_count(const nb::list& list, const char* name, std::size_t features) {
  if (list.size() == features) return;
  fail(std::string(name) + ": expected " + std::to_string(features) + " entries, one a feature, got " +
       std::to_string(list.size()));
}

// Checks the arrays of a call and keeps them: self.inputs and self.held.
void take_arrays(PyLookup& self, std::size_t batch, const nb::list& values, const nb::list& offsets,
                 const nb::list& outputs, const nb::list& masks, const std::optional<nb::list>& weights) {
  const std::vector<LookupFeature>& features = self.lookup.features();
  const std::size_t count = features.size();
  check_count(values, "values", count);
  check_count(offsets, "offsets", count);
  check_count(outputs, "outputs", count);
  check_count(masks, "masks", count);
  if (weights) check_count(*weights, "weights", count);
  self.begun = self.prepared = false;
  self.held.clear();
  self.inputs.clear();
  self.batch = batch;
  for (std::size_t f = 0; f < count; ++f) {
    const LookupFeature& feature = features[f];
    const std::size_t dim = self.lookup.format(feature.table).dim;
    const nb::object id_array = values[f], ends_array = offsets[f], to = outputs[f], flags = masks[f];
    const Ids ids = Ids::of_rank(1, id_array, {"values", f});
    const Ids ends(ends_array, {"offsets", f}, {batch + 1});
    const bool pooled = feature.pooling != Pooling::kNone;
    const std::size_t shape[3] = {batch, pooled ? dim : feature.length, dim};
    const ArrayView<float> output(to, {"outputs", f}, shape, pooled ? 2 : 3);
    std::uint8_t* found = nullptr;
    if (!pooled) {
      found = ArrayView<std::uint8_t>(flags, {"masks", f}, {batch, feature.length}).data();
    } else if (!flags.is_none()) {
      fail(ArgumentName("masks", f).str() + ": a pooled feature has no mask, expected None");
    }
    const float* factors = nullptr;
    const nb::object given = weights ? nb::object((*weights)[f]) : nb::none();
    if (feature.pooling == Pooling::kWeighted) {
      factors = Floats(given, {"weights", f}, {ids.size()}).data();
      self.held.push_back(given);
    } else if (!given.is_none()) {
      fail(ArgumentName("weights", f).str() + ": only a weighted feature takes them, expected None");
    }
    self.inputs.push_back({ids.data(), ids.size(), ends.data(), output.data(), found, factors});
    // The views above end with this loop's turn; the arrays stay, and numpy moves the memory of none that others hold.
    for (const nb::object& kept : {id_array, ends_array, to, flags}) self.held.push_back(kept);
  }
}

std::size_t begin(PyLookup& self, std::size_t batch, const nb::list& values, const nb::list& offsets,
                  const nb::list& outputs, const nb::list& masks, std::uint64_t mask,
                  const std::optional<nb::list>& weights, std::size_t threads) {
  take_arrays(self, batch, values, offsets, outputs, masks, weights);
  return self.begin(mask, threads);
}

void prepare(PyLookup& self, std::size_t batch, const nb::list& values, const nb::list& offsets,
             const nb::list& outputs, const nb::list& masks, const std::optional<nb::list>& weights) {
  take_arrays(self, batch, values, offsets, outputs, masks, weights);
  self.rooms.clear();
  for (const LookupInput& input : self.inputs) self.rooms.push_back(input.value_count);
  self.prepared = true;
}

std::size_t begin_prepared(PyLookup& self, std::uint64_t mask, std::size_t threads) {
  if (!self.prepared) fail("begin_prepared: call prepare first; begin ends what was prepared");
  for (std::size_t f = 0; f < self.inputs.size(); ++f) {
    LookupInput& input = self.inputs[f];
    const std::int64_t end = input.offsets[self.batch];
    // Values beyond the room are left to the check of all offsets.
    input.value_count =
        end >= 0 && static_cast<std::size_t>(end) <= self.rooms[f] ? static_cast<std::size_t>(end) : self.rooms[f];
  }
  return self.begin(mask, threads);
}

std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t> finish(PyLookup& self) {
  if (!self.begun) fail("finish: call begin first");
  LookupTotals totals;
  {
    const nb::gil_scoped_release release;
    totals = self.lookup.finish();
  }
  self.begun = false;
  if (!self.prepared) self.held.clear();
  return {totals.dram, totals.supplied, totals.absent, totals.unresolved, totals.overlay};
}

nb::object table_totals(const PyLookup& self) {
  const std::vector<LookupTotals>& totals = self.lookup.table_totals();
  std::vector<std::uint64_t> flat;
  for (const LookupTotals& of : totals) {
    flat.insert(flat.end(), {of.dram, of.supplied, of.absent, of.unresolved, of.overlay});
  }
  return to_numpy(std::move(flat), {totals.size(), 5});
}

}  // namespace

void bind_lookup(nb::module_& module) {
  nb::class_<PyLookup>(
      module, "Lookup",
      "The lookups of one session over shared tables, in one call for all features. Not thread-safe.\n\n"
      "features: (table index, pooling 0 sum 1 mean 2 none 3 weighted, length of an unpooled one), one each. "
      "overlays:\n"
      "one a table, or None. Calls go begin, supply for each table with missing ids, finish.")
      .def("__init__", &make_lookup, "tables"_a, "features"_a, "overlays"_a = nb::none(),
           nb::sig("def __init__(self, tables: list[RowSource], features: list[tuple[int, int, int]], overlays: "
                   "list[OverlayTable] | None = None) -> None"))
      .def("begin", &begin, "batch"_a, "values"_a, "offsets"_a, "outputs"_a, "masks"_a, "mask"_a = 0,
           "weights"_a = nb::none(), "threads"_a = 1,
           nb::sig("def begin(self, batch: int, values: list[numpy.typing.NDArray[numpy.int64]], offsets: "
                   "list[numpy.typing.NDArray[numpy.int64]], "
                   "outputs: list[numpy.typing.NDArray[numpy.float32]], masks: list[numpy.typing.NDArray[numpy.uint8] "
                   "| None], mask: int = 0, "
                   "weights: list[numpy.typing.NDArray[numpy.float32] | None] | None = None, threads: int = 1) -> int"),
           "Looks up a batch: values[f] (N,), offsets[f] (B + 1,); outputs[f] (B, dim), or (B, length, dim) with "
           "masks[f]\n"
           "(B, length).\n\n"
           "Outputs are written in place, by finish where rows are missing. mask: bit i makes overlay i visible. "
           "weights[f]\n"
           "(N,) of a weighted feature, else None. threads: number of threads at most, 1 to 64; one for each 2,048 "
           "ids.\n\n"
           "Returns how many distinct ids are missing.")
      .def("prepare", &prepare, "batch"_a, "values"_a, "offsets"_a, "outputs"_a, "masks"_a, "weights"_a = nb::none(),
           nb::sig("def prepare(self, batch: int, values: list[numpy.typing.NDArray[numpy.int64]], offsets: "
                   "list[numpy.typing.NDArray[numpy.int64]], "
                   "outputs: list[numpy.typing.NDArray[numpy.float32]], masks: list[numpy.typing.NDArray[numpy.uint8] "
                   "| None], "
                   "weights: list[numpy.typing.NDArray[numpy.float32] | None] | None = None) -> None"),
           "Checks and keeps the arrays of a call that is repeated: between the calls their contents change, and "
           "offsets may\n"
           "end anywhere within values.")
      .def("begin_prepared", &begin_prepared, "mask"_a = 0, "threads"_a = 1,
           nb::sig("def begin_prepared(self, mask: int = 0, threads: int = 1) -> int"),
           "Begins as `begin` does, over the arrays of prepare.")
      .def(
          "missing",
          [](const PyLookup& self, std::size_t table) {
            return to_numpy(std::vector<std::int64_t>(self.lookup.missing(self.table_index(table))));
          },
          "table"_a, nb::sig("def missing(self, table: int) -> numpy.typing.NDArray[numpy.int64]"),
          "Returns the missing ids of a table, each once.")
      .def(
          "missing_sources",
          [](const PyLookup& self, std::size_t table) {
            return to_numpy(std::vector<std::uint8_t>(self.lookup.missing_sources(self.table_index(table))));
          },
          "table"_a, nb::sig("def missing_sources(self, table: int) -> numpy.typing.NDArray[numpy.uint8]"),
          "Returns where the rows of missing(table) lie: the overlay that spilled it, or 255 for the base.\n\n"
          "An overlay may be merged since: the base has the rows that it no longer has.")
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
          nb::sig("def supply(self, table: int, rows: numpy.typing.NDArray[numpy.float32] | "
                  "numpy.typing.NDArray[numpy.uint8], state: numpy.typing.NDArray[numpy.uint8]) -> None"),
          "Supplies rows (m, dim), or encoded (m, row_bytes), and state (m,) for the ids of missing(table), copied.\n\n"
          "A state is 0 absent, 1 found, 2 unresolved.")
      .def("finish", &finish,
           "Completes the outputs. Returns occurrences of ids: answered by the tables, supplied, absent, unresolved,\n"
           "answered by overlays. An id that an overlay removed is absent.")
      .def("table_totals", &table_totals, nb::sig("def table_totals(self) -> numpy.typing.NDArray[numpy.uint64]"),
           "Returns the results of the last finish by table: (T, 5), columns as finish returns them.");
}

}  // namespace emberline::bind
