// Lookups of several tables and the steps of optimizers, for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "rows/bind_absent.h"
#include "training/batch_lookup.h"
#include "training/bind_training.h"

namespace emberline::bind {
namespace {

// A lookup, and the arrays that it reads: they are kept until the next call.
class KeptLookup {
 public:
  using PyFeatures = std::vector<std::tuple<std::uint32_t, int, std::uint32_t>>;

  // features: (table, pooling, length) each.
  KeptLookup(std::vector<TrainingTable*> tables, const PyFeatures& features, const PyAbsents& absent)
      : lookup_(std::move(tables), of(features, absent)) {
    for (const FeatureLookup& feature : lookup_.features()) {
      columns_.push_back(width_);
      if (feature.pooling != Pooling::kNone) width_ += lookup_.tables()[feature.table]->dim();
    }
  }

  KeptLookup(const KeptLookup&) = delete;
  KeptLookup& operator=(const KeptLookup&) = delete;

  std::size_t width() const { return width_; }

  void run(const nb::list& values, const nb::list& offsets, const nb::list& weights, std::size_t batch,
           nb::handle pooled, const nb::list& sequences, bool train, std::size_t threads) {
    std::vector<FeatureIds> ids = taken(values, offsets, weights, batch);
    const std::vector<FeatureValues<float>> out = places<float>(pooled, sequences, batch);
    const LookupOptions options{train, std::max<std::size_t>(1, threads)};
    const nb::gil_scoped_release release;
    lookup_.run(std::move(ids), batch, out, options);
  }

  // Returns the ids of each table, each once, and how often they came.
  nb::list collect(const nb::list& values, const nb::list& offsets, const nb::list& weights, std::size_t batch,
                   std::size_t threads) {
    std::vector<FeatureIds> ids = taken(values, offsets, weights, batch);
    {
      const nb::gil_scoped_release release;
      lookup_.collect(std::move(ids), batch, std::max<std::size_t>(1, threads));
    }
    nb::list tables;
    for (std::size_t table = 0; table < lookup_.tables().size(); ++table) {
      std::vector<std::int64_t> found = lookup_.found(table).ids;
      std::vector<std::uint32_t> counts = lookup_.found(table).counts;
      tables.append(nb::make_tuple(to_numpy(std::move(found)), to_numpy(std::move(counts))));
    }
    return tables;
  }

  void pool(const nb::list& rows, const nb::list& has_row, nb::handle pooled, const nb::list& sequences,
            std::size_t threads) {
    expect(rows, lookup_.tables().size(), "rows", "table");
    expect(has_row, lookup_.tables().size(), "has_row", "table");
    std::vector<Floats> kept_rows;
    std::vector<ArrayView<const std::uint8_t>> kept_flags;
    std::vector<GivenRows> given;
    for (std::size_t table = 0; table < lookup_.tables().size(); ++table) {
      const std::size_t n = lookup_.found(table).ids.size();
      kept_rows.emplace_back(rows[table], ArgumentName("rows", table),
                             std::initializer_list<std::size_t>{n, lookup_.tables()[table]->dim()});
      kept_flags.emplace_back(has_row[table], ArgumentName("has_row", table), std::initializer_list<std::size_t>{n});
      given.push_back({kept_rows.back().data(), kept_flags.back().data()});
    }
    const std::vector<FeatureValues<float>> out = places<float>(pooled, sequences, batch_);
    const nb::gil_scoped_release release;
    lookup_.pool(given, out, std::max<std::size_t>(1, threads));
  }

  void sum_gradients(const nb::list& out, std::size_t threads) const {
    expect(out, lookup_.tables().size(), "out", "table");
    std::vector<ArrayView<float>> kept;
    std::vector<float*> sums;
    for (std::size_t table = 0; table < lookup_.tables().size(); ++table) {
      kept.emplace_back(
          out[table], ArgumentName("out", table),
          std::initializer_list<std::size_t>{lookup_.found(table).ids.size(), lookup_.tables()[table]->dim()});
      sums.push_back(kept.back().data());
    }
    const nb::gil_scoped_release release;
    lookup_.sum_gradients(sums, std::max<std::size_t>(1, threads));
  }

  void set_gradients(nb::handle pooled, const nb::list& sequences, std::size_t threads) {
    grads_.clear();
    const std::vector<FeatureValues<const float>> grads = places<const float>(pooled, sequences, batch_);
    const nb::gil_scoped_release release;
    lookup_.set_gradients(grads, std::max<std::size_t>(1, threads));
  }

