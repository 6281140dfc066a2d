"""The CUDA graphs of one lane: by what they do, for how many rows, and with which bank of weights."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Literal

from serving.gpu.device_model import DeviceModel
from serving.gpu.driver import Graph, Stream
from serving.gpu.weight_banks import Bank
from storage.errors import CaptureError

# full: unpacks inputs, and computes. dense: computes alone. look_up: finds rows, and unpacks the other inputs; whole:
# that, and computes.
GraphKind = Literal["full", "dense", "look_up", "whole"]


class LaneGraphs:
    """One thread at a time."""

    def __init__(self, model: DeviceModel, stream: Stream, warm: Callable[[int, Bank], None]) -> None:
        """warm: runs on so many rows what graphs with a bank compute, once for each number of rows."""
        self._model = model
        self._stream = stream
        self._warm: Callable[[int, Bank], None] | None = warm
        self._pool = model.driver.new_pool()
        self._graphs: dict[tuple[GraphKind, int, int], Graph] = {}
        self._warmed: set[int] = set()

    def has(self, kind: GraphKind, rows: int, bank: Bank | None, put: Callable[[], None]) -> bool:
        """Captures the graph where it is not there yet; False where there cannot be one, and none is used from now on.

        put: puts the work on the stream. The first for a number of rows reads the bank: it is pinned, and the stream
        has waited for it. bank: None for a kind that needs none. Raises DeviceError.
        """
        key = (kind, rows, -1 if bank is None else bank.number)
        if key in self._graphs:
            return True
        try:
            if bank is not None and self._warm is not None and rows not in self._warmed:
                self._warm(rows, bank)
                self._warmed.add(rows)
            name = f"{self._model.name}/{rows}" if kind == "full" else f"{self._model.name}/{kind}/{rows}"
            self._graphs[key] = self._model.driver.capture(put, self._pool, self._stream, name=name)
        except CaptureError as error:
            self._graphs.clear()
            self._model.cannot_capture(error)
            return False
        return True

    def launch(self, kind: GraphKind, rows: int, bank: Bank | None) -> None:
        """Puts one that `has` said is there on the stream."""
        self._model.driver.launch(self._graphs[kind, rows, -1 if bank is None else bank.number], self._stream)

    def drop(self, kinds: Container[GraphKind]) -> None:
        """Forgets graphs of some kinds: what they look at is gone. Nothing of them is on the stream."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if key[0] not in kinds}

    def clear(self) -> None:
        """Forgets all; they are captured anew when they are needed. Nothing is on the stream."""
        self._graphs.clear()
        self._warmed.clear()

    def close(self) -> None:
        """Lets graphs and their memory go, and the lane."""
        self.clear()
        self._warm = None
        self._pool = None
