"""Generates small ONNX graphs of random operators, whose shapes and types are known while they are made.

Values keep the batch as their first dimension, or are constants. Numbers stay small, so that rounding does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_NAMES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "s": TensorProto.INT32, "b": TensorProto.BOOL}
_DTYPES = {"f": np.float32, "i": np.int64, "s": np.int32, "b": np.bool_}
# Of a kind to the same kind.
_FLOAT = (
    "Abs Atan Cos Erf Floor Ceil Round HardSwish Mish Neg Relu Sigmoid Sign Sin Softplus Softsign Tanh Identity Elu"
)
_INT = "Abs Neg Sign Identity"
_COMPARE = "Equal Greater GreaterOrEqual Less LessOrEqual"
_REDUCE_FLOAT = "Sum Mean Max Min L1 L2 SumSquare LogSumExp"
_REDUCE_INT = "Sum Mean Max Min Prod L1 SumSquare"


@dataclass(frozen=True)
class Known:
    """A value of the graph. shape: without the batch."""

    name: str
    kind: str
    shape: tuple[int, ...]


@dataclass
class Graph:
    """A graph that grows by one node at a time."""

    random: np.random.Generator
    inputs: list[Known] = field(default_factory=list)
    values: list[Known] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)

    def constant(self, value: Any) -> str:
        """Adds a constant; returns its name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def add(self, operator: str, inputs: list[str], kind: str, shape: tuple[int, ...], **attributes: Any) -> None:
        """Adds a node with one output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=f"n_{name}", **attributes))
        self.values.append(Known(name, kind, shape))

    def any(self, kinds: str, least: int = 0) -> Known | None:
        """Returns one of the values of these kinds with `least` dimensions behind the batch; None without one."""
        found = [each for each in self.values if each.kind in kinds and len(each.shape) >= least]
        return found[int(self.random.integers(len(found)))] if found else None

    def pick(self, words: str) -> str:
        """Returns one of several words."""
        return str(self.random.choice(words.split()))

    def axis(self, value: Known) -> int:
        """Returns an axis behind the batch, counted from the front or from the end."""
        axis = int(self.random.integers(1, len(value.shape) + 1))
        return axis if self.random.random() < 0.5 else axis - len(value.shape) - 1

    def like(self, value: Known) -> np.ndarray:
        """Returns numbers that go with a value: of its shape, of one that is stretched to it, or one number."""
        shape = [value.shape, tuple(1 for _ in value.shape), (), value.shape[-1:]][int(self.random.integers(4))]
        return numbers(self.random, value.kind, shape)


def numbers(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draws numbers of a kind: small, and no 0 among whole ones."""
    if kind == "f":
        return np.asarray(random.uniform(-2, 2, shape), np.float32)
    if kind == "b":
        return np.asarray(random.random(shape) < 0.5)
    drawn = random.integers(1, 4, shape) * np.where(random.random(shape) < 0.5, -1, 1)
    return np.asarray(drawn, _DTYPES[kind])


def unary(graph: Graph) -> None:
    if (value := graph.any("fis")) is not None:
        graph.add(graph.pick(_FLOAT if value.kind == "f" else _INT), [value.name], value.kind, value.shape)


def binary(graph: Graph) -> None:
    if (value := graph.any("fis")) is None:
        return
    same = [each for each in graph.values if (each.kind, each.shape) == (value.kind, value.shape)]
    other = same[int(graph.random.integers(len(same)))].name if graph.random.random() < 0.5 else None
    names = [value.name, other or graph.constant(graph.like(value))]
    operator = graph.pick("Add Sub Mul Max Min" + (" Sum Mean" if value.kind == "f" else ""))
    if other is None and graph.random.random() < 0.5:
        operator = graph.pick("Div" if value.kind == "f" else "Div Mod")
    elif graph.random.random() < 0.3:
        names.reverse()
    graph.add(operator, names, value.kind, value.shape)


def compare(graph: Graph) -> None:
    if (value := graph.any("is")) is not None:
        graph.add(graph.pick(_COMPARE), [value.name, graph.constant(graph.like(value))], "b", value.shape)


def choose(graph: Graph) -> None:
    condition = graph.any("b")
    if condition is None:
        return
    same = [each for each in graph.values if each.kind != "b" and each.shape == condition.shape]
    if same:
        value = same[int(graph.random.integers(len(same)))]
        names = [condition.name, value.name, graph.constant(graph.like(value))]
        graph.add("Where", names, value.kind, value.shape)


def cast(graph: Graph) -> None:
    if (value := graph.any("isb")) is not None:
        kind = graph.pick("f i s b")
        graph.add("Cast", [value.name], kind, value.shape, to=_NAMES[kind])


