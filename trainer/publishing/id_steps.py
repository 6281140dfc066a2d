"""The arithmetic on ids that becomes transforms of a feature: a step for each operator whose other operand is constant.

A step is a tuple: ("add", n), ("multiply", n), ("modulo", n), ("floor_divide", n), ("integer",), ("constant", n),
("replace", low, high, outside, by) for values from low to high or outside of them, and ("is", low, high, outside) for
that comparison alone. ("narrow",) stands where a value becomes an int32, which wraps around. Features compute with 64
bits. An id that has wrapped around is in no table, but what else is computed from it may be, and is not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from storage.features.transforms import Add, FloorDivide, Integer, Modulo, Multiply, Replace, Transform

Step = tuple[Any, ...]
Chain = tuple[Step, ...]

_LOW, _HIGH = -(2**63), 2**63 - 1
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


class Steps:
    """Numbers chains of steps; number 0 is the empty one."""

    def __init__(self) -> None:
        self._chains: list[Chain] = [()]
        self._numbers: dict[Chain, int] = {(): 0}

    def __getitem__(self, number: int) -> Chain:
        return self._chains[number]

    def number(self, chain: Chain) -> int:
        """Returns the number of a chain."""
        if chain not in self._numbers:
            self._numbers[chain] = len(self._chains)
            self._chains.append(chain)
        return self._numbers[chain]

    def extended(self, codes: Tensor, step: Step, count: int) -> Tensor:
        """Returns the codes after one more step of all elements. count: numbers of elements."""
        chains = mapped(codes // count, lambda number: self.number((*self[number], step)))
        return chains * count + codes % count


class Codes(Protocol):
    """Knows the codes of tensors: a chain's number times `count`, plus the number of the element that it was."""

    steps: Steps
    count: int

    def codes_of(self, value: Any) -> Tensor | None:
        """Returns the codes of a tensor's elements; None where they are not known."""

    def is_constant(self, tensor: Tensor) -> bool:
        """Returns whether a tensor's values depend on no value of the batch."""


def mapped(values: Tensor, function: Callable[[int], int]) -> Tensor:
    """Returns a function of each value, called once for equal ones."""
    unique, places = torch.unique(values, return_inverse=True)
    return torch.tensor([function(value) for value in unique.tolist()], dtype=torch.int64)[places]


def step_of(known: Codes, name: str, args: Any, kwargs: Any, result: Tensor) -> Tensor | None:
    """Returns the codes of an operator's result, None where it is no step."""
    if name in ("add", "sub"):
        if kwargs.get("alpha", 1) != 1:
            return None
        sign = 1 if name == "add" else -1
        if name == "add" and known.codes_of(args[0]) is None:
            args = (args[1], args[0])
        return _stepped(known, args[0], args[1], result, lambda value: ("add", sign * value))
    if name == "mul":
        if known.codes_of(args[0]) is None:
            args = (args[1], args[0])
        return _stepped(known, args[0], args[1], result, lambda value: ("multiply", value))
    if name in ("remainder", "floor_divide") or (name == "div" and kwargs.get("rounding_mode") == "floor"):
        op = "modulo" if name == "remainder" else "floor_divide"
        return _stepped(known, args[0], args[1], result, lambda value: (op, value) if value > 0 else None)
    if name in ("clamp", "clamp_min", "clamp_max"):
        return _clamped(known, name, args, kwargs)
    if name in _SWAPPED:
        if known.codes_of(args[0]) is None:
            args, name = (args[1], args[0]), _SWAPPED[name]
        return _stepped(known, args[0], args[1], result, lambda value: ("is", *_range(name, value)))
    if name in ("logical_not", "bitwise_not") and result.dtype == torch.bool:
        return _inverted(known, known.codes_of(args[0]))
    if name == "where" and len(args) == 3:
        condition, then, other = args
        asked = known.codes_of(condition)
        if known.codes_of(then) is None:
            return _replaced(known, asked, other, then, result)
        return _replaced(known, _inverted(known, asked), then, other, result)
    if name == "masked_fill":
        return _replaced(known, known.codes_of(args[1]), args[0], args[2], result)
    return None


def counted_from_end(chain: Chain, size: int) -> Chain:
    """Returns a chain whose numbers from -size to -1 become those from 0 to size - 1, as `rows[ids]` reads them.

    Others that are no row become `size`. n + floor(n / (size + 1)) is n, or n - 1 below 0, and so modulo size + 1 n, or
    n + size.
    """
    last = next((step for step in reversed(chain) if step != ("narrow",)), ())
    if last[:1] == ("is",) or (last[:1] == ("modulo",) and last[1] <= size):
        return chain
    known = ("replace", -size, size - 1, True, size)
    return (*chain, known, ("multiply", size + 2), ("floor_divide", size + 1), ("modulo", size + 1))


def kind_of(chain: Chain) -> Chain:
    """Returns what chains have in common that can be transforms of one feature: a column may add what it likes."""
    return tuple(step[:1] if step[0] == "add" else step for step in chain)