  TableGradients& gradients(std::size_t table) {
    if (table >= lookup_.tables().size()) fail("table: there is no table " + std::to_string(table));
    return lookup_.gradients(table);
  }

 private:
  static std::vector<FeatureLookup> of(const PyFeatures& features, const PyAbsents& absent) {
    const std::vector<std::optional<SeededInitializer>> reads_as = absents_of(absent, features.size());
    std::vector<FeatureLookup> made;
    for (const auto& [table, pooling, length] : features) {
      if (pooling < 0 || pooling > 3) fail("pooling: expected 0 to 3, got " + std::to_string(pooling));
      made.push_back({table, static_cast<Pooling>(pooling), length, reads_as[made.size()]});
    }
    return made;
  }

  static void expect(const nb::list& list, std::size_t n, const char* name, const char* of = "feature") {
    if (list.size() == n) return;
    fail(std::string(name) + ": expected " + std::to_string(n) + " entries, one a " + of + ", got " +
         std::to_string(list.size()));
  }

  // Keeps the ids of each feature and returns where they lie.
  std::vector<FeatureIds> taken(const nb::list& values, const nb::list& offsets, const nb::list& weights,
                                std::size_t batch) {
    const std::vector<FeatureLookup>& features = lookup_.features();
    expect(values, features.size(), "values");
    expect(offsets, features.size(), "offsets");
    expect(weights, features.size(), "weights");
    values_.clear();
    offsets_.clear();
    weights_.clear();
    std::vector<FeatureIds> ids;
    for (std::size_t f = 0; f < features.size(); ++f) {
      values_.push_back(Ids::of_rank(1, values[f], {"values", f}));
      offsets_.emplace_back(offsets[f], ArgumentName("offsets", f), std::initializer_list<std::size_t>{batch + 1});
      FeatureIds given{values_.back().data(), offsets_.back().data(), nullptr, values_.back().size()};
      if (features[f].pooling == Pooling::kWeighted) {
        weights_.emplace_back(weights[f], ArgumentName("weights", f), std::initializer_list<std::size_t>{given.n});
        given.weights = weights_.back().data();
      }
      ids.push_back(given);
    }
    batch_ = batch;
    return ids;
  }

  // Where the values of each feature lie: pooled (B, width), sequences (B, L, D) each; None where there are none.
  template <class T>
  std::vector<FeatureValues<T>> places(nb::handle pooled, const nb::list& sequences, std::size_t batch) {
    const std::vector<FeatureLookup>& features = lookup_.features();
    std::vector<FeatureValues<T>> found(features.size());
    T* first = nullptr;
    if (!pooled.is_none()) {
      ArrayView<T> view(pooled, "pooled", {batch, width_});
      first = view.data();
      keep(std::move(view));
    }
    std::size_t sequence = 0;
    for (std::size_t f = 0; f < features.size(); ++f) {
      const std::uint32_t dim = lookup_.tables()[features[f].table]->dim();
      if (features[f].pooling != Pooling::kNone) {
        if (first != nullptr) found[f] = {first + columns_[f], width_};
        continue;
      }
      if (sequence == sequences.size()) fail("sequences: there are too few");
      const nb::object given = sequences[sequence];
      if (!given.is_none()) {
        ArrayView<T> view(given, ArgumentName("sequences", sequence), {batch, features[f].length, dim});
        found[f] = {view.data(), 0};
        keep(std::move(view));
      }
      ++sequence;
    }
    return found;
  }

  void keep(ArrayView<float>&&) {}  // written before the call ends
  void keep(ArrayView<const float>&& view) { grads_.push_back(std::move(view)); }

