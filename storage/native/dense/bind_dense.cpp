// The Python face of dense plans. Tensors come as addresses, which Python takes from tensors whose shapes it has
// checked; the GIL is released while a plan runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>

#include "dense/plan.h"
#include "dense/tiles.h"
#include "rows/isa.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace emberline::dense;

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int64s = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// The value and the offset of a part.
using Place = std::pair<std::uint32_t, std::uint32_t>;

Part part_of(const Place& place) { return {place.first, place.second}; }

template <class E>
E named(int code, int count) {
  if (code < 0 || code >= count) throw nb::value_error("code out of range");
  return static_cast<E>(code);
}

class PlanBuilder {
 public:
  std::uint32_t add_value(int kind, std::uint32_t width) {
    values_.push_back({named<Kind>(kind, 5), width});
    return static_cast<std::uint32_t>(values_.size() - 1);
  }
  std::uint32_t add_weights(std::uint32_t in, std::uint32_t out, bool is_rounded) {
    linears_.push_back({in, out, is_rounded});
    return static_cast<std::uint32_t>(linears_.size() - 1);
  }
  std::uint32_t add_index(std::uint32_t n, std::uint32_t length) {
    indices_.push_back({n, length});
    return static_cast<std::uint32_t>(indices_.size() - 1);
  }
  void linear(const Place& from, const Place& to, std::uint32_t in, std::uint32_t out, std::uint32_t count,
              std::uint32_t weights, int activation) {
    steps_.push_back(
        LinearStep{part_of(from), part_of(to), in, out, count, weights, named<Activation>(activation, kActivations)});
  }
  void pairs(const std::vector<Place>& vectors, const Place& to, std::uint32_t dim, std::uint32_t width,
             std::uint32_t index) {
    PairsStep step{{}, dim, width, index, part_of(to)};
    for (const Place& vector : vectors) step.vectors.push_back(part_of(vector));
    steps_.push_back(std::move(step));
  }
  void copy(const Place& from, const Place& to, std::uint32_t width) {
    steps_.push_back(CopyStep{part_of(from), part_of(to), width});
  }
  void activate(const Place& from, const Place& to, std::uint32_t width, int activation) {
    steps_.push_back(ActivateStep{part_of(from), part_of(to), width, named<Activation>(activation, kActivations)});
  }
  void combine(const Place& a, const Place& b, const Place& to, std::uint32_t width, int operation) {
    steps_.push_back(CombineStep{part_of(a), part_of(b), part_of(to), width, named<Binary>(operation, kBinaries)});
  }
  void sum(const Place& from, const Place& to, std::uint32_t outer, std::uint32_t middle, std::uint32_t inner) {
    steps_.push_back(SumStep{part_of(from), part_of(to), outer, middle, inner});
  }
  std::shared_ptr<const Plan> build() {
    return std::make_shared<const Plan>(std::exchange(values_, {}), std::exchange(linears_, {}),
                                        std::exchange(indices_, {}), std::exchange(steps_, {}));
  }

 private:
  std::vector<ValueSpec> values_;
  std::vector<LinearSpec> linears_;
  std::vector<IndexSpec> indices_;
  std::vector<Step> steps_;
};

// A plan with the weights of one snapshot.
class BoundPlan {
 public:
  BoundPlan(std::shared_ptr<const Plan> plan, const std::vector<std::pair<Matrix, std::optional<Vector>>>& linears,
            const std::vector<Int64s>& indices, const std::vector<Vector>& constants)
      : plan_(std::move(plan)) {
    weights_.kernels = &dense_kernels(emberline::isa());
    if (linears.size() != plan_->linears().size() || indices.size() != plan_->indices().size()) {
      throw nb::value_error("the weights of another plan");
    }
    for (std::size_t i = 0; i < linears.size(); ++i)
      add_linear(plan_->linears()[i], linears[i].first, linears[i].second);
    for (std::size_t i = 0; i < indices.size(); ++i) add_index(plan_->indices()[i], indices[i]);
    if (constants.size() != plan_->count(Kind::kConstant)) throw nb::value_error("the constants of another plan");
    for (std::size_t i = 0; i < constants.size(); ++i) {
      if (constants[i].size() != plan_->width(Kind::kConstant, i)) throw nb::value_error("a constant of another size");
      weights_.constants.emplace_back(constants[i].data(), constants[i].data() + constants[i].size());
    }
  }

  // Addresses of (B, width) inputs, of (U, width) values of users, of each row's user, and of (B, width) outputs.
  void run(std::size_t rows, const std::vector<std::uintptr_t>& inputs, const std::vector<std::uintptr_t>& outputs,
           std::size_t users, std::uintptr_t user_of_row, const std::vector<std::uintptr_t>& of_users) const {
    Arguments arguments;
    for (const std::uintptr_t address : inputs) arguments.inputs.push_back(reinterpret_cast<const float*>(address));
    for (const std::uintptr_t address : of_users) arguments.of_users.push_back(reinterpret_cast<const float*>(address));
    for (const std::uintptr_t address : outputs) arguments.outputs.push_back(reinterpret_cast<float*>(address));
    arguments.rows = rows;
    arguments.users = users;
    arguments.user_of_row = reinterpret_cast<const std::int64_t*>(user_of_row);
    nb::gil_scoped_release released;
    plan_->run(weights_, arguments);
  }

