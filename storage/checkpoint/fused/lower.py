"""Lowers a graph to steps: selecting and arranging becomes layouts, the rest one step an operator."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from storage.checkpoint.assembly import SizeValue, TensorValue, value_of
from storage.checkpoint.fused.constants import Constants, batch_nodes
from storage.checkpoint.fused.layout import Layout, Stretch, concatenated
from storage.checkpoint.fused.steps import (
    Activate,
    Activation,
    Combine,
    Copy,
    Kind,
    Layer,
    Linear,
    Operation,
    PairIndex,
    Pairs,
    Part,
    Step,
    Steps,
    Sum,
    Value,
)
from storage.errors import Unsupported

# A layout of more stretches than this would be copied float by float.
_MAX_STRETCHES = 4096
_MAX_VECTORS = 256
_FLOATS = {torch.float32, torch.bfloat16, torch.float16}

_RESHAPES = (
    *("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "_unsafe_view", "view_copy"),
    *("squeeze_copy", "unsqueeze_copy"),
)
_NOTHING = ("contiguous", "clone", "alias", "detach", "lift_fresh_copy", "detach_copy")
_ACTIVATIONS = {
    "relu": Activation.RELU,
    "sigmoid": Activation.SIGMOID,
    "tanh": Activation.TANH,
    "silu": Activation.SILU,
}


@dataclass(frozen=True)
class Lowered:
    """A graph as steps."""

    steps: Steps
    #: Computes the constants of the steps from the weights.
    constants: fx.GraphModule
    #: The graph's arguments that are weights, for `constants`.
    weight_slots: tuple[int, ...]
    #: The graph's arguments that are inputs, one row for each row of the batch.
    input_slots: tuple[int, ...]
    #: The graph's arguments that have one row for each user.
    user_slots: tuple[int, ...]
    #: The graph's argument that has each row's user; None without.
    index_slot: int | None
    #: Constants that are values, in the order of these.
    value_constants: tuple[int, ...]
    #: Sizes of each output's row.
    output_shapes: tuple[tuple[int, ...], ...]


def lower(module: fx.GraphModule) -> Lowered:
    """Lowers a graph. Raises Unsupported naming what no step computes."""
    return _Lowering(module.graph).run()


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a graph while it is lowered. `dtype` is the graph's; all floats are computed as float32."""

    layout: Layout
    dtype: torch.dtype


@dataclass(frozen=True)
class _Swapped:
    """(B, N, D) with its last two sizes swapped."""

    of: _Tensor


@dataclass(frozen=True)
class _Square:
    """The products of all pairs of N vectors: (B, N, N), or (B, N * N) where it is flat."""

    of: _Tensor
    is_flat: bool = False


