"""The sample batch: its tensors by name, and how they are put back into a call of the module."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from storage.errors import InvalidInput, Unsupported
from trainer.embedding.keyed_bags import Bags, KeyedBags, is_keyed_jagged


@dataclass(frozen=True)
class _KeyedPlace:
    """The place of a KeyedJaggedTensor: the names of the tensors of each key."""

    names: Mapping[str, Sequence[str]]

    def bags(self, tensors: Mapping[str, Tensor]) -> KeyedBags:
        """Returns what the module gets there."""
        return KeyedBags({key: Bags(*(tensors[name] for name in names)) for key, names in self.names.items()})


@dataclass(frozen=True)
class Sample:
    """A sample batch taken apart."""

    #: The sample's tensors by name, each in storage of its own.
    leaves: dict[str, Tensor]
    _positions: tuple[str | _KeyedPlace | None, ...]
    _constants: tuple[Any, ...]
    _structure: Any
    _data: _Data = field(default_factory=lambda: _Data(), compare=False)

    @classmethod
    def of(cls, module: nn.Module, batch: object) -> Sample:
        """Takes a batch as the module does: a tensor, a tuple of arguments, or a mapping.

        A mapping whose keys are parameters of forward() becomes keyword arguments, any other is the one argument.
        Lists, tuples and mappings may nest. A KeyedJaggedTensor gives tensors for each of its keys. Raises InvalidInput
        when it holds no tensor.
        """
        args, kwargs, arguments = _arguments(module, batch)
        flat, structure = pytree.tree_flatten_with_path((args, kwargs), is_leaf=_is_of_torchrec)
        leaves: dict[str, Tensor] = {}
        positions: list[str | _KeyedPlace | None] = []

        def add(name: str, value: Tensor) -> str:
            if name in leaves:
                raise InvalidInput(f"sample_batch: two tensors would be called {name!r}; rename one", field=name)
            # A clone: storage of its own says where a view came from.
            leaves[name] = value.detach().clone(memory_format=torch.contiguous_format)
            return name

        for path, value in flat:
            if is_keyed_jagged(value):
                bags = KeyedBags.of(value).to_dict().items()
                names = {
                    key: [add(_clean(key) + end, own) for end, own in each.tensors().items()] for key, each in bags
                }
                positions.append(_KeyedPlace(names))
            elif _is_of_torchrec(value):
                raise Unsupported(
                    f"sample_batch: {_name(path, arguments)!r} is a {type(value).__name__} of TorchRec; give "
                    "a KeyedJaggedTensor, whose keys become features, or tensors"
                )
            elif isinstance(value, np.ndarray) and value.ndim:
                raise InvalidInput(
                    f"sample_batch: {_name(path, arguments)!r} is an array of numpy, which would become a constant of "
                    "the graph; give torch.from_numpy() of it, and have forward() take the tensor",
                    field=_name(path, arguments),
                )
            elif isinstance(value, Tensor):
                positions.append(add(_name(path, arguments), value))
            else:
                positions.append(None)
        if not leaves:
            raise InvalidInput("sample_batch holds no tensor; give a batch as the module's forward takes it")
        constants = tuple(
            value if position is None else None for (_, value), position in zip(flat, positions, strict=True)
        )
        return cls(leaves, tuple(positions), constants, structure)

    def call(self, module: Callable[..., Any], tensors: Mapping[str, Tensor]) -> Any:
        """Calls the module with these tensors in the places of the sample's."""
        flat = [
            position.bags(tensors)
            if isinstance(position, _KeyedPlace)
            else constant
            if position is None
            else tensors[position]
            for position, constant in zip(self._positions, self._constants, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(flat, self._structure)
        with self._data.watched():
            return module(*args, **kwargs)


class _Data(TorchFunctionMode):
    """Makes `tensor.data` an operator, which can be followed and exported, as tensor.detach() is."""

    def __init__(self) -> None:
        super().__init__()
        self._called = self._read = False

    def watched(self) -> AbstractContextManager[Any]:
        """Returns a context for a call: itself in the first one, and later where the first one read it.

        A mode is another frame in the errors of torch.export, which names the last one that is not torch's.
        """
        needed = self._read or not self._called
        self._called = True
        return self if needed else nullcontext()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch._C.TensorBase.data.__get__:  # type: ignore[attr-defined]
            self._read = True
            return args[0].detach()
        return func(*args, **(kwargs or {}))


def _is_of_torchrec(value: object) -> bool:
    """Returns whether a value is a KeyedJaggedTensor or one of its like, which is no tensor and holds several."""
    return is_keyed_jagged(value) or type(value).__module__.partition(".")[0] == "torchrec"


def _arguments(module: nn.Module, batch: object) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    parameters = inspect.signature(module.forward).parameters
    named = [
        name
        for name, entry in parameters.items()
        if entry.kind in (entry.POSITIONAL_ONLY, entry.POSITIONAL_OR_KEYWORD, entry.KEYWORD_ONLY)
    ]
    if isinstance(batch, Tensor) or is_keyed_jagged(batch):
        return (batch,), {}, named or ["input"]
    if isinstance(batch, Mapping):
        if len(batch) > 0 and all(key in named for key in batch):
            return (), dict(batch), []
        # A single mapping: its keys alone are the names.
        return (dict(batch),), {}, [""]
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(batch), {}, named
    raise InvalidInput(
        f"sample_batch is {type(batch).__name__}; give a tensor, a tuple of arguments, or a mapping of names to tensors"
    )


def _name(path: Sequence[Any], arguments: list[str]) -> str:
    kind, *rest = path
    parts: list[str] = []
    if kind.idx == 0:  # positional
        position = rest.pop(0).idx
        parts.append(arguments[position] if position < len(arguments) else f"input_{position}")
    parts += [str(getattr(key, "idx", getattr(key, "key", key))) for key in rest]
    name = "_".join(part for part in parts if part)
    return _clean(name) or "input"


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.:-]", "_", name)