def reduce(graph: Graph) -> None:
    if (value := graph.any("fis", 1)) is None:
        return
    axis, keep = graph.axis(value), bool(graph.random.random() < 0.5)
    place = axis % (len(value.shape) + 1) - 1
    shape = tuple(1 if number == place else size for number, size in enumerate(value.shape) if keep or number != place)
    operator = "Reduce" + graph.pick(_REDUCE_FLOAT if value.kind == "f" else _REDUCE_INT)
    graph.add(operator, [value.name, graph.constant(np.array([axis]))], value.kind, shape, keepdims=int(keep))


def scan(graph: Graph) -> None:
    if (value := graph.any("fis", 1)) is not None:
        graph.add("CumSum", [value.name, graph.constant(np.int64(graph.axis(value)))], value.kind, value.shape)


def best(graph: Graph) -> None:
    if (value := graph.any("f", 1)) is not None:
        axis = graph.axis(value)
        place = axis % (len(value.shape) + 1) - 1
        shape = tuple(size for number, size in enumerate(value.shape) if number != place)
        graph.add(graph.pick("ArgMax ArgMin"), [value.name], "i", shape, axis=axis, keepdims=0)


def normalise(graph: Graph) -> None:
    if (value := graph.any("f", 1)) is not None:
        graph.add(graph.pick("Softmax LogSoftmax"), [value.name], "f", value.shape, axis=graph.axis(value))


def slice_of(graph: Graph) -> None:
    if (value := graph.any("fisb", 1)) is None:
        return
    axis = graph.axis(value)
    place = axis % (len(value.shape) + 1) - 1
    size = value.shape[place]
    start, stop = sorted(int(each) for each in graph.random.integers(0, size + 1, 2))
    start, stop = (0, 1) if start == stop else (start, stop)
    step = int(graph.random.integers(1, 3))
    count = len(range(start, stop, step))
    ends = [start - size if graph.random.random() < 0.5 else start, 2**62 if stop == size else stop]
    names = [graph.constant(np.array([each])) for each in (*ends, axis, step)]
    shape = tuple(count if number == place else own for number, own in enumerate(value.shape))
    graph.add("Slice", [value.name, *names], value.kind, shape)


def gather(graph: Graph) -> None:
    if (value := graph.any("fisb", 1)) is None:
        return
    axis = graph.axis(value)
    place = axis % (len(value.shape) + 1) - 1
    wanted = [(), (2,), (1, 2)][int(graph.random.integers(3))]
    indices = graph.random.integers(-value.shape[place], value.shape[place], wanted)
    shape = (*value.shape[:place], *wanted, *value.shape[place + 1 :])
    if len(shape) < 4:
        graph.add("Gather", [value.name, graph.constant(indices)], value.kind, shape, axis=axis)


