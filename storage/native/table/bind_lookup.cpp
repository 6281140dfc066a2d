// Lookup for Python. The arrays of a call are checked, then the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "rows/bind_absent.h"
#include "table/bind_arrays.h"
#include "table/lookup.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {
namespace {

// Keeps the tables and overlays, and the caller's arrays until finish; outputs in a tuple until others are given.
struct PyLookup {
  std::vector<nb::object> owners;
  Lookup lookup;
  std::vector<LookupInput> inputs;
  std::vector<nb::object> held;
  // The tuples that the outputs of `inputs` were read from; null where they came in lists.
  nb::object outputs, masks;
  std::size_t batch = 0;
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
                 const std::optional<nb::list>& overlays, const PyAbsents& absent,
                 const std::optional<std::vector<std::uint32_t>>& falls_back) {
  std::vector<nb::object> owners;
  std::vector<const RowSource*> pointers = pointers_of<RowSource>(tables, "tables", owners);
  std::vector<const OverlayTable*> over;
  if (overlays) over = pointers_of<OverlayTable>(*overlays, "overlays", owners);
  const std::vector<std::optional<SeededInitializer>> reads_as = absents_of(absent, features.size());
  std::vector<LookupFeature> wanted;
  for (std::size_t f = 0; f < features.size(); ++f) {
    const auto& [table, pooling, length] = features[f];
    const std::string name = "features[" + std::to_string(f) + "]: ";
    if (pooling < 0 || pooling > 3) {
      fail(name + "pooling is 0 sum, 1 mean, 2 none or 3 weighted, got " + std::to_string(pooling));
    }
    if (pooling == 2 && length == 0) fail(name + "an unpooled feature needs a length of 1 or more");
    wanted.push_back({table, static_cast<Pooling>(pooling), length, reads_as[f].value_or(SeededInitializer{})});
  }
  for (const std::uint32_t f : falls_back.value_or(std::vector<std::uint32_t>{})) {
    if (f >= wanted.size()) fail("falls_back: there is no feature " + std::to_string(f));
    wanted[f].falls_back = true;
  }
  new (self) PyLookup(std::move(owners), std::move(pointers), std::move(wanted), std::move(over));
}

// The entries of a list or a tuple, one for each feature.
nb::handle* entries_of(nb::handle sequence, const char* name, std::size_t features) {
  if (!PyList_Check(sequence.ptr()) && !PyTuple_Check(sequence.ptr())) {
    throw nb::type_error((std::string(name) + ": expected a list or a tuple, got " + describe(sequence)).c_str());
  }
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr()));
  if (count != features) {
    fail(std::string(name) + ": expected " + std::to_string(features) + " entries, one a feature, got " +
         std::to_string(count));
  }
  return reinterpret_cast<nb::handle*>(PySequence_Fast_ITEMS(sequence.ptr()));
}

// Checks where the results go, and sets it in self.inputs. A tuple of arrays that were checked before is not read
// again: it cannot have changed.
void take_outputs(PyLookup& self, std::size_t batch, nb::handle outputs, nb::handle masks) {
  if (self.outputs.is(outputs) && self.masks.is(masks) && self.batch == batch) return;
  const std::vector<LookupFeature>& features = self.lookup.features();
  const nb::handle* const to = entries_of(outputs, "outputs", features.size());
  const nb::handle* const flags = entries_of(masks, "masks", features.size());
  self.outputs = self.masks = nb::object();
  self.inputs.assign(features.size(), LookupInput{});
  const bool kept = PyTuple_Check(outputs.ptr()) && PyTuple_Check(masks.ptr());
  for (std::size_t f = 0; f < features.size(); ++f) {
    const LookupFeature& feature = features[f];
    LookupInput& input = self.inputs[f];
    const std::size_t dim = self.lookup.format(feature.table).dim;
    const bool pooled = feature.pooling != Pooling::kNone;
    const std::size_t shape[3] = {batch, pooled ? dim : feature.length, dim};
    const OutputRows output(to[f], {"outputs", f}, shape, pooled ? 2 : 3);
    input.output = output.data();
    input.stride = output.stride();
    if (!pooled) {
      input.mask = ArrayView<std::uint8_t>(flags[f], {"masks", f}, {batch, feature.length}).data();
    } else if (!flags[f].is_none()) {
      fail(ArgumentName("masks", f).str() + ": a pooled feature has no mask, expected None");
    }
    if (!kept) {
      self.held.push_back(nb::borrow(to[f]));
      self.held.push_back(nb::borrow(flags[f]));
    }
  }
  if (!kept) return;
  self.outputs = nb::borrow(outputs);
  self.masks = nb::borrow(masks);
}