  BatchLookup lookup_;
  std::vector<std::size_t> columns_;  // by feature
  std::size_t width_ = 0, batch_ = 0;
  std::vector<Ids> values_, offsets_;
  std::vector<Floats> weights_, grads_;
};

// The gradients of single rows, and their array.
struct RowGradients {
  TableGradients gradients;
  Floats grads;
};

nb::object ids_of(const TableGradients& gradients) {
  std::vector<std::int64_t> ids = gradients.found.ids;
  return to_numpy(std::move(ids));
}

TableGradients* gradients_of(nb::handle given) {
  RowGradients* rows = nullptr;
  if (nb::try_cast(given, rows)) return &rows->gradients;
  return nb::cast<TableGradients*>(given);
}

// gradients: lists, of which one belongs to each table, with one entry or more.
struct Prepared {
  Prepared(const std::vector<TrainingTable*>& tables, const nb::list& gradients) {
    if (gradients.size() != tables.size()) fail("gradients: expected one list a table");
    merged.reserve(tables.size());
    for (std::size_t i = 0; i < tables.size(); ++i) {
      std::vector<const TableGradients*> parts;
      TableGradients* only = nullptr;
      for (nb::handle each : nb::cast<nb::list>(gradients[i])) parts.push_back(only = gradients_of(each));
      if (parts.size() > 1) {
        merged.push_back(TableGradients::merged(parts));
        only = &merged.back();
      } else if (parts.empty()) {
        merged.emplace_back().starts = {0};
        only = &merged.back();
      }
      steps.push_back({tables[i], only});
    }
  }

