// Lookups of several tables and the steps of optimizers, for Python.
#include <nanobind/stl/vector.h>

#include "training/asked_rows.h"
#include "training/bind_training.h"
#include "training/kept_lookup.h"

namespace emberline::bind {
namespace {

// The gradients of single rows, and their array.
struct RowGradients {
  TableGradients gradients;
  Floats grads;
};

// The rows that ranks ask for, and their gradients, which are kept until the next call.
class KeptAsked {
 public:
  explicit KeptAsked(std::vector<TrainingTable*> tables) : asked_(std::move(tables)) {}
  KeptAsked(const KeptAsked&) = delete;
  KeptAsked& operator=(const KeptAsked&) = delete;

  void find(nb::handle messages, nb::handle bytes, nb::handle numbers, bool train, std::size_t threads) {
    const auto message = ArrayView<const std::uint8_t>::of_rank(1, messages, "messages");
    const Ids sizes = Ids::of_rank(1, bytes, "bytes");
    const Ids counts(numbers, "numbers", {sizes.size() * asked_.tables().size()});
    std::vector<std::int64_t> of_rank(sizes.data(), sizes.data() + sizes.size());
    std::vector<std::int64_t> of_table(counts.data(), counts.data() + counts.size());
    std::int64_t whole = 0;
    for (const std::int64_t size : of_rank) {
      if (size < 0) fail("bytes: below 0");
      whole += size;
    }
    for (const std::int64_t n : of_table) {
      if (n < 0) fail("numbers: below 0");
    }
    if (static_cast<std::size_t>(whole) != message.size()) fail("messages: other bytes than `bytes` says");
    const nb::gil_scoped_release release;
    asked_.find(message.data(), of_rank, of_table, train, std::max<std::size_t>(1, threads));
  }

  std::size_t values() const { return asked_.values(); }

  void write(nb::handle out, std::size_t threads) const {
    const ArrayView<float> to(out, "out", {asked_.values()});
    const nb::gil_scoped_release release;
    asked_.write(to.data(), std::max<std::size_t>(1, threads));
  }

  nb::object flags() const {
    std::vector<std::uint8_t> found(asked_.ids());
    asked_.write_flags(found.data());
    return to_numpy(std::move(found));
  }

  void set_gradients(nb::handle grads, std::size_t threads) {
    grads_.clear();
    grads_.emplace_back(grads, "grads", std::initializer_list<std::size_t>{asked_.values()});
    const nb::gil_scoped_release release;
    asked_.set_gradients(grads_.back().data(), std::max<std::size_t>(1, threads));
  }

  TableGradients& gradients(std::size_t table) {
    if (table >= asked_.tables().size()) fail("table: there is no table " + std::to_string(table));
    return asked_.gradients(table);
  }

