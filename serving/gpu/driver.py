"""What a session asks of a GPU: what every tier does (`storage.hbm.device`), operators of torch, graphs. Nothing else
touches a card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from storage.hbm.device import Device, DeviceMemory, Event, GpuInfo, Stream

__all__ = ["Assembly", "DeviceMemory", "Driver", "Event", "GpuInfo", "Gpus", "Graph", "Pool", "Stream"]

# Handles of a driver's own. They belong to the driver that made them.
Graph = Any
Pool = Any


@dataclass(frozen=True)
class Assembly:
    """How packed inputs become the tensors of a graph; see cuda/assemble.cuh.

    staging: packed inputs of one batch, header first. table: (inputs, 4) int64 on the device: where the input's tensor
    begins in `target`, bytes of its row, log2 of the bytes moved at once, 1 for the user's side. target: the tensors.
    stamp: 8 bytes on the device that get the header's stamp. widest: bytes of the longest row.
    """

    staging: torch.Tensor
    table: torch.Tensor
    target: torch.Tensor
    stamp: torch.Tensor
    widest: int


class Driver(Device, Protocol):
    """One card, with graphs and torch's operators. Threads and errors as of every Device."""

    def assemble(self, assembly: Assembly, rows: int, stream: Stream) -> None:
        """Unpacks `staging` into `target`, `rows` rows of each input; those past the batch are zeros."""

    def compute(
        self,
        work: Callable[[], object],
        stream: Stream,
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        """Runs torch's operators of `work` on the stream. reads, writes: the buffers, or parts, that it looks at."""

    def new_pool(self) -> Pool:
        """Memory for the inner tensors of graphs that never run at the same time."""

    def capture(self, work: Callable[[], object], pool: Pool, stream: Stream, *, name: str) -> Graph:
        """What `work` puts on the stream, and only there, as a graph to be launched; nothing of it runs.

        The graph keeps addresses: the buffers must outlive it. Raises CaptureError when there is something in it that
        no graph holds.
        """

    def launch(self, graph: Graph, stream: Stream) -> None:
        """Puts a captured graph on a stream."""


class Gpus(Protocol):
    """The cards that this process sees."""

    infos: Sequence[GpuInfo]
    # Why there is none, or why those that there are cannot be used; "" otherwise.
    why_none: str

    def driver(self, index: int) -> Driver:
        """The driver of a card, the same one each time. Raises DeviceLost or ConfigError when it cannot be used."""
