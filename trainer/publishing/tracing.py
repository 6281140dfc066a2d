"""Follows the numbers of a batch through a run: which element of which sample tensor an id is, and what was done to it.

Each element of a traced tensor has a code: the number of the sample's element that it comes from, and the number of the
steps that were taken. Operators that only move elements move their codes. N elements of all sample tensors together,
and one that stands for constants.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from trainer.publishing.id_steps import Steps, counted_from_end, mapped, step_of

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8, torch.bool)
_IDS = (torch.int64, torch.int32)
# Operators whose result holds elements of their arguments, at places that depend on no value of the batch.
_MOVING = """_unsafe_view alias cat clone constant_pad_nd contiguous detach expand flip gather index index_select
lift_fresh narrow permute repeat reshape roll select slice split split_with_sizes squeeze stack t take_along_dim
transpose unbind unfold unsqueeze view"""
_MOVES = frozenset(_MOVING.split())
# Operators whose result depends on the shapes of their arguments alone.
_SHAPING = "empty_like full_like new_empty new_empty_strided new_full new_ones new_zeros ones_like zeros_like"
_SHAPES = frozenset(_SHAPING.split())
# Frames that are not the user's.
_FOREIGN = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parent}/", "<")


@dataclass(frozen=True)
class Traced:
    """A tensor whose elements are known."""

    #: A code for each element, in the tensor's shape.
    codes: Tensor
    #: The sample tensor that it is as a whole, if that is known.
    leaf: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self.codes.shape)


@dataclass(frozen=True)
class Loss:
    """An operator whose result cannot be followed to elements of the batch."""

    operator: str
    #: FILE:LINE of the module; empty where it is not known.
    place: str

    def __str__(self) -> str:
        return f"{self.operator} at {self.place}" if self.place else self.operator


class Tracer:
    """Follows the tensors of one run. leaves: the sample's tensors, each in memory of its own."""

    def __init__(self, leaves: Mapping[str, Tensor]) -> None:
        self.leaves = dict(leaves)
        #: The number of each sample tensor's first element.
        self.starts: dict[str, int] = {}
        count = 0
        for name, leaf in self.leaves.items():
            self.starts[name] = count
            count += leaf.numel()
        #: N + 1; the last element stands for constants.
        self.count = count + 1
        self.steps = Steps()
        #: Sample tensors whose values were used otherwise than as ids, and by what first.
        self.used: dict[str, Loss] = {}
        #: Whether the module wrote into tensors of the sample or into results of lookups.
        self.writes_inputs = False
        self._traced: dict[int, tuple[Tensor, Traced]] = {}
        # Tensors that depend on the batch, with the operator that made them where they cannot be followed.
        self._tainted = WeakTensorKeyDictionary()
        # Memory that numbers of the batch were written into, with the operator that did; kept, so that it stays one's.
        self._written: dict[int, tuple[Tensor, Loss]] = {}
        # Memory of the sample and of results of lookups; kept, so that no later tensor has the same memory.
        self._given: dict[int, Tensor] = {_storage(leaf): leaf for leaf in self.leaves.values()}
        for name, leaf in self.leaves.items():
            self._set(leaf, torch.arange(leaf.numel()).reshape(leaf.shape) + self.starts[name], name)

    def of(self, tensor: Tensor) -> Traced | None:
        """Returns what a tensor's elements are; None where that is not known."""
        found = self._traced.get(id(tensor))
        return None if found is None else found[1]

    def codes_of(self, value: Any) -> Tensor | None:
        """Returns the codes of a tensor's elements; None where they are not known."""
        found = self.of(value) if isinstance(value, Tensor) else None
        return None if found is None else found.codes

    def is_constant(self, tensor: Tensor) -> bool:
        """Returns whether a tensor's values depend on no value of the batch."""
        return tensor not in self._tainted and _storage(tensor) not in self._written

    def loss_of(self, tensor: Tensor) -> Loss:
        """Returns the operator that made a tensor that cannot be followed."""
        if (written := self._written.get(_storage(tensor))) is not None:
            return written[1]
        if tensor not in self._tainted:
            return Loss("an operator", "")
        found = self._tainted[tensor]
        return found if isinstance(found, Loss) else Loss("an operator", "")

    def looked_up(self, rows: Sequence[Tensor], loss: Loss) -> None:
        """Notes the results of a lookup."""
        self.taint(rows, loss)
        self._given |= {_storage(value): value for value in rows}

    def taint(self, tensors: Sequence[Tensor], loss: Loss) -> None:
        """Notes that tensors depend on the batch."""
        for tensor in tensors:
            self._tainted[tensor] = loss

    def saw(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follows one operator."""
        given = _tensors((args, kwargs))
        results = _tensors(result)
        name = func._schema.name.removeprefix("aten::")
        if name in _SHAPES or all(map(self.is_constant, given)):
            return
        known = [value for value in given if self.of(value) is not None]
        written = [value for value in results if any(value is each for each in given)]
        # What is written into a part of a tensor cannot be followed to the whole.
        followed = known and all(map(_is_whole, written))
        codes = self._codes(name, func, args, kwargs or {}, results) if followed else None
        loss = Loss(str(func), user_place())
        if codes is None:
            self.use(known, loss)
        for value in written:
            self.writes_inputs |= _storage(value) in self._given
            self._forget(value)
            # Tensors of the same memory hold what was written, and only this one may be known.
            self._written[_storage(value)] = (value, loss)
        if codes is not None:
            for value, own in zip(results, codes, strict=True):
                self._set(value, own)
            return
        self.taint(results, loss)

    def use(self, values: Sequence[Tensor], loss: Loss) -> None:
        """Notes that values were used otherwise than as ids."""
        for value in values:
            if (traced := self.of(value)) is not None:
                for name in self.leaves_of(traced):
                    self.used.setdefault(name, loss)

    def leaves_of(self, traced: Traced) -> list[str]:
        """Returns the sample tensors that elements come from."""
        return list(self.elements_of(traced))

    def elements_of(self, traced: Traced) -> dict[str, Tensor]:
        """Returns by sample tensor which of its elements these are, each once, ascending."""
        elements = torch.unique(traced.codes % self.count)
        found: dict[str, Tensor] = {}
        for name, start in self.starts.items():
            own = elements[(elements >= start) & (elements < start + self.leaves[name].numel())] - start
            if own.numel():
                found[name] = own
        return found

    def counted_from_end(self, ids: Tensor, size: int) -> Tensor:
        """Returns ids of which negative ones count from the end of `size` rows, followed as steps."""
        codes = self.codes_of(ids)
        assert codes is not None

        def number(chain: int) -> int:
            return self.steps.number(counted_from_end(self.steps[chain], size))

        result = torch.where(ids < 0, ids + size, ids)
        self._set(result, mapped(codes // self.count, number) * self.count + codes % self.count)
        return result

    def constants(self, values: Tensor) -> Tensor:
        """Returns the codes of integers that depend on no value of the batch."""
        numbers = mapped(values.to(torch.int64), lambda value: self.steps.number((("constant", value),)))
        return numbers * self.count + (self.count - 1)

    def _codes(self, name: str, func: Any, args: Any, kwargs: Any, results: Sequence[Tensor]) -> list[Tensor] | None:
        """Returns the codes of the results of an operator; None where they are not known."""
        if name.endswith("_") and not name.startswith("_"):
            name = name.removesuffix("_")
        if name in ("_to_copy", "to"):
            return self._converted(args[0], results[0])
        if name == "copy":
            own = self._converted(args[1], results[0])
            return None if own is None else [own[0].expand(results[0].shape).contiguous()]
        if name in _MOVES:
            return self._moved(name, func, args, kwargs)
        if len(results) != 1 or results[0].dtype not in INTEGERS:
            return None
        made = step_of(self, name, args, kwargs, results[0])
        return None if made is None else [made.contiguous()]

    def _converted(self, source: Any, result: Tensor) -> list[Tensor] | None:
        traced = self.of(source)
        if traced is None:
            return None
        if source.dtype == torch.int64 and result.dtype == torch.int32:
            return [self.steps.extended(traced.codes, ("narrow",), self.count)]
        if source.dtype == result.dtype or (source.dtype in INTEGERS and result.dtype in _IDS):
            return [traced.codes]
        if source.is_floating_point() and result.dtype in _IDS:
            codes = self.steps.extended(traced.codes, ("integer",), self.count)
            # A float beyond 32 bits becomes some other number.
            return [codes if result.dtype == torch.int64 else self.steps.extended(codes, ("narrow",), self.count)]
        return None

    def _moved(self, name: str, func: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
        first, *rest = args
        if (
            any(not self.is_constant(value) for value in _tensors((rest, kwargs)))
            or func._schema.overload_name == "dtype"
        ):
            return None
        if name in ("cat", "stack"):
            parts = [self._codes_or_constants(value) for value in first]
            if any(part is None for part in parts):
                return None
            moved = func(parts, *rest, **kwargs)
        else:
            traced = self.of(first)
            if traced is None:
                return None
            if name == "constant_pad_nd":
                if first.is_floating_point():
                    return None
                rest = [rest[0], int(self.constants(torch.tensor(int(rest[1]) if len(rest) > 1 else 0)))]
            moved = func(traced.codes, *rest, **kwargs)
        return [value.contiguous() for value in _tensors(moved)]

    def _codes_or_constants(self, value: Tensor) -> Tensor | None:
        traced = self.of(value)
        if traced is not None:
            return traced.codes
        return self.constants(value) if self.is_constant(value) and value.dtype in INTEGERS else None

    def _set(self, tensor: Tensor, codes: Tensor, leaf: str = "") -> None:
        self._tainted[tensor] = True
        # The tensor is kept, so that its id stays its own.
        self._traced[id(tensor)] = (tensor, Traced(codes, leaf))

    def _forget(self, written: Tensor) -> None:
        """Forgets a tensor that was written to, and all that share its memory."""
        storage = _storage(written)
        for key, (tensor, _) in list(self._traced.items()):
            if _storage(tensor) == storage:
                del self._traced[key]


def user_place() -> str:
    """Returns FILE:LINE of the innermost frame that is neither torch's nor ours; empty where there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_FOREIGN):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_whole(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, Tensor)]
