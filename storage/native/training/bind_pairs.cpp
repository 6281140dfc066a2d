// Products of pairs of vectors, for Python.
#include <optional>

#include "training/bind_training.h"
#include "training/pairs.h"

namespace emberline::bind {
namespace {

// first (B, D) or None, rest (B, n, D).
PairShape pair_shape(nb::handle first, const std::size_t* rest) {
  return {rest[0], static_cast<std::uint32_t>(rest[1] + (first.is_none() ? 0 : 1)),
          static_cast<std::uint32_t>(rest[2])};
}

template <class T>
ArrayView<T> firsts(nb::handle first, const char* name, const PairShape& shape) {
  return ArrayView<T>(first, name, {shape.batch, shape.dim});
}

void pair_products_of(nb::handle first, nb::handle rest, nb::handle out, std::size_t threads) {
  const Floats others = Floats::of_rank(3, rest, "rest");
  const std::size_t given[] = {others.shape(0), others.shape(1), others.shape(2)};
  const PairShape shape = pair_shape(first, given);
  std::optional<Floats> start;
  if (!first.is_none()) start.emplace(firsts<const float>(first, "first", shape));
  const ArrayView<float> to(out, "out", {shape.batch, shape.width()});
  const nb::gil_scoped_release release;
  pair_products(shape, {start ? start->data() : nullptr, others.data()}, to.data(), threads);
}

void pair_gradients_of(nb::handle first, nb::handle rest, nb::handle grad, nb::handle first_grad, nb::handle rest_grad,
                       std::size_t threads) {
  const Floats others = Floats::of_rank(3, rest, "rest");
  const std::size_t given[] = {others.shape(0), others.shape(1), others.shape(2)};
  const PairShape shape = pair_shape(first, given);
  std::optional<Floats> start;
  std::optional<ArrayView<float>> to_start;
  if (!first.is_none()) {
    start.emplace(firsts<const float>(first, "first", shape));
    to_start.emplace(firsts<float>(first_grad, "first_grad", shape));
  }
  const Floats from(grad, "grad", {shape.batch, shape.width()});
  const ArrayView<float> to(rest_grad, "rest_grad", {given[0], given[1], given[2]});
  const nb::gil_scoped_release release;
  pair_gradients(shape, {start ? start->data() : nullptr, others.data()}, from.data(),
                 {to_start ? to_start->data() : nullptr, to.data()}, threads);
}

}  // namespace

void bind_pairs(nb::module_& module) {
  module.def("pair_products", &pair_products_of, "first"_a.none(), "rest"_a, "out"_a, "threads"_a,
             nb::sig("def pair_products(first: numpy.typing.NDArray[numpy.float32] | None, rest: "
                     "numpy.typing.NDArray[numpy.float32], out: numpy.typing.NDArray[numpy.float32], threads: int) -> "
                     "None"),
             "Dot products of all pairs of vectors, first (B, D) and rest (B, n, D) -> out (B, D + pairs).\n\n"
             "A row of out is the first vector, then the products, ordered by the larger number of a pair.");
  module.def("pair_gradients", &pair_gradients_of, "first"_a.none(), "rest"_a, "grad"_a, "first_grad"_a.none(),
             "rest_grad"_a, "threads"_a,
             nb::sig("def pair_gradients(first: numpy.typing.NDArray[numpy.float32] | None, rest: "
                     "numpy.typing.NDArray[numpy.float32], grad: numpy.typing.NDArray[numpy.float32], first_grad: "
                     "numpy.typing.NDArray[numpy.float32] | None, rest_grad: numpy.typing.NDArray[numpy.float32], "
                     "threads: int) -> None"),
             "Writes the gradients of first and rest, from that of what pair_products wrote.");
}

}  // namespace emberline::bind
