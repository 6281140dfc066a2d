"""Makes rounding of fp32 products to TF32, one setting of torch's whole process, a setting of each model."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Settings of torch that a dense graph's products, convolutions and recurrent layers read. They are read when an
# operator is put on a stream, so they have to be right for a dispatch or a capture, not for its computing.
_KINDS: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn,
)


class _Turns:
    """Runs threads that want the same setting together; those that want another one take turns, in order of arrival."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._tf32 = False
        self._waiting: deque[object] = deque()
        self._found: list[str] = []
        self._own = threading.local()

    def enter(self, tf32: bool) -> None:
        held: list[bool] = self._held()
        if held:
            # Waiting here for others, who wait for this thread, would last forever.
            assert held[-1] == tf32, "a thread asked for both precisions at once"
            held.append(tf32)
            return
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while self._waiting[0] is not turn or (self._inside and self._tf32 != tf32):
                    self._changed.wait()
                if not self._inside:
                    self._set(tf32)
                self._inside += 1
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        held.append(tf32)

    def leave(self) -> None:
        held = self._held()
        held.pop()
        if held:
            return
        with self._changed:
            self._inside -= 1
            if not self._inside:
                for kind, found in zip(_KINDS, self._found, strict=True):
                    kind.fp32_precision = found
                self._changed.notify_all()

    def _set(self, tf32: bool) -> None:
        self._found = [kind.fp32_precision for kind in _KINDS]
        self._tf32 = tf32
        for kind in _KINDS:
            kind.fp32_precision = "tf32" if tf32 else "ieee"

    def _held(self) -> list[bool]:
        try:
            held: list[bool] = self._own.held
        except AttributeError:
            held = self._own.held = []
        return held


_TURNS = _Turns()


@contextmanager
def matmul_precision(tf32: bool) -> Iterator[None]:
    """A context for the dispatch or the capture of a dense graph: sets whether fp32 products may round inputs to TF32.

    Without, they are as exact as on a processor; torch would let convolutions round. Threads that want the same setting
    run side by side, the others wait; afterwards the settings are what they were.
    """
    _TURNS.enter(tf32)
    try:
        yield
    finally:
        _TURNS.leave()
