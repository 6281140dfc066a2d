"""Wraps functions that run later so that they do not keep buffers: a real device keeps addresses, and no memory.

Tensors over buffers are taken out of what a function holds: its closure, its defaults, the arguments of a
partial, and lists, tuples, dicts and functions in these. They are made anew, at the same addresses, when it runs.
Other objects are held as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CellType, FunctionType
from typing import Any

import torch

from tests.simulated_gpu.buffers import Part

Find = Callable[[torch.Tensor], Part | None]
_MAX_DEPTH = 4


class _Loose:
    """A placeholder that makes a value when it is needed."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def loosened(work: Callable[[], object], find: Find, held: list[Part]) -> Callable[[], object]:
    """Returns the same work without the tensors that `find` finds; it raises LifetimeError when it runs if one is gone.

    held: the parts that were found are appended.
    """

    def found(tensor: torch.Tensor) -> Part | None:
        part = find(tensor)
        if part is not None:
            held.append(part)
        return part

    loose = _loosen(work, found, _MAX_DEPTH)
    return partial(_run, loose) if isinstance(loose, _Loose) else work


def _run(loose: _Loose) -> None:
    loose.make()()


def _made(value: Any) -> Any:
    return value.make() if isinstance(value, _Loose) else value


def _loosen(value: Any, find: Find, depth: int) -> Any:
    """Returns the value itself when it holds no such tensor."""
    kind = type(value)
    if kind is torch.Tensor:
        part = find(value)
        return value if part is None else _Loose(partial(_tensor, part, value.dtype, value.shape, value.stride()))
    if depth == 0:
        return value
    if kind is list or kind is tuple:
        items = [_loosen(item, find, depth - 1) for item in value]
        return _Loose(partial(_sequence, kind, items)) if _any_loose(items) else value
    if kind is dict:
        items = [_loosen(item, find, depth - 1) for item in value.values()]
        return _Loose(partial(_mapping, list(value), items)) if _any_loose(items) else value
    if kind is partial:
        held = [_loosen(item, find, depth - 1) for item in (value.func, value.args, value.keywords)]
        return _Loose(partial(_partial, held)) if _any_loose(held) else value
    if kind is FunctionType:
        return _loosen_function(value, find, depth)
    return value


def _loosen_function(work: FunctionType, find: Find, depth: int) -> Any:
    # A cell that is not loosened stays the same cell, so that other functions still share it.
    cells = [_loosen_cell(cell, find, depth - 1) for cell in work.__closure__ or ()]
    defaults = _loosen(work.__defaults__, find, depth)
    keywords = _loosen(work.__kwdefaults__, find, depth)
    if not _any_loose([*cells, defaults, keywords]):
        return work
    return _Loose(partial(_function, work.__code__, work.__globals__, work.__name__, cells, defaults, keywords))


def _loosen_cell(cell: CellType, find: Find, depth: int) -> Any:
    try:
        contents = cell.cell_contents
    except ValueError:  # nothing in it yet
        return cell
    loose = _loosen(contents, find, depth)
    return _Loose(partial(_cell, loose)) if isinstance(loose, _Loose) else cell


def _any_loose(values: list[Any]) -> bool:
    return any(isinstance(value, _Loose) for value in values)


def _tensor(part: Part, dtype: torch.dtype, shape: torch.Size, stride: tuple[int, ...]) -> torch.Tensor:
    flat = torch.from_numpy(part.buffer.array())[part.begin : part.end].view(dtype)
    return flat.as_strided(shape, stride, flat.storage_offset())


def _sequence(kind: type, items: list[Any]) -> Any:
    return kind([_made(item) for item in items])


def _mapping(keys: list[Any], items: list[Any]) -> dict[Any, Any]:
    return {key: _made(item) for key, item in zip(keys, items, strict=True)}


def _partial(held: list[Any]) -> Any:
    work, arguments, keywords = (_made(item) for item in held)
    return partial(work, *arguments, **keywords)


def _cell(loose: _Loose) -> CellType:
    return CellType(loose.make())


def _function(code: Any, names: dict[str, Any], name: str, cells: list[Any], defaults: Any, keywords: Any) -> Any:
    work = FunctionType(code, names, name, _made(defaults), tuple(_made(cell) for cell in cells))
    work.__kwdefaults__ = _made(keywords)
    return work