 private:
  AskedRows asked_;
  std::vector<Floats> grads_;
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
      "read as its table says, else None. chains: for a feature whose ids without a row read other rows first, the\n"
      "levels, (number of another feature, whether its ids are parallel) each, the mean row (D,) or None, and the "
      "share\n"
      "of ids with a row that read the chain too.\n"
      "hidden: numbers of features that are levels alone: not counted, without output. It keeps what it is given\n"
      "until the next call.")
      .def(nb::init<std::vector<TrainingTable*>, const KeptLookup::PyFeatures&, const PyAbsents&,
                    const KeptLookup::PyChains&, const std::vector<std::uint32_t>&>(),
           "tables"_a, "features"_a, "absent"_a = nb::none(), "chains"_a = nb::none(),
           "hidden"_a = std::vector<std::uint32_t>{}, nb::keep_alive<1, 2>(),
           nb::sig("def __init__(self, tables: collections.abc.Sequence[TrainingTable], features: "
                   "collections.abc.Sequence[tuple[int, int, int]], absent: list[tuple[str, float, int] | None] | "
                   "None = None, chains: list[tuple[list[tuple[int, bool]], numpy.typing.NDArray[numpy.float32] | "
                   "None, float] | None] | None = None, hidden: list[int] = ...) -> None"))
      .def_prop_ro("width", &KeptLookup::width, "Values of all pooled features together.")
      .def(
          "run", &KeptLookup::run, "values"_a, "offsets"_a, "weights"_a, "batch"_a, "pooled"_a.none(), "sequences"_a,
          "train"_a, "threads"_a, "stand_in_seed"_a = nb::none(),
          nb::sig("def run(self, values: list[numpy.typing.NDArray[numpy.int64]], offsets: "
                  "list[numpy.typing.NDArray[numpy.int64]], weights: list[numpy.typing.NDArray[numpy.float32] | None], "
                  "batch: int, pooled: numpy.typing.NDArray[numpy.float32] | None, sequences: "
                  "list[numpy.typing.NDArray[numpy.float32]], train: bool, threads: int, stand_in_seed: int | None = "
                  "None) -> None"),
          "Writes pooled (B, width), features side by side, and sequences (B, L, D) each.\n\n"
          "values (N,), offsets (B + 1,), weights (N,) of a feature of pooling weighted. stand_in_seed: draws the ids\n"
          "that read their chain although they have a row.")
      .def(
          "ask", &KeptLookup::ask, "values"_a, "offsets"_a, "weights"_a, "batch"_a, "ranks"_a, "threads"_a,
          nb::sig("def ask(self, values: list[numpy.typing.NDArray[numpy.int64]], offsets: "
                  "list[numpy.typing.NDArray[numpy.int64]], weights: list[numpy.typing.NDArray[numpy.float32] | None], "
                  "batch: int, ranks: int, threads: int) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.int64]]"),
          "Returns what a batch asks of each rank, for AskedRows: how many ids, by rank and table (ranks * tables,),\n"
          "the messages to all ranks one after the other, and their bytes (ranks,). No table is read.\n\n"
          "With `pool` it does what `run` does, for rows that lie in other processes. Arguments as for `run`.")
      .def(
          "find", &KeptLookup::find, "values"_a, "offsets"_a, "weights"_a, "batch"_a, "train"_a, "threads"_a,
          nb::sig("def find(self, values: list[numpy.typing.NDArray[numpy.int64]], offsets: "
                  "list[numpy.typing.NDArray[numpy.int64]], weights: list[numpy.typing.NDArray[numpy.float32] | None], "
                  "batch: int, train: bool, threads: int) -> None"),
          "Finds the rows of the ids, for DeviceRows. Arguments as for `run`.")
      .def_prop_ro("asked_values", &KeptLookup::asked_values, "Values of all rows that `ask` asked for.")
      .def_prop_ro("asked_ids", &KeptLookup::asked_ids, "Different ids that `ask` asked for.")
      .def("pool", &KeptLookup::pool, "rows"_a, "flags"_a.none(), "pooled"_a.none(), "sequences"_a, "threads"_a,
           nb::sig("def pool(self, rows: numpy.typing.NDArray[numpy.float32], flags: numpy.typing.NDArray[numpy.uint8] "
                   "| None, pooled: numpy.typing.NDArray[numpy.float32] | None, "
                   "sequences: list[numpy.typing.NDArray[numpy.float32]], threads: int) -> None"),
           "Writes what `run` writes, of what the ranks answer: rows (asked_values,), in the order of the messages.\n\n"
           "flags (asked_ids,): 0 for an id without a row; None: all have one.")
      .def("sum_gradients", &KeptLookup::sum_gradients, "out"_a, "threads"_a,
           nb::sig("def sum_gradients(self, out: numpy.typing.NDArray[numpy.float32], threads: int) -> None"),
           "Writes the sum of the gradients of each id, out (asked_values,), after `set_gradients`.\n\n"
           "Raises ValueError when an id has none.")
      .def("set_gradients", &KeptLookup::set_gradients, "pooled"_a.none(), "sequences"_a, "threads"_a,
           nb::sig("def set_gradients(self, pooled: numpy.typing.NDArray[numpy.float32] | None, sequences: "
                   "list[numpy.typing.NDArray[numpy.float32] | None], threads: int) -> None"),
           "Takes the gradients of what `run` wrote; None: there are none.")
      .def("levels", &KeptLookup::levels, "feature"_a,
           nb::sig("def levels(self, feature: int) -> numpy.typing.NDArray[numpy.uint8]"),
           "Returns the level that each used id of a feature read: 0 its own row, then those of its chain, the mean,\n"
           "and last what it reads as without any. Empty when every id has a row.")
      .def("gradients", &KeptLookup::gradients, "table"_a, nb::rv_policy::reference_internal,
           "Returns what one table got, by its place.");
  nb::class_<KeptAsked>(
      module, "AskedRows",
      "The rows that ranks ask of this one for a batch, and the gradients that come back for them.\n\n"
      "It keeps gradients until the next call.")
      .def(nb::init<std::vector<TrainingTable*>>(), "tables"_a, nb::keep_alive<1, 2>(),
           nb::sig("def __init__(self, tables: collections.abc.Sequence[TrainingTable]) -> None"))
      .def(
          "find", &KeptAsked::find, "messages"_a, "bytes"_a, "numbers"_a, "train"_a, "threads"_a,
          nb::sig("def find(self, messages: numpy.typing.NDArray[numpy.uint8], bytes: "
                  "numpy.typing.NDArray[numpy.int64], numbers: numpy.typing.NDArray[numpy.int64], train: bool, "
                  "threads: int) -> None"),
          "Reads what ranks asked by BatchLookup.ask, their messages one after the other, and finds the rows.\n\n"
          "bytes (ranks,), numbers (ranks * tables,) of ids. train: counts the ids and creates the rows that are due.\n"
          "Raises ValueError for a message that is cut.")
      .def_prop_ro("values", &KeptAsked::values, "Values of all rows that were asked for.")
      .def("write", &KeptAsked::write, "out"_a, "threads"_a,
           nb::sig("def write(self, out: numpy.typing.NDArray[numpy.float32], threads: int) -> None"),
           "Writes the rows to out (values,), those of the first rank first.")
      .def("flags", &KeptAsked::flags, nb::sig("def flags(self) -> numpy.typing.NDArray[numpy.uint8]"),
           "Returns 1 for each id that was asked for and has a row, and 0 for the others.")
      .def("set_gradients", &KeptAsked::set_gradients, "grads"_a, "threads"_a,
           nb::sig("def set_gradients(self, grads: numpy.typing.NDArray[numpy.float32], threads: int) -> None"),
           "Takes the gradients (values,) of the rows.")
      .def("gradients", &KeptAsked::gradients, "table"_a, nb::rv_policy::reference_internal,
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
