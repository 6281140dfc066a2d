// Rows of a batch for a GPU, for Python.
#include "training/device_rows.h"

#include "training/kept_lookup.h"

namespace emberline::bind {
namespace {

using Places = ArrayView<std::int32_t>;
using Features = std::vector<std::uint32_t>;

// A batch's rows, and the gradients that came back for them.
class KeptDeviceRows {
 public:
  KeptDeviceRows(KeptLookup& lookup, std::vector<std::uint32_t> groups, const nb::list& kept, std::size_t threads)
      : kept_(lookup), lookup_(lookup.lookup()), rows_(made(lookup_, std::move(groups), kept, threads)) {}
  KeptDeviceRows(const KeptDeviceRows&) = delete;
  KeptDeviceRows& operator=(const KeptDeviceRows&) = delete;

  nb::object kept(std::size_t group) const {
    std::vector<std::int32_t> places = rows_.kept(checked(group));
    return to_numpy(std::move(places));
  }
  std::size_t others(std::size_t group) const { return rows_.others(checked(group)); }
  std::size_t ids(const Features& features) const { return rows_.ids(checked(features, true)); }

  void write(const nb::list& out, std::size_t threads) const {
    std::vector<ArrayView<float>> views;
    std::vector<float*> to;
    for (std::size_t group = 0; group < rows_.groups(); ++group) {
      views.emplace_back(given(out, group), ArgumentName("out", group),
                         std::initializer_list<std::size_t>{rows_.others(group), dim(group)});
      to.push_back(views.back().data());
    }
    const nb::gil_scoped_release release;
    rows_.write(to, std::max<std::size_t>(1, threads));
  }

  void write_bags(const Features& features, nb::handle places, nb::handle offsets, nb::handle weights,
                  std::size_t threads) const {
    const std::size_t n = rows_.ids(checked(features, true));
    const Places place(places, "places", {n});
    const Places offset(offsets, "offsets", {lookup_.batch() * features.size() + 1});
    std::optional<ArrayView<float>> weight;
    if (!weights.is_none()) {
      for (const std::uint32_t feature : features) {
        if (lookup_.features()[feature].pooling != Pooling::kWeighted) fail("weights: a feature has none");
      }
      weight.emplace(weights, "weights", std::initializer_list<std::size_t>{n});
    }
    const nb::gil_scoped_release release;
    rows_.write_bags(features, place.data(), offset.data(), weight ? weight->data() : nullptr,
                     std::max<std::size_t>(1, threads));
  }

  void write_sequence(std::uint32_t feature, nb::handle places) const {
    checked({feature}, false);
    const Places place(places, "places", {lookup_.batch(), lookup_.features()[feature].length});
    const nb::gil_scoped_release release;
    rows_.write_sequence(feature, place.data());
  }

  nb::tuple sums(std::size_t group, const std::vector<std::tuple<std::size_t, std::size_t, bool>>& from,
                 std::size_t threads) const {
    if (from.size() != lookup_.features().size()) fail("gradients: expected one entry a feature");
    std::vector<GradientRows> rows;
    for (const auto& [first, stride, has] : from) rows.push_back({first, stride, has});
    DeviceSums found;
    {
      const nb::gil_scoped_release release;
      found = rows_.sums(checked(group), rows, std::max<std::size_t>(1, threads));
    }
    nb::list levels;
    for (std::vector<std::int32_t>& level : found.levels) levels.append(to_numpy(std::move(level)));
    const bool has_factors = !found.factors.empty();
    return nb::make_tuple(to_numpy(std::move(found.rows)),
                          has_factors ? to_numpy(std::move(found.factors)) : nb::none(), levels);
  }

  nb::object is_used(std::size_t group, const std::vector<bool>& used) const {
    return to_numpy(rows_.is_used(checked(group), flags(used)));
  }

  void take_gradients(const nb::list& grads, const std::vector<bool>& used, std::size_t threads) {
    const std::vector<char> of_used = flags(used);
    std::vector<Floats> views;
    std::vector<const float*> from;
    for (std::size_t group = 0; group < rows_.groups(); ++group) {
      views.emplace_back(given(grads, group), ArgumentName("grads", group),
                         std::initializer_list<std::size_t>{rows_.others(group), dim(group)});
      from.push_back(views.back().data());
    }
    kept_.keep_gradients(std::move(views));
    const nb::gil_scoped_release release;
    rows_.take_gradients(from, of_used, std::max<std::size_t>(1, threads));
  }

 private:
  static DeviceRows made(BatchLookup& lookup, std::vector<std::uint32_t> groups, const nb::list& kept,
                         std::size_t threads) {
    std::vector<const KeptIds*> ids;
    for (nb::handle each : kept) ids.push_back(each.is_none() ? nullptr : nb::cast<const KeptIds*>(each));
    const nb::gil_scoped_release release;
    return {lookup, std::move(groups), ids, std::max<std::size_t>(1, threads)};
  }

  std::size_t checked(std::size_t group) const {
    if (group >= rows_.groups()) fail("group: there is no group " + std::to_string(group));
    return group;
  }

  const Features& checked(const Features& features, bool pooled) const {
    for (const std::uint32_t feature : features) {
      if (feature >= lookup_.features().size()) fail("features: there is no feature " + std::to_string(feature));
      if ((lookup_.features()[feature].pooling != Pooling::kNone) != pooled) {
        fail("features: feature " + std::to_string(feature) + (pooled ? " is not pooled" : " is pooled"));
      }
    }
    return features;
  }

  std::vector<char> flags(const std::vector<bool>& used) const {
    if (used.size() != lookup_.features().size()) fail("used: expected one a feature");
    return {used.begin(), used.end()};
  }

