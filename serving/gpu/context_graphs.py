"""Keeps the CUDA graphs of one session: by what they do, for how many rows, and with which weight slot."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Literal

from serving.gpu.device_model import DeviceModel
from serving.gpu.driver import Graph, Stream
from serving.gpu.weight_slots import WeightSlot
from storage.errors import CaptureError

# The kinds of graphs. full: unpacks inputs, and computes. dense: computes alone. look_up: finds rows, and unpacks the
# other inputs; whole: as look_up, and computes.
GraphKind = Literal["full", "dense", "look_up", "whole"]


class ContextGraphs:
    """The graphs of one session. Not thread-safe."""

    def __init__(self, model: DeviceModel, stream: Stream, warm: Callable[[int, WeightSlot], None]) -> None:
        """Starts without graphs. warm: runs what graphs with a weight slot compute, once for each number of rows."""
        self._model = model
        self._stream = stream
        self._warm: Callable[[int, WeightSlot], None] | None = warm
        self._pool = model.driver.new_pool()
        self._graphs: dict[tuple[GraphKind, int, int], Graph] = {}
        self._warmed: set[int] = set()

    def has(self, kind: GraphKind, rows: int, weight_slot: WeightSlot | None, put: Callable[[], None]) -> bool:
        """Captures the graph where it is missing; returns False where there can be none, and uses none from then on.

        put: puts the work on the stream. The first for a number of rows reads the weight slot: it is pinned, and the
        stream has waited for it. weight slot: None for a kind that needs none. Raises DeviceError.
        """
        key = (kind, rows, -1 if weight_slot is None else weight_slot.number)
        if key in self._graphs:
            return True
        try:
            if weight_slot is not None and self._warm is not None and rows not in self._warmed:
                self._warm(rows, weight_slot)
                self._warmed.add(rows)
            name = f"{self._model.name}/{rows}" if kind == "full" else f"{self._model.name}/{kind}/{rows}"
            self._graphs[key] = self._model.driver.capture(put, self._pool, self._stream, name=name)
        except CaptureError as error:
            self._graphs.clear()
            self._model.cannot_capture(error)
            return False
        return True

    def launch(self, kind: GraphKind, rows: int, weight_slot: WeightSlot | None) -> None:
        """Puts a graph on the stream, for which `has` returned True."""
        self._model.driver.launch(
            self._graphs[kind, rows, -1 if weight_slot is None else weight_slot.number], self._stream
        )

    def drop(self, kinds: Container[GraphKind]) -> None:
        """Drops graphs of some kinds, whose buffers are gone. None of them may be on the stream."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if key[0] not in kinds}

    def clear(self) -> None:
        """Drops all; they are captured anew when they are needed. Nothing is on the stream."""
        self._graphs.clear()
        self._warmed.clear()

    def close(self) -> None:
        """Frees graphs and their memory, and the references to the session."""
        self.clear()
        self._warm = None
        self._pool = None