  std::vector<TableGradients> merged;
  std::vector<TableStep> steps;
};

float number(const nb::dict& options, const char* name) {
  return options.contains(name) ? nb::cast<float>(options[name]) : 0.0f;
}

Step step_of(const std::string& rule, const nb::dict& options) {
  Step step;
  step.rule = rule_of(rule);
  step.lr = number(options, "lr");
  step.weight_decay = number(options, "weight_decay");
  step.eps = number(options, "eps");
  step.momentum = number(options, "momentum");
  step.beta1 = number(options, "beta1");
  step.beta2 = number(options, "beta2");
  step.decay = number(options, "decay");
  step.initial = number(options, "initial");
  step.beta = number(options, "beta");
  step.l1 = number(options, "l1");
  step.l2 = number(options, "l2");
  step.row_clip = number(options, "row_clip");
  if (options.contains("period")) step.period = nb::cast<std::uint32_t>(options["period"]);
  if (options.contains("scale")) step.scale = nb::cast<float>(options["scale"]);
  return step;
}

}  // namespace

void bind_batch_lookup(nb::module_& module) {
  nb::class_<TableGradients>(module, "TableGradients", "The gradients that one table got from a lookup.")
      .def_prop_ro(
          "ids", [](const TableGradients& self) { return ids_of(self); },
          nb::sig("def ids(self) -> numpy.typing.NDArray[numpy.int64]"));
  nb::class_<RowGradients>(module, "RowGradients", "Gradients (n, dim) of single rows.")
      .def(
          "__init__",
          [](RowGradients* self, TrainingTable& table, nb::handle ids, nb::handle grads) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            Floats grad(grads, "grads", {id.size(), table.dim()});
            new (self) RowGradients{TableGradients::of_rows(table, id.data(), id.size(), grad.data()), std::move(grad)};
          },
          "table"_a, "ids"_a, "grads"_a,
          nb::sig("def __init__(self, table: TrainingTable, ids: numpy.typing.NDArray[numpy.int64], grads: "
                  "numpy.typing.NDArray[numpy.float32]) -> None"))
      .def_prop_ro(
          "ids", [](const RowGradients& self) { return ids_of(self.gradients); },
          nb::sig("def ids(self) -> numpy.typing.NDArray[numpy.int64]"));
  nb::class_<KeptLookup>(
      module, "BatchLookup",
      "One lookup of several features of several tables, and the gradients that come back for it.\n\n"
      "features: (place in tables, pooling 0 sum, 1 mean, 2 none or 3 weighted, length of pooling none) each. An id\n"
      "that repeats in a batch is read once. absent: (kind, scale, seed) for a feature whose ids without a row do not\n"
      "read as its table says, else None. It keeps what it is given until the next call.")
      .def(nb::init<std::vector<TrainingTable*>, const KeptLookup::PyFeatures&, const PyAbsents&>(), "tables"_a,
           "features"_a, "absent"_a = nb::none(), nb::keep_alive<1, 2>(),
           nb::sig("def __init__(self, tables: collections.abc.Sequence[TrainingTable], features: "
                   "collections.abc.Sequence[tuple[int, int, int]], absent: list[tuple[str, float, int] | None] | "
                   "None = None) -> None"))
      .def_prop_ro("width", &KeptLookup::width, "Values of all pooled features together.")
      .def(
          "run", &KeptLookup::run, "values"_a, "offsets"_a, "weights"_a, "batch"_a, "pooled"_a.none(), "sequences"_a,
          "train"_a, "threads"_a,
          nb::sig("def run(self, values: list[numpy.typing.NDArray[numpy.int64]], offsets: "
                  "list[numpy.typing.NDArray[numpy.int64]], weights: list[numpy.typing.NDArray[numpy.float32] | None], "
                  "batch: int, pooled: numpy.typing.NDArray[numpy.float32] | None, sequences: "
                  "list[numpy.typing.NDArray[numpy.float32]], train: bool, threads: int) -> "
                  "None"),
          "Writes pooled (B, width), features side by side, and sequences (B, L, D) each.\n\n"
          "values (N,), offsets (B + 1,), weights (N,) of a feature of pooling weighted.")
      .def(
          "collect", &KeptLookup::collect, "values"_a, "offsets"_a, "weights"_a, "batch"_a, "threads"_a,
          nb::sig("def collect(self, values: list[numpy.typing.NDArray[numpy.int64]], offsets: "
                  "list[numpy.typing.NDArray[numpy.int64]], weights: list[numpy.typing.NDArray[numpy.float32] | None], "
                  "batch: int, threads: int) -> list[tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint32]]]"),
          "Returns the ids (n,) of each table, each once, and how often each came (n,). No table is read.\n\n"
          "With `pool` it does what `run` does, for rows that lie in other processes. Arguments as for `run`.")
      .def("pool", &KeptLookup::pool, "rows"_a, "has_row"_a, "pooled"_a.none(), "sequences"_a, "threads"_a,
           nb::sig("def pool(self, rows: list[numpy.typing.NDArray[numpy.float32]], has_row: "
                   "list[numpy.typing.NDArray[numpy.uint8]], pooled: numpy.typing.NDArray[numpy.float32] | None, "
                   "sequences: list[numpy.typing.NDArray[numpy.float32]], threads: int) -> None"),
           "Writes what `run` writes, of rows (n, dim) for the ids of each table.\n\n"
           "has_row (n,): 0 for an id without one.")
      .def("sum_gradients", &KeptLookup::sum_gradients, "out"_a, "threads"_a,
           nb::sig("def sum_gradients(self, out: list[numpy.typing.NDArray[numpy.float32]], threads: int) -> None"),
           "Writes the sum of the gradients of each id, (n, dim) for each table, after `set_gradients`.\n\n"
           "Raises ValueError when an id has none.")
      .def("set_gradients", &KeptLookup::set_gradients, "pooled"_a.none(), "sequences"_a, "threads"_a,
           nb::sig("def set_gradients(self, pooled: numpy.typing.NDArray[numpy.float32] | None, sequences: "
                   "list[numpy.typing.NDArray[numpy.float32] | None], threads: int) -> None"),
           "Takes the gradients of what `run` wrote; None: there are none.")
      .def("gradients", &KeptLookup::gradients, "table"_a, nb::rv_policy::reference_internal,
           "Returns what one table got, by its place.");
  module.def(
      "step_tables",
      [](const std::vector<TrainingTable*>& tables, const nb::list& gradients, const std::string& rule,
         const nb::dict& options, std::size_t threads) {
        const Prepared prepared(tables, gradients);
        const Step step = step_of(rule, options);
        const nb::gil_scoped_release release;
        return step_tables(prepared.steps, step, std::max<std::size_t>(1, threads));
      },
      "tables"_a, "gradients"_a, "rule"_a, "options"_a, "threads"_a,
      nb::sig(
          "def step_tables(tables: list[TrainingTable], gradients: list[list[TableGradients | RowGradients]], rule: "
          "str, options: dict[str, float], threads: int) -> int"),
      "Steps every row that has a gradient, once. options: numbers of the rule by name. Returns the rows stepped.");
  module.def(
      "squared_norm",
      [](const std::vector<TrainingTable*>& tables, const nb::list& gradients, std::size_t threads) {
        const Prepared prepared(tables, gradients);
        const nb::gil_scoped_release release;
        return squared_norm(prepared.steps, std::max<std::size_t>(1, threads));
      },
      "tables"_a, "gradients"_a, "threads"_a,
      nb::sig("def squared_norm(tables: list[TrainingTable], gradients: list[list[TableGradients | RowGradients]], "
              "threads: int) -> float"),
      "Returns the sum of squares of the gradients of all rows that a step would change.");
}

}  // namespace emberline::bind
