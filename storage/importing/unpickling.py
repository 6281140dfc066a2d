"""Reads pickles of plain records. Every class that one names is looked up in a list, and others are refused."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from storage.errors import InvalidInput, UnsafeArtifact


def read_pickle(data: bytes, known: Mapping[tuple[str, str], Any], refer: Callable[[Any], Any] | None = None) -> Any:
    """Returns what a pickle holds.

    known: what stands for a class or function, by its module and name; anything else is refused before it is called.
    refer: returns what a reference to something outside of the pickle stands for. Raises UnsafeArtifact naming what
    would be imported, and whatever a damaged pickle makes the unpickler raise.
    """
    _check_size(data)
    return _Unpickler(data, known, refer).load()


def _check_size(data: bytes) -> None:
    """Raises InvalidInput for a pickle that would take memory or time beyond its bytes, without making an object of it.

    The unpickler takes memory for as many objects as the largest number of one. And a tuple may hold another one twice,
    which holds another one twice: a few bytes stand for what it takes years to hash.
    """
    # How many values each object on the stack stands for; None for a mark.
    stack: list[int | None] = []
    numbered: dict[int, int] = {}
    for operation, argument, _ in pickletools.genops(data):
        name = operation.name
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            number = len(numbered) if argument is None else int(argument)
            if number > len(data):
                raise InvalidInput(f"an object has the number {number}, beyond the bytes of the pickle")
            numbered[number] = stack[-1] or 1
            continue
        if name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(numbered[int(argument or 0)])
            continue
        if name == "DUP":
            stack.append(stack[-1])
            continue
        popped = _pop(stack, operation)
        values = 1 + sum(popped) if name.startswith("TUPLE") else 1
        if values > _MOST_VALUES:
            raise InvalidInput("a tuple holds others so often that it stands for too many values")
        stack += [None if each is pickletools.markobject else values for each in operation.stack_after]


def _pop(stack: list[int | None], operation: pickletools.OpcodeInfo) -> list[int]:
    """Takes from the stack what an operation takes, and returns how many values that is. Raises IndexError."""
    popped: list[int] = []
    for each in reversed(operation.stack_before):
        if each is pickletools.markobject:
            if stack.pop() is not None:
                raise InvalidInput("a mark is missing")
        elif each is pickletools.stackslice:
            while stack[-1] is not None:
                popped.append(stack.pop() or 0)
        else:
            popped.append(stack.pop() or 0)
    return popped


_MOST_VALUES = 1_000_000
# Other classes that are known make plain records, which copy nothing.
_CONTAINERS = (OrderedDict, dict, list, set, tuple)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, known: Mapping[tuple[str, str], Any], refer: Callable[[Any], Any] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self._refer = refer
        # Values that calls may still copy: a few bytes call for another copy of one long list.
        self._copies = len(data)

    def find_class(self, module: str, name: str) -> Any:
        """Returns what stands for a class. Raises UnsafeArtifact for one that is not known."""
        if (module, name) not in self._known:
            raise UnsafeArtifact(f"it would import {module}.{name}, and nothing but tensors is read; nothing was run")
        found = self._known[module, name]
        is_function = callable(found) and not isinstance(found, type)
        return self._bounded(found) if is_function or found in _CONTAINERS else found

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._copies -= sum(len(each) for each in arguments if isinstance(each, _CONTAINERS))
            if self._copies < 0:
                raise InvalidInput("its calls copy more values than it has bytes")
            return function(*arguments)

        return call

    def persistent_load(self, pid: Any) -> Any:
        """Returns what a reference stands for. Raises UnsafeArtifact where there are none."""
        if self._refer is None:
            raise UnsafeArtifact("it refers to something outside of itself")
        return self._refer(pid)