def transforms_of(chains: Sequence[Chain]) -> tuple[Transform, ...] | None:
    """Returns the transforms of columns with chains of one kind; None where they are no ids any more."""
    found: list[Transform] = []
    for steps in zip(*chains, strict=True):
        match steps[0]:
            case ("add", amount):
                amounts = tuple(step[1] for step in steps)
                found.append(Add(values=(amount,) if len(set(amounts)) == 1 else amounts))
            case ("multiply", factor):
                found.append(Multiply(factor=factor))
            case ("modulo", divisor):
                found.append(Modulo(divisor=divisor))
            case ("floor_divide", divisor):
                found.append(FloorDivide(divisor=divisor))
            case ("integer",):
                found.append(Integer())
            case ("narrow",):
                pass
            case ("replace", low, high, outside, by):
                bounds = {"low": None if low == _LOW else low, "high": None if high == _HIGH else high}
                found.append(Replace(**bounds, outside=outside, by=by))
            case _:
                return None
    return tuple(found)


def _constant(known: Codes, value: Any, shape: torch.Size) -> Tensor | None:
    """Returns a constant operand as int64 in the result's shape."""
    if isinstance(value, Tensor):
        if not known.is_constant(value) or value.is_floating_point():
            return None
        return value.to(torch.int64).expand(shape)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return torch.full(tuple(shape), value)


def _stepped(
    known: Codes, value: Any, operand: Any, result: Tensor, step: Callable[[int], Step | None]
) -> Tensor | None:
    """Returns the codes of `value` after a step by a constant operand."""
    codes, constant = known.codes_of(value), _constant(known, operand, result.shape)
    if codes is None or constant is None or value.is_floating_point():
        return None
    narrow = result.dtype not in (torch.int64, torch.bool)
    return _joined(known, codes, constant, result, lambda chain, amount: _after(chain, step(amount), narrow))


def _after(chain: Chain, step: Step | None, narrow: bool) -> Chain | None:
    """Returns a chain with one more step; None where it depends on how an integer wrapped around.

    narrow: whether the result has fewer than 64 bits.
    """
    # A sum of what has wrapped around is the sum, wrapped around.
    if step is None or (_has_wrapped(chain) and step[0] != "add"):
        return None
    wraps = narrow and step[0] in ("add", "multiply")
    return (*chain, step, ("narrow",)) if wraps else (*chain, step)


def _has_wrapped(chain: Chain) -> bool:
    return ("narrow",) in chain


def _joined(
    known: Codes, codes: Tensor, other: Tensor, result: Tensor, join: Callable[[Chain, int], Chain | None]
) -> Tensor | None:
    """Returns the codes whose chains `join` makes of the elements' chains and other numbers; None where it says so."""
    steps, count = known.steps, known.count
    codes = codes.expand(result.shape)
    pairs = torch.stack([(codes // count).reshape(-1), other.expand(result.shape).reshape(-1)])
    unique, places = torch.unique(pairs, dim=1, return_inverse=True)
    numbers: list[int] = []
    for chain, number in zip(*unique.tolist(), strict=True):
        made = join(steps[chain], number)
        if made is None:
            return None
        numbers.append(steps.number(made))
    return torch.tensor(numbers, dtype=torch.int64)[places].reshape(result.shape) * count + codes % count


def _range(name: str, value: int) -> tuple[int, int, bool]:
    """Returns the values for which a comparison is true: low, high, and whether it is those outside."""
    return {
        "eq": (value, value, False),
        "ne": (value, value, True),
        "lt": (value, _HIGH, True),
        "le": (_LOW, value, False),
        "gt": (_LOW, value, True),
        "ge": (value, _HIGH, False),
    }[name]


def _clamped(known: Codes, name: str, args: Any, kwargs: Any) -> Tensor | None:
    given = list(args[1:])
    low = kwargs.get("min", given.pop(0) if given and name != "clamp_max" else None)
    high = kwargs.get("max", given.pop(0) if given else None)
    codes = known.codes_of(args[0])
    for bound, ends in ((low, (low, _HIGH)), (high, (_LOW, high))):
        if bound is None:
            continue
        if codes is None or isinstance(bound, bool) or not isinstance(bound, int):
            return None
        if any(_has_wrapped(known.steps[number]) for number in torch.unique(codes // known.count).tolist()):
            return None
        codes = known.steps.extended(codes, ("replace", *ends, True, bound), known.count)
    return codes


def _inverted(known: Codes, codes: Tensor | None) -> Tensor | None:
    """Returns the codes of the opposite of a condition, None where it is no comparison."""
    if codes is None:
        return None
    numbers: dict[int, int] = {}
    for number in torch.unique(codes // known.count).tolist():
        chain = known.steps[number]
        if not chain or chain[-1][0] != "is":
            return None
        _, low, high, outside = chain[-1]
        numbers[number] = known.steps.number((*chain[:-1], ("is", low, high, not outside)))
    return mapped(codes // known.count, numbers.__getitem__) * known.count + codes % known.count


def _replaced(known: Codes, asked: Tensor | None, value: Any, by: Any, result: Tensor) -> Tensor | None:
    """Returns the codes of `value` where elements for which their own condition is true became the constant `by`.

    asked: codes of the conditions.
    """
    codes, constant = known.codes_of(value), _constant(known, by, result.shape)
    if codes is None or asked is None or constant is None:
        return None
    count = known.count
    codes, asked = codes.expand(result.shape), asked.expand(result.shape)
    if not torch.equal(codes % count, asked % count):
        return None

    def to_pair(chain: Chain, condition: int) -> Chain | None:
        found = known.steps[condition]
        return found if found and found[-1][0] == "is" and found[:-1] == chain else None

    conditions = _joined(known, codes, asked // count, result, to_pair)
    if conditions is None:
        return None
    return _joined(
        known,
        conditions,
        constant,
        result,
        lambda chain, amount: (*chain[:-1], ("replace", *chain[-1][1:], amount)),
    )