// Checks the ids of a call, sets them in self.inputs, and keeps their arrays.
void take_ids(PyLookup& self, std::size_t batch, const nb::list& values, const nb::list& offsets,
              const std::optional<nb::list>& weights) {
  const std::vector<LookupFeature>& features = self.lookup.features();
  const nb::handle* const ids = entries_of(values, "values", features.size());
  const nb::handle* const ends = entries_of(offsets, "offsets", features.size());
  const nb::handle* const factors = weights ? entries_of(*weights, "weights", features.size()) : nullptr;
  for (std::size_t f = 0; f < features.size(); ++f) {
    LookupInput& input = self.inputs[f];
    // The views end with this loop's turn; the arrays stay, and numpy moves the memory of none that others hold.
    const Ids given = Ids::of_rank(1, ids[f], {"values", f});
    input.values = given.data();
    input.value_count = given.size();
    const bool shared = f > 0 && ends[f].is(ends[f - 1]);
    input.offsets = shared ? self.inputs[f - 1].offsets : Ids(ends[f], {"offsets", f}, {batch + 1}).data();
    self.held.push_back(nb::borrow(ids[f]));
    if (!shared) self.held.push_back(nb::borrow(ends[f]));
    input.weights = nullptr;
    const nb::handle factor = factors != nullptr ? factors[f] : nb::handle(Py_None);
    if (features[f].pooling == Pooling::kWeighted) {
      input.weights = Floats(factor, {"weights", f}, {input.value_count}).data();
      self.held.push_back(nb::borrow(factor));
    } else if (!factor.is_none()) {
      fail(ArgumentName("weights", f).str() + ": only a weighted feature takes them, expected None");
    }
  }
}

std::size_t begin(PyLookup& self, std::size_t batch, const nb::list& values, const nb::list& offsets,
                  nb::handle outputs, nb::handle masks, std::uint64_t mask, const std::optional<nb::list>& weights,
                  std::size_t threads) {
  self.begun = false;
  self.held.clear();
  take_outputs(self, batch, outputs, masks);
  self.batch = batch;
  take_ids(self, batch, values, offsets, weights);
  std::size_t missing = 0;
  {
    const nb::gil_scoped_release release;
    missing = self.lookup.begin(batch, self.inputs, mask, threads);
  }
  self.begun = true;
  return missing;
}

std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t> finish(PyLookup& self) {
  if (!self.begun) fail("finish: call begin first");
  LookupTotals totals;
  {
    const nb::gil_scoped_release release;
    totals = self.lookup.finish();
  }
  self.begun = false;
  self.held.clear();
  return {totals.dram, totals.supplied, totals.absent, totals.unresolved, totals.overlay};
}

const FallbackRows& fallback_of(const PyLookup& self, std::size_t feature) {
  const std::vector<LookupFeature>& features = self.lookup.features();
  if (feature >= features.size() || !features[feature].falls_back) {
    fail("feature: " + std::to_string(feature) + " does not fall back");
  }
  return self.lookup.fallback(feature);
}

std::size_t settle(PyLookup& self) {
  if (!self.begun) fail("settle: call begin first");
  const nb::gil_scoped_release release;
  return self.lookup.settle();
}

void fall_back(PyLookup& self, std::size_t feature, nb::handle rows, nb::handle has_row) {
  const std::size_t m = fallback_of(self, feature).absent.size();
  const std::size_t dim = self.lookup.format(self.lookup.features()[feature].table).dim;
  const Floats row(rows, "rows", {m, dim});
  const ArrayView<const std::uint8_t> flags(has_row, "has_row", {m});
  self.lookup.fall_back(feature, row.data(), flags.data());
}

nb::object table_totals(const PyLookup& self, std::size_t columns) {
  constexpr std::size_t kCounts = 5;
  if (columns < kCounts) fail("columns: expected 5 or more, got " + std::to_string(columns));
  const std::vector<LookupTotals>& totals = self.lookup.table_totals();
  std::vector<std::uint64_t> flat(totals.size() * columns);
  for (std::size_t t = 0; t < totals.size(); ++t) {
    const LookupTotals& of = totals[t];
    const std::uint64_t counts[kCounts] = {of.dram, of.supplied, of.absent, of.unresolved, of.overlay};
    std::copy(counts, counts + kCounts, flat.begin() + static_cast<std::ptrdiff_t>(t * columns));
  }
  return to_numpy(std::move(flat), {totals.size(), columns});
}

}  // namespace