  nb::object given(const nb::list& list, std::size_t group) const {
    if (list.size() != rows_.groups()) fail("expected one array a group");
    return list[group];
  }

  std::size_t dim(std::size_t group) const { return rows_.dim(group); }

  KeptLookup& kept_;
  BatchLookup& lookup_;
  DeviceRows rows_;
};

}  // namespace

void bind_device_rows(nb::module_& module) {
  nb::class_<KeptIds>(module, "KeptIds", "The rows of a table that a GPU keeps: ids, and their places there.")
      .def(nb::init<>())
      .def(
          "put",
          [](KeptIds& kept, nb::handle ids, nb::handle places) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<const std::int32_t> place(places, "places", {id.size()});
            for (std::size_t i = 0; i < id.size(); ++i) {
              if (place.data()[i] < 0) fail("places: below 0");
              kept.put(id.data()[i], static_cast<std::uint32_t>(place.data()[i]));
            }
          },
          "ids"_a, "places"_a,
          nb::sig("def put(self, ids: numpy.typing.NDArray[numpy.int64], places: numpy.typing.NDArray[numpy.int32]) -> "
                  "None"),
          "Keeps ids (n,) at places (n,).")
      .def(
          "erase",
          [](KeptIds& kept, nb::handle ids) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            for (std::size_t i = 0; i < id.size(); ++i) kept.erase(id.data()[i]);
          },
          "ids"_a, nb::sig("def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> None"),
          "Forgets ids, kept or not.")
      .def("clear", &KeptIds::clear, "Forgets all ids.")
      .def("size", &KeptIds::size, "Returns the number of ids that are kept.");
  nb::class_<KeptDeviceRows>(
      module, "DeviceRows",
      "The rows of a batch as a GPU gets them, each once, and their gradients.\n\n"
      "lookup: one whose `find` was called, which is not called again before the step. groups: by table; tables of a\n"
      "group have one dim D. kept: by table, None for one of which the GPU keeps no row. The matrix of a group has "
      "the\n"
      "kept rows first, then the others, then one of zeros.")
      .def(
          nb::init<KeptLookup&, std::vector<std::uint32_t>, const nb::list&, std::size_t>(), "lookup"_a, "groups"_a,
          "kept"_a, "threads"_a, nb::keep_alive<1, 2>(),
          nb::sig("def __init__(self, lookup: BatchLookup, groups: collections.abc.Sequence[int], kept: list[KeptIds | "
                  "None], threads: int) -> None"))
      .def("kept", &KeptDeviceRows::kept, "group"_a,
           nb::sig("def kept(self, group: int) -> numpy.typing.NDArray[numpy.int32]"),
           "Returns the places of the kept rows of a group, in the order of its matrix.")
      .def("others", &KeptDeviceRows::others, "group"_a, "Returns how many rows of a group are not kept.")
      .def("ids", &KeptDeviceRows::ids, "features"_a, "Returns how many ids these pooled features have together.")
      .def("write", &KeptDeviceRows::write, "out"_a, "threads"_a,
           nb::sig("def write(self, out: list[numpy.typing.NDArray[numpy.float32]], threads: int) -> None"),
           "Writes the rows that are not kept: out (others, D) by group.")
      .def("write_bags", &KeptDeviceRows::write_bags, "features"_a, "places"_a, "offsets"_a, "weights"_a.none(),
           "threads"_a,
           nb::sig("def write_bags(self, features: collections.abc.Sequence[int], places: "
                   "numpy.typing.NDArray[numpy.int32], offsets: numpy.typing.NDArray[numpy.int32], weights: "
                   "numpy.typing.NDArray[numpy.float32] | None, threads: int) -> None"),
           "Writes the bags of features of one group, side by side: those of the first line of the batch first.\n\n"
           "places (ids,) in the matrix, offsets (B * features + 1,), weights (ids,) of pooling weighted.")
      .def("write_sequence", &KeptDeviceRows::write_sequence, "feature"_a, "places"_a,
           nb::sig("def write_sequence(self, feature: int, places: numpy.typing.NDArray[numpy.int32]) -> None"),
           "Writes places (B, L) in the matrix of the ids of a feature of pooling none.")
      .def(
          "sums", &KeptDeviceRows::sums, "group"_a, "gradients"_a, "threads"_a,
          nb::sig("def sums(self, group: int, gradients: list[tuple[int, int, bool]], threads: int) -> "
                  "tuple[numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.float32] | None, "
                  "list[numpy.typing.NDArray[numpy.int32]]]"),
          "Returns what the gradients of the rows of a group, kept and others, are sums of.\n\n"
          "gradients: by feature, in which row of a matrix of gradients that of its first bag lies, how many rows on\n"
          "that of the next, and whether it has any; those of the places of a sequence follow each other. Terms: rows\n"
          "(n,) of that matrix, factors (n,), None when all are 1. Levels: where the sums of each begin, and the end;\n"
          "those of the last are the rows'.")
      .def("is_used", &KeptDeviceRows::is_used, "group"_a, "used"_a,
           nb::sig("def is_used(self, group: int, used: list[bool]) -> numpy.typing.NDArray[numpy.uint8]"),
           "Returns 1 for the rows of a group, kept and others, of features that are used, and 0 for the rest.")
      .def("take_gradients", &KeptDeviceRows::take_gradients, "grads"_a, "used"_a, "threads"_a,
           nb::sig("def take_gradients(self, grads: list[numpy.typing.NDArray[numpy.float32]], used: list[bool], "
                   "threads: int) -> None"),
           "Leaves the gradients of the rows that are not kept with the lookup: grads (others, D) by group.\n\n"
           "used: by feature; ids of the others alone take no step.");
}

}  // namespace emberline::bind