class _Lowering:
    """Lowers one graph. `done` holds what became of its nodes that depend on the batch."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._of_batch = batch_nodes(graph)
        self._batch = _batch_size({node for node in self._of_batch if node.op == "placeholder"})
        self._constants = Constants(graph, self._of_batch)
        self._done: dict[fx.Node, Any] = {}
        self._values: list[Value] = []
        self._steps: list[Step] = []
        self._layers: list[Layer] = []
        self._indices: list[PairIndex] = []
        self._value_constants: dict[int, int] = {}
        self._inputs: dict[int, int] = {}
        self._integers: dict[fx.Node, int] = {}
        self._index: fx.Node | None = None

    def run(self) -> Lowered:
        slot = -1
        outputs: list[tuple[int, ...]] = []
        for node in self._graph.nodes:
            if node.op == "placeholder":
                slot += 1
                if node in self._of_batch:
                    self._placeholder(node, slot)
            elif node.op == "call_function":
                if node in self._of_batch:
                    self._call(node)
            elif node.op == "output":
                outputs = [self._output(each) for each in node.args[0]]
            else:
                raise Unsupported(f"a graph with a node of kind {node.op!r}")
        return self._lowered(outputs)

    def _lowered(self, outputs: Sequence[tuple[int, ...]]) -> Lowered:
        steps = Steps(tuple(self._values), tuple(self._layers), tuple(self._indices), tuple(self._steps))
        kinds = {slot: self._values[value].kind for slot, value in self._inputs.items()}
        by_value = sorted(self._value_constants, key=self._value_constants.__getitem__)
        return Lowered(
            steps=steps,
            constants=self._constants.module(),
            weight_slots=tuple(self._constants.slots),
            input_slots=tuple(slot for slot, kind in kinds.items() if kind is Kind.INPUT),
            user_slots=tuple(slot for slot, kind in kinds.items() if kind is Kind.OF_USER),
            index_slot=None if self._index is None else self._integers[self._index],
            value_constants=tuple(by_value),
            output_shapes=tuple(outputs),
        )

    # Nodes

    def _placeholder(self, node: fx.Node, slot: int) -> None:
        shape, dtype = self._row(node)
        if dtype == torch.int64 and not shape:
            self._integers[node] = slot  # the users of rows, where an index_select asks for them
            return
        if dtype != torch.float32 or not math.prod(shape):
            raise Unsupported(f"an input of {dtype}")
        self._inputs[slot] = value = self._value(Kind.INPUT, math.prod(shape))
        self._done[node] = _Tensor(Layout(shape, (Stretch(value, 0, math.prod(shape)),)), dtype)

    def _call(self, node: fx.Node) -> None:
        value = value_of(node)
        if isinstance(value, SizeValue):
            return  # shapes are taken from the description of tensors
        if node.target is operator.getitem:
            whole, place = node.args
            assert isinstance(whole, fx.Node) and isinstance(place, int)
            self._done[node] = self._done[whole][place]
            return
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported(f"the function {getattr(target, '__name__', target)}")
        name = target._schema.name.removeprefix("aten::")
        if name.startswith(("sym_", "_assert")):
            return
        rule = _RULES.get(name)
        if rule is None:
            raise Unsupported(f"the operator {name}")
        self._done[node] = rule(self, node, _named(node))

    def _output(self, node: fx.Node) -> tuple[int, ...]:
        tensor = self._tensor(node)
        if tensor.dtype != torch.float32:
            raise Unsupported(f"an output of {tensor.dtype}")
        value = self._value(Kind.OUTPUT, tensor.layout.width)
        self._copy(tensor.layout, value)
        return tensor.layout.shape

    # Operators

    def reshape(self, node: fx.Node, given: dict[str, Any]) -> _Tensor | _Square:
        found = self._done.get(given["self"])
        shape, _ = self._row(node)
        if isinstance(found, _Square) and len(shape) == 1:
            return _Square(found.of, True)
        tensor = self._tensor(given["self"])
        if math.prod(shape) != tensor.layout.width:
            raise Unsupported("a reshape over the batch")
        return _Tensor(tensor.layout.reshaped(shape), tensor.dtype)

    def nothing(self, node: fx.Node, given: dict[str, Any]) -> Any:
        return self._done[given["self"]]

    def cast(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        tensor = self._tensor(given["self"])
        dtype = given.get("dtype") or tensor.dtype
        if dtype not in _FLOATS:
            raise Unsupported(f"a conversion to {dtype}")
        return _Tensor(tensor.layout, dtype)

    def expand(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        tensor = self._tensor(given["self"])
        shape, _ = self._row(node)
        if len(shape) != len(tensor.layout.shape):
            raise Unsupported("an expansion over the batch")
        return self._with(tensor, tensor.layout.expanded(shape))

    def cat(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        tensors = [self._tensor(each) for each in given["tensors"]]
        dim = self._dim(given["dim"], len(tensors[0].layout.shape))
        return self._with(tensors[0], concatenated([each.layout for each in tensors], dim))

    def stack(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        tensors = [self._tensor(each) for each in given["tensors"]]
        shape = tensors[0].layout.shape
        dim = self._dim(given["dim"], len(shape) + 1)
        wide = [each.layout.reshaped((*shape[:dim], 1, *shape[dim:])) for each in tensors]
        return self._with(tensors[0], concatenated(wide, dim))

    def slice(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        tensor = self._tensor(given["self"])
        shape = tensor.layout.shape
        start, stop = given["start"] or 0, given["end"]
        if given["dim"] == 0:
            if start == 0 and (stop is None or stop == 2**63 - 1) and given["step"] == 1:
                return tensor
            raise Unsupported("a slice of the batch")
        dim = self._dim(given["dim"], len(shape))
        start, stop, step = slice(start, stop, given["step"]).indices(shape[dim])
        if step != 1 or stop <= start:
            raise Unsupported("a slice with steps, or of nothing")
        return self._with(tensor, tensor.layout.sliced(dim, start, stop))

    def select(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        tensor = self._tensor(given["self"])
        shape = tensor.layout.shape
        dim = self._dim(given["dim"], len(shape))
        start = given["index"] % shape[dim]
        found = tensor.layout.sliced(dim, start, start + 1)
        return self._with(tensor, found.reshaped((*shape[:dim], *shape[dim + 1 :])))

    def split(self, node: fx.Node, given: dict[str, Any]) -> list[_Tensor]:
        tensor = self._tensor(given["self"])
        dim = self._dim(given["dim"], len(tensor.layout.shape))
        size = tensor.layout.shape[dim]
        sizes = given.get("split_sizes", given.get("split_size"))
        if "chunks" in given:
            sizes = -(-size // given["chunks"])
        if isinstance(sizes, int):
            sizes = [min(sizes, size - start) for start in range(0, size, sizes)]
        ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
        return [
            self._with(tensor, tensor.layout.sliced(dim, end - each, end))
            for each, end in zip(sizes, ends, strict=True)
        ]

    def transpose(self, node: fx.Node, given: dict[str, Any]) -> _Swapped:
        tensor = self._tensor(given["self"])
        swapped = {given["dim0"] % 3, given["dim1"] % 3} if "dim0" in given else set()
        if len(tensor.layout.shape) != 2 or (swapped != {1, 2} and given.get("dims") not in ([0, 2, 1], [0, -1, -2])):
            raise Unsupported("a transpose that is not of the last two sizes")
        return _Swapped(tensor)

    def products(self, node: fx.Node, given: dict[str, Any]) -> _Tensor | _Square:
        left, right = given["self"], given.get("mat2", given.get("other"))
        if right not in self._of_batch:
            return self._layer(left, right, None, is_transposed=True)
        of, swapped = self._done.get(left), self._done.get(right)
        if not isinstance(swapped, _Swapped) or not isinstance(of, _Tensor) or swapped.of.layout != of.layout:
            raise Unsupported("a product of two inputs that is not one of all pairs")
        if of.layout.shape[0] > _MAX_VECTORS:
            raise Unsupported("a product of so many vectors")
        return _Square(of)

    def linear(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        return self._layer(given["input"], given["weight"], given["bias"], is_transposed=False)

    def addmm(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        if given["alpha"] != 1 or given["beta"] != 1 or given["self"] in self._of_batch:
            raise Unsupported("an addmm that is no linear layer")
        return self._layer(given["mat1"], given["mat2"], given["self"], is_transposed=True)

    def index_select(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        whole, index = given["self"], given["index"]
        found = self._done.get(whole)
        if given["dim"] == 0 and isinstance(found, _Tensor) and index in self._integers:
            return self._of_users(whole, found, index)
        if not isinstance(found, _Square) or not found.is_flat or given["dim"] % 2 != 1 or index in self._of_batch:
            raise Unsupported("an index_select that is not of products of pairs")
        (length,), _ = self._row(node)
        return self._pairs(found.of, self._constants.integers(index), length)

    def activate(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        tensor = self._tensor(given["self"])
        name = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
        value, part = self._scratch(tensor.layout.width)
        self._steps.append(Activate(self._whole(tensor.layout), part, tensor.layout.width, _ACTIVATIONS[name]))
        return self._made(tensor, value, tensor.layout.shape)

    def combine(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        name = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
        left, right = given["self"], given["other"]
        if given.get("alpha", 1) != 1 or given.get("rounding_mode") is not None:
            raise Unsupported(f"the operator {name} with a factor")
        if name == "div":
            if not isinstance(right, int | float) or right == 0:
                raise Unsupported("a division by a tensor")
            right = 1.0 / right
        if name == "rsub":
            left, right = right, left
        return self._combined(node, left, right, _OPERATIONS[name])

    def square(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        if given.get("exponent", 2) != 2:
            raise Unsupported("a power that is no square")
        return self._combined(node, given["self"], given["self"], Operation.MULTIPLY)

    def sum(self, node: fx.Node, given: dict[str, Any]) -> _Tensor:
        tensor = self._tensor(given["self"])
        shape = tensor.layout.shape
        dims = given.get("dim")
        if not dims or len(dims) != 1 or given.get("dtype") is not None:
            raise Unsupported("a sum over several sizes")
        dim = self._dim(dims[0], len(shape))
        outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        value, part = self._scratch(outer * inner)
        self._steps.append(Sum(self._whole(tensor.layout), part, outer, shape[dim], inner))
        kept = (1,) if given["keepdim"] else ()
        return self._made(tensor, value, (*shape[:dim], *kept, *shape[dim + 1 :]))

    # Steps

    def _layer(self, source: fx.Node, weight: fx.Node, bias: fx.Node | None, *, is_transposed: bool) -> _Tensor:
        tensor = self._tensor(source)
        if weight in self._of_batch or bias in self._of_batch:
            raise Unsupported("a linear layer whose weights depend on the batch")
        described = value_of(weight)
        if not isinstance(described, TensorValue) or len(described.sizes) != 2 or not tensor.layout.shape:
            raise Unsupported("a product with what is no matrix")
        width, out = (int(size) for size in (described.sizes if is_transposed else reversed(described.sizes)))
        *outer, last = tensor.layout.shape
        if last != width:
            raise Unsupported("a linear layer over the batch")
        places = self._constants.matrix(weight), None if bias is None else self._constants.matrix(bias)
        self._layers.append(Layer(*places, width, out, is_transposed, tensor.dtype == torch.bfloat16))
        count = math.prod(outer)
        value, part = self._scratch(count * out)
        self._steps.append(Linear(self._whole(tensor.layout), part, width, out, count, len(self._layers) - 1))
        return self._made(tensor, value, (*outer, out))

    def _pairs(self, tensor: _Tensor, constant: int, length: int) -> _Tensor:
        n, dim = tensor.layout.shape
        vectors = [self._whole(tensor.layout.sliced(0, i, i + 1)) for i in range(n)]
        self._indices.append(PairIndex(constant, n, length))
        value, part = self._scratch(length)
        self._steps.append(Pairs(tuple(vectors), part, dim, length, len(self._indices) - 1))
        return self._made(tensor, value, (length,))

    def _of_users(self, whole: fx.Node, tensor: _Tensor, index: fx.Node) -> _Tensor:
        """Lets an input have one row for each user. All of its uses must take it by the same index."""
        if self._index not in (None, index) or len(whole.users) != 1 or whole.op != "placeholder":
            raise Unsupported("a gather of rows")
        self._index = index
        (stretch,) = tensor.layout.stretches
        self._values[stretch.value] = Value(Kind.OF_USER, self._values[stretch.value].width)
        return tensor

    def _combined(self, node: fx.Node, left: Any, right: Any, operation: Operation) -> _Tensor:
        shape, _ = self._row(node)
        width = math.prod(shape)
        operands = [self._operand(each, shape) for each in (left, right)]
        value, part = self._scratch(width)
        self._steps.append(Combine(operands[0], operands[1], part, width, operation))
        return self._made(None, value, shape)

    def _operand(self, given: Any, shape: tuple[int, ...]) -> Part:
        """Returns a tensor, a constant or a number as a part as wide as `shape`."""
        if isinstance(given, fx.Node) and given in self._of_batch:
            layout = self._tensor(given).layout
            if len(layout.shape) != len(shape):
                raise Unsupported("an operator that broadcasts over the batch")
            return self._whole(self._bounded(layout.expanded(shape)))
        if isinstance(given, fx.Node):
            described = value_of(given)
            rank = len(described.sizes) if isinstance(described, TensorValue) else len(shape) + 2
            if rank > len(shape) + (isinstance(described, TensorValue) and rank > 0 and described.sizes[0] == 1):
                raise Unsupported("an operator that broadcasts over the batch")
            return Part(self._constant_value(self._constants.filled(shape, given), math.prod(shape)), 0)
        if isinstance(given, int | float) and not isinstance(given, bool):
            return Part(self._constant_value(self._constants.number(shape, float(given)), math.prod(shape)), 0)
        raise Unsupported(f"the operand {str(given)[:60]!r}")

    def _constant_value(self, constant: int, width: int) -> int:
        value = self._value_constants.get(constant)
        if value is None:
            value = self._value_constants[constant] = self._value(Kind.CONSTANT, width)
        return value

    def _whole(self, layout: Layout) -> Part:
        """Returns where the floats of a layout lie one behind the other; copies them together where they do not."""
        if len(layout.stretches) == 1:
            return Part(layout.stretches[0].value, layout.stretches[0].start)
        value, part = self._scratch(layout.width)
        self._copy(layout, value)
        return part

    def _copy(self, layout: Layout, value: int) -> None:
        offset = 0
        for each in layout.stretches:
            self._steps.append(Copy(Part(each.value, each.start), Part(value, offset), each.length))
            offset += each.length

    # Values

    def _value(self, kind: Kind, width: int) -> int:
        if width == 0:
            raise Unsupported("a tensor of nothing")
        self._values.append(Value(kind, width))
        return len(self._values) - 1

    def _scratch(self, width: int) -> tuple[int, Part]:
        value = self._value(Kind.SCRATCH, width)
        return value, Part(value, 0)

    def _made(self, like: _Tensor | None, value: int, shape: Sequence[int]) -> _Tensor:
        dtype = torch.float32 if like is None else like.dtype
        return _Tensor(Layout(tuple(shape), (Stretch(value, 0, math.prod(shape)),)), dtype)

    def _with(self, tensor: _Tensor, layout: Layout) -> _Tensor:
        return _Tensor(self._bounded(layout), tensor.dtype)

    def _bounded(self, layout: Layout) -> Layout:
        if len(layout.stretches) > _MAX_STRETCHES:
            raise Unsupported("a tensor that lies in too many places")
        return layout

    def _tensor(self, node: Any) -> _Tensor:
        found = self._done.get(node)
        if isinstance(found, _Square):
            n = found.of.layout.shape[0]
            raise Unsupported(f"all products of {n} vectors, rather than some of them")
        if not isinstance(found, _Tensor):
            raise Unsupported(f"the value {getattr(node, 'name', node)!s}")
        return found

    def _row(self, node: fx.Node) -> tuple[tuple[int, ...], torch.dtype]:
        """Returns the sizes of a node's row, and its dtype. Its first size must be the batch."""
        value = value_of(node)
        if not isinstance(value, TensorValue) or not value.sizes or value.sizes[0] != self._batch:
            raise Unsupported(f"the value {node.name!r} does not have the batch as its first size")
        sizes = [size for size in value.sizes[1:] if isinstance(size, int)]
        if len(sizes) + 1 != len(value.sizes):
            raise Unsupported("a second size that is not fixed")
        return tuple(sizes), value.dtype

    def _dim(self, dim: int, sizes: int) -> int:
        """Returns the place of a size in a row. sizes: of a row."""
        place = dim % (sizes + 1) - 1
        if place < 0:
            raise Unsupported("an operator along the batch")
        return place