void bind_lookup(nb::module_& module) {
  nb::class_<PyLookup>(
      module, "Lookup",
      "The lookups of one session over shared tables, in one call for all features. Not thread-safe.\n\n"
      "features: (table index, pooling 0 sum 1 mean 2 none 3 weighted, length of an unpooled one), one each. "
      "overlays:\n"
      "one a table, or None. absent: what ids without a row read as, (kind, scale, seed) or None for zeros, one a "
      "feature.\n"
      "falls_back: numbers of features whose absent ids the caller may give other rows for. Calls go begin, supply\n"
      "for each table with missing ids, finish; where features fall back, settle and fall_back come before finish.")
      .def("__init__", &make_lookup, "tables"_a, "features"_a, "overlays"_a = nb::none(), "absent"_a = nb::none(),
           "falls_back"_a = nb::none(),
           nb::sig("def __init__(self, tables: list[RowSource], features: list[tuple[int, int, int]], overlays: "
                   "list[OverlayTable] | None = None, absent: list[tuple[str, float, int] | None] | None = None, "
                   "falls_back: list[int] | None = None) -> None"))
      .def(
          "begin", &begin, "batch"_a, "values"_a, "offsets"_a, "outputs"_a, "masks"_a, "mask"_a = 0,
          "weights"_a = nb::none(), "threads"_a = 1,
          nb::sig("def begin(self, batch: int, values: list[numpy.typing.NDArray[numpy.int64]], offsets: "
                  "list[numpy.typing.NDArray[numpy.int64]], "
                  "outputs: collections.abc.Sequence[numpy.typing.NDArray[numpy.float32]], masks: "
                  "collections.abc.Sequence[numpy.typing.NDArray[numpy.uint8] | None], mask: int = 0, "
                  "weights: list[numpy.typing.NDArray[numpy.float32] | None] | None = None, threads: int = 1) -> int"),
          "Looks up a batch: values[f] (N,), offsets[f] (B + 1,); outputs[f] (B, dim), or (B, length, dim) with "
          "masks[f]\n"
          "(B, length).\n\n"
          "Outputs are written in place, by finish where rows are missing. What belongs to one bag is C-contiguous; "
          "bags\n"
          "may lie apart, as in some columns of a larger array. outputs and masks are lists or tuples, and tuples that "
          "were\n"
          "given for the last batch too, of the same size, are not checked again. mask: bit i makes overlay i "
          "visible.\n"
          "weights[f] (N,) of a weighted feature, else None. threads: number of threads at most, 1 to 64; one for "
          "each\n"
          "2,048 ids.\n\n"
          "Returns how many distinct ids are missing.")
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
          "A state is 0 absent, 1 found, 2 unresolved, which reads as zeros.")
      .def("settle", &settle, nb::sig("def settle(self) -> int"),
           "Finds the absent ids of features that fall back, after `supply`. Returns how many there are.")
      .def(
          "absent_places",
          [](const PyLookup& self, std::size_t feature) {
            return to_numpy(std::vector<std::int64_t>(fallback_of(self, feature).absent));
          },
          "feature"_a, nb::sig("def absent_places(self, feature: int) -> numpy.typing.NDArray[numpy.int64]"),
          "Returns places (m,) of the absent ids among the values of a feature, after `settle`.")
      .def(
          "unresolved_places",
          [](const PyLookup& self, std::size_t feature) {
            return to_numpy(std::vector<std::int64_t>(fallback_of(self, feature).unresolved));
          },
          "feature"_a, nb::sig("def unresolved_places(self, feature: int) -> numpy.typing.NDArray[numpy.int64]"),
          "Returns places of the unresolved ids among the values of a feature, after `settle`.")
      .def("fall_back", &fall_back, "feature"_a, "rows"_a, "has_row"_a,
           nb::sig("def fall_back(self, feature: int, rows: numpy.typing.NDArray[numpy.float32], has_row: "
                   "numpy.typing.NDArray[numpy.uint8]) -> None"),
           "Gives rows (m, dim) for the absent ids of a feature, copied; has_row (m,) is 0 where there is none.")
      .def("finish", &finish,
           "Completes the outputs. Returns occurrences of ids: answered by the tables, supplied, absent, unresolved,\n"
           "answered by overlays. An id that an overlay removed is absent.")
      .def(
          "table_totals", &table_totals, "columns"_a = 5,
          nb::sig("def table_totals(self, columns: int = 5) -> numpy.typing.NDArray[numpy.uint64]"),
          "Returns the results of the last finish by table: (T, columns), the first ones as finish returns them, then\n"
          "zeros.");
}

}  // namespace emberline::bind
