"""Reads pickles of plain records. Every class that one names is looked up in a list, and others are refused."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any

from storage.errors import InvalidInput, UnsafeArtifact


def read_pickle(data: bytes, known: Mapping[tuple[str, str], Any], refer: Callable[[Any], Any] | None = None) -> Any:
    """Returns what a pickle holds.

    known: what stands for a class or function, by its module and name; anything else is refused before it is called.
    refer: returns what a reference to something outside of the pickle stands for. Raises UnsafeArtifact naming what
    would be imported, and whatever a damaged pickle makes the unpickler raise.
    """
    # The unpickler takes memory for as many objects as the largest number of one, which a few bytes can say.
    for operation, number, _ in pickletools.genops(data):
        if operation.name in _NUMBERING and int(number or 0) > len(data):
            raise InvalidInput(f"an object has the number {number}, beyond the bytes of the pickle")
    return _Unpickler(io.BytesIO(data), known, refer).load()


_NUMBERING = ("PUT", "BINPUT", "LONG_BINPUT")


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, file: IO[bytes], known: Mapping[tuple[str, str], Any], refer: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(file)
        self._known = known
        self._refer = refer

    def find_class(self, module: str, name: str) -> Any:
        """Returns what stands for a class. Raises UnsafeArtifact for one that is not known."""
        if (module, name) not in self._known:
            raise UnsafeArtifact(f"it would import {module}.{name}, and nothing but tensors is read; nothing was run")
        return self._known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Returns what a reference stands for. Raises UnsafeArtifact where there are none."""
        if self._refer is None:
            raise UnsafeArtifact("it refers to something outside of itself")
        return self._refer(pid)