def reshape(graph: Graph) -> None:
    if (value := graph.any("fisb", 1)) is None:
        return
    count = int(np.prod(value.shape))
    halves = (2, count // 2) if count % 2 == 0 else (1, count)
    shape = halves if graph.random.random() < 0.5 else (count,)
    wanted = [0, *shape[:-1], -1] if graph.random.random() < 0.5 else [-1, *shape]
    graph.add("Reshape", [value.name, graph.constant(np.array(wanted))], value.kind, shape)


def turn(graph: Graph) -> None:
    if (value := graph.any("fisb", 2)) is not None:
        order = graph.random.permutation(len(value.shape))
        shape = tuple(value.shape[each] for each in order)
        graph.add("Transpose", [value.name], value.kind, shape, perm=[0, *(int(each) + 1 for each in order)])


def stretch(graph: Graph) -> None:
    if (value := graph.any("fisb")) is not None and len(value.shape) < 3:
        axis = int(graph.random.integers(1, len(value.shape) + 2))
        shape = (*value.shape[: axis - 1], 1, *value.shape[axis - 1 :])
        given = axis if graph.random.random() < 0.5 else axis - len(shape) - 1
        graph.add("Unsqueeze", [value.name, graph.constant(np.array([given]))], value.kind, shape)


def shrink(graph: Graph) -> None:
    found = [each for each in graph.values if 1 in each.shape]
    if found:
        value = found[int(graph.random.integers(len(found)))]
        place = value.shape.index(1)
        axis = place + 1 if graph.random.random() < 0.5 else place - len(value.shape)
        shape = value.shape[:place] + value.shape[place + 1 :]
        graph.add("Squeeze", [value.name, graph.constant(np.array([axis]))], value.kind, shape)


def join(graph: Graph) -> None:
    if (value := graph.any("fisb", 1)) is not None:
        same = [each for each in graph.values if (each.kind, each.shape) == (value.kind, value.shape)]
        axis = graph.axis(value)
        place = axis % (len(value.shape) + 1) - 1
        shape = tuple(size * 2 if number == place else size for number, size in enumerate(value.shape))
        other = same[int(graph.random.integers(len(same)))]
        graph.add("Concat", [value.name, other.name], value.kind, shape, axis=axis)


def multiply(graph: Graph) -> None:
    if (value := graph.any("f", 1)) is not None:
        weight = numbers(graph.random, "f", (value.shape[-1], 3)) / value.shape[-1]
        graph.add("MatMul", [value.name, graph.constant(weight)], "f", (*value.shape[:-1], 3))


def pad(graph: Graph) -> None:
    if (value := graph.any("f", 1)) is not None:
        before, after = ([0, *graph.random.integers(0, 2, len(value.shape)).tolist()] for _ in range(2))
        shape = tuple(size + first + last for size, first, last in zip(value.shape, before[1:], after[1:], strict=True))
        names = [graph.constant(np.array([*before, *after])), graph.constant(np.float32(0.5))]
        graph.add("Pad", [value.name, *names], "f", shape)


def power(graph: Graph) -> None:
    if (value := graph.any("fi")) is not None:
        exponent = graph.random.integers(0, 3, () if graph.random.random() < 0.5 else value.shape[-1:])
        kind = np.float32 if graph.random.random() < 0.5 else np.int64
        graph.add("Pow", [value.name, graph.constant(exponent.astype(kind))], value.kind, value.shape)


def clip(graph: Graph) -> None:
    if (value := graph.any("fis")) is not None:
        bounds = [graph.constant(np.asarray(bound, _DTYPES[value.kind])) for bound in (-1, 2)]
        names = [bounds, bounds[:1], ["", bounds[1]]][int(graph.random.integers(3))]
        graph.add("Clip", [value.name, *names], value.kind, value.shape)


def bent(graph: Graph) -> None:
    if (value := graph.any("f")) is not None:
        operator, alpha = graph.pick("LeakyRelu Celu HardSigmoid Elu"), float(graph.random.uniform(0.1, 1))
        graph.add(operator, [value.name], "f", value.shape, alpha=alpha)


def repeat(graph: Graph) -> None:
    if (value := graph.any("fis", 1)) is not None:
        times = graph.random.integers(1, 3, len(value.shape))
        shape = tuple(int(size * each) for size, each in zip(value.shape, times, strict=True))
        if int(np.prod(shape)) <= 64:
            graph.add("Tile", [value.name, graph.constant(np.array([1, *times]))], value.kind, shape)


def expand(graph: Graph) -> None:
    found = [each for each in graph.values if 1 in each.shape]
    if found:
        value = found[int(graph.random.integers(len(found)))]
        shape = tuple(3 if size == 1 else size for size in value.shape)
        wanted = [1, *(size if size == 3 or graph.random.random() < 0.5 else 1 for size in shape)]
        shape = tuple(max(own, asked) for own, asked in zip(value.shape, wanted[1:], strict=True))
        graph.add("Expand", [value.name, graph.constant(np.array(wanted))], value.kind, shape)


def by_sizes(graph: Graph) -> None:
    """Reshapes to the batch's own size, as exporters write view(x.size(0), -1)."""
    if (value := graph.any("fis", 1)) is None:
        return
    sizes, first = f"s{len(graph.nodes)}", f"r{len(graph.nodes)}"
    wanted, flat = f"w{len(graph.nodes)}", f"u{len(graph.nodes)}"
    zero = graph.constant(np.int64(0))
    graph.nodes += [
        helper.make_node("Shape", [value.name], [sizes]),
        helper.make_node("Gather", [sizes, zero], [first], axis=int(graph.random.integers(-1, 1))),
        helper.make_node("Unsqueeze", [first, graph.constant(np.array([0]))], [flat]),
        helper.make_node("Concat", [flat, graph.constant(np.array([-1]))], [wanted], axis=0),
    ]
    graph.add("Reshape", [value.name, wanted], value.kind, (int(np.prod(value.shape)),))


STEPS = (
    power, clip, bent, repeat, expand, by_sizes, unary, unary, binary, binary, binary, compare, choose, cast,
    reduce, reduce, scan, best, normalise, slice_of, gather, reshape, turn, stretch, shrink, join, multiply, pad
)  # fmt: skip


def grown(seed: int, nodes: int = 8) -> Graph:
    """Makes a graph."""
    graph = Graph(np.random.default_rng(seed))
    for name, kind, shape in (("x", "f", (2, 3)), ("k", "i", (4,)), ("s", "s", (2, 3))):
        graph.inputs.append(Known(name, kind, shape))
    graph.values = list(graph.inputs)
    for _ in range(nodes * 4):
        if len(graph.nodes) == nodes:
            break
        STEPS[int(graph.random.integers(len(STEPS)))](graph)
    return graph


def save_graph(graph: Graph, path: Path) -> list[str]:
    """Writes a graph whose outputs are all its values; returns their names."""
    outputs = [each for each in graph.values if each not in graph.inputs]
    content = helper.make_graph(
        graph.nodes,
        "g",
        [helper.make_tensor_value_info(each.name, _NAMES[each.kind], ["batch", *each.shape]) for each in graph.inputs],
        [helper.make_tensor_value_info(each.name, _NAMES[each.kind], ["batch", *each.shape]) for each in outputs],
        [numpy_helper.from_array(values, name) for name, values in graph.constants.items()],
    )
    onnx.save(helper.make_model(content, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(path))
    return [each.name for each in outputs]