  std::size_t bytes() const { return weights_.bytes(); }

 private:
  void add_linear(const LinearSpec& spec, const Matrix& weight, const std::optional<Vector>& bias) {
    if (weight.shape(0) != spec.out || weight.shape(1) != spec.in || (bias && bias->size() != spec.out)) {
      throw nb::value_error("a matrix of another size");
    }
    const LinearWeights from{weight.data(), weight.stride(0), weight.stride(1), bias ? bias->data() : nullptr,
                             spec.in,       spec.out};
    weights_.linears.push_back(spec.is_rounded && has_tiles()
                                   ? pack_tiles(from)
                                   : pack_panels(from, weights_.kernels->width, weights_.kernels->vectors));
  }
  void add_index(const IndexSpec& spec, const Int64s& index) {
    if (index.size() != spec.length) throw nb::value_error("an index of another length");
    weights_.indices.push_back(index_runs(index.data(), index.size(), spec.n,
                                          static_cast<std::uint32_t>(weights_.kernels->square_stride(spec.n))));
  }

  std::shared_ptr<const Plan> plan_;
  PackedWeights weights_;
};

}  // namespace

NB_MODULE(_dense, m) {
  m.doc() = "Dense graphs as steps of our own kernels; storage.checkpoint.fused is its Python side.";

  m.def(
      "isa", [] { return emberline::isa_name(emberline::isa()); },
      "Returns the instruction set that plans are bound for.");
  m.def("set_isa", &emberline::set_isa, "name"_a,
        "Sets the instruction set of plans that are bound from now on, for tests.");
  m.def(
      "isas",
      [] {
        nb::list names;
        for (const emberline::Isa set : emberline::isas()) names.append(nb::str(emberline::isa_name(set)));
        return names;
      },
      nb::sig("def isas() -> list[str]"), "Returns the instruction sets that this processor has, the best one last.");

  m.def("has_tiles", &has_tiles, "Returns whether layers that may be rounded are computed in bfloat16, by AMX.");

  nb::class_<Plan>(m, "Plan", "An immutable plan; any number of threads may run it.");

  nb::class_<PlanBuilder>(
      m, "PlanBuilder",
      "Collects values, weights and steps. A part of a value is (value, offset); widths are in floats.")
      .def(nb::init<>())
      .def("add_value", &PlanBuilder::add_value, "kind"_a, "width"_a)
      .def("add_weights", &PlanBuilder::add_weights, "in_"_a, "out"_a, "is_rounded"_a)
      .def("add_index", &PlanBuilder::add_index, "n"_a, "length"_a)
      .def("linear", &PlanBuilder::linear, "from_"_a, "to"_a, "in_"_a, "out"_a, "count"_a, "weights"_a, "activation"_a)
      .def("pairs", &PlanBuilder::pairs, "vectors"_a, "to"_a, "dim"_a, "width"_a, "index"_a)
      .def("copy", &PlanBuilder::copy, "from_"_a, "to"_a, "width"_a)
      .def("activate", &PlanBuilder::activate, "from_"_a, "to"_a, "width"_a, "activation"_a)
      .def("combine", &PlanBuilder::combine, "a"_a, "b"_a, "to"_a, "width"_a, "operation"_a)
      .def("sum", &PlanBuilder::sum, "from_"_a, "to"_a, "outer"_a, "middle"_a, "inner"_a)
      .def("build", &PlanBuilder::build, nb::sig("def build(self) -> Plan"),
           "Returns the plan. Raises ValueError for a step that reads or writes outside its values.");

  nb::class_<BoundPlan>(m, "BoundPlan", "A plan with the weights of one snapshot; any number of threads may run it.")
      .def(nb::init<std::shared_ptr<const Plan>, const std::vector<std::pair<Matrix, std::optional<Vector>>>&,
                    const std::vector<Int64s>&, const std::vector<Vector>&>(),
           "plan"_a, "linears"_a, "indices"_a, "constants"_a,
           nb::sig("def __init__(self, plan: Plan, linears: Sequence[tuple[numpy.typing.NDArray[numpy.float32], "
                   "numpy.typing.NDArray[numpy.float32] | None]], indices: "
                   "Sequence[numpy.typing.NDArray[numpy.int64]], constants: "
                   "Sequence[numpy.typing.NDArray[numpy.float32]]) -> None"),
           "Copies the weights into the order in which the kernels read them. linears: a matrix (out, in) and a bias.")
      .def("run", &BoundPlan::run, "rows"_a, "inputs"_a, "outputs"_a, "users"_a = 0, "user_of_row"_a = 0,
           "of_users"_a = std::vector<std::uintptr_t>{},
           nb::sig("def run(self, rows: int, inputs: Sequence[int], outputs: Sequence[int], users: int = 0, "
                   "user_of_row: int = 0, of_users: Sequence[int] = ()) -> None"),
           "Runs the plan over `rows` rows. Arguments are addresses of contiguous arrays that the caller has checked.")
      .def_prop_ro("bytes", &BoundPlan::bytes, "Bytes of the packed weights.");
}