def _batch_size(given: set[fx.Node]) -> int | str | None:
    """Returns the text of the batch's size, which is the first one of all inputs; None without inputs."""
    sizes = [value.sizes[0] for node in given if isinstance(value := value_of(node), TensorValue)]
    return sizes[0] if sizes else None


def _named(node: fx.Node) -> dict[str, Any]:
    """Returns an operator's arguments by their names, those not given with their defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    found: dict[str, Any] = {}
    for place, argument in enumerate(schema.arguments):
        if place < len(node.args):
            found[argument.name] = node.args[place]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found


_OPERATIONS = {
    "add": Operation.ADD,
    "sub": Operation.SUBTRACT,
    "rsub": Operation.SUBTRACT,
    "mul": Operation.MULTIPLY,
    "div": Operation.MULTIPLY,
}
_RULES: dict[str, Callable[[_Lowering, fx.Node, dict[str, Any]], Any]] = {
    **dict.fromkeys(_RESHAPES, _Lowering.reshape),
    **dict.fromkeys(_NOTHING, _Lowering.nothing),
    **dict.fromkeys(_ACTIVATIONS, _Lowering.activate),
    **dict.fromkeys(_OPERATIONS, _Lowering.combine),
    **dict.fromkeys(("expand", "expand_as", "expand_copy", "broadcast_to"), _Lowering.expand),
    **dict.fromkeys(("cat", "concat", "concatenate"), _Lowering.cat),
    **dict.fromkeys(("slice", "slice_copy"), _Lowering.slice),
    **dict.fromkeys(("select", "select_copy"), _Lowering.select),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _Lowering.split),
    **dict.fromkeys(("transpose", "permute"), _Lowering.transpose),
    **dict.fromkeys(("bmm", "mm", "matmul"), _Lowering.products),
    **dict.fromkeys(("pow", "square"), _Lowering.square),
    "_to_copy": _Lowering.cast,
    "addmm": _Lowering.addmm,
    "index_select": _Lowering.index_select,
    "linear": _Lowering.linear,
    "stack": _Lowering.stack,
    "sum": _Lowering.sum,
}
