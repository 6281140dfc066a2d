"""Defines the interface of a GPU for sessions: that of every tier (`storage.hbm.device`), torch's operators, graphs.

Nothing else touches a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from storage.hbm.device import Device, DeviceMemory, Event, GpuInfo, Stream

__all__ = ["Assembly", "DeviceMemory", "Driver", "Event", "GpuInfo", "Gpus", "Graph", "Pool", "Stream"]

# Handles of a driver. They belong to the driver that made them.
Graph = Any
Pool = Any


@dataclass(frozen=True)
class Assembly:
    """Buffers that turn packed inputs into the tensors of a graph; see cuda/assemble.cuh."""

    #: Packed inputs of one batch, header first.
    staging: torch.Tensor
    #: (inputs, 4) int64 on the device: first byte of the input's tensor in `target`, bytes of its row, log2 of the
    #: bytes moved at once, 1 for the user's side.
    table: torch.Tensor
    #: The tensors.
    target: torch.Tensor
    #: 8 bytes on the device that get the header's stamp.
    stamp: torch.Tensor
    #: Bytes of the longest row.
    widest: int


class Driver(Device, Protocol):
    """One GPU, with graphs and torch's operators. Threads and errors as for every Device."""

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
        """Runs torch's operators of `work` on the stream. reads, writes: the buffers, or parts, that it uses."""

    def new_pool(self) -> Pool:
        """Creates memory for the inner tensors of graphs that never run at the same time."""

    def capture(self, work: Callable[[], object], pool: Pool, stream: Stream, *, name: str) -> Graph:
        """Captures what `work` puts on the stream, and only there, as a graph to be launched; nothing of it runs.

        The graph keeps addresses: the buffers must outlive it. Raises CaptureError when there is something in it that
        no graph holds.
        """

    def launch(self, graph: Graph, stream: Stream) -> None:
        """Puts a captured graph on a stream."""


class Gpus(Protocol):
    """The GPUs that this process sees."""

    infos: Sequence[GpuInfo]
    # The reason that there is none, or that the existing ones cannot be used; "" otherwise.
    why_none: str

    def driver(self, index: int) -> Driver:
        """Returns the driver of a GPU, the same one each time. Raises DeviceLost or ConfigError when it cannot
        be used.
        """
