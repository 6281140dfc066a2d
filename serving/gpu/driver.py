"""What a session asks of a GPU: buffers, streams, events, copies, kernels, graphs. Nothing else touches a card.

`torch_driver` is the one for CUDA; the tests have one that runs the same calls on the processor, in every order that
streams and events allow.

A buffer is a uint8 tensor; slices of it may be viewed in other dtypes. Work that is put on a stream begins after all
that was put there before, and nothing is known of other streams, nor of the host, but through events. Whoever frees or
reuses a buffer has waited for an event that lies behind its last use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

# Handles of a driver's own. They belong to the driver that made them.
Stream = Any
Event = Any
Graph = Any
Pool = Any


@dataclass(frozen=True)
class GpuInfo:
    """One card. index: as CUDA counts the visible ones. capability: such as (9, 0). total_bytes: of its memory."""

    index: int
    name: str
    capability: tuple[int, int]
    total_bytes: int
    uuid: str = ""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes. total, free: of the card, whoever uses it. device, pinned: that the buffers of this driver take."""

    total: int
    free: int
    device: int
    pinned: int


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


class Driver(Protocol):
    """One card. Any thread, after `enter_thread`.

    Every call may raise DeviceLost, after which every other call does, and DeviceOutOfMemory, after which the others
    go on.
    """

    info: GpuInfo

    def enter_thread(self) -> None:
        """Makes the card the calling thread's."""

    def pinned(self, size: int) -> torch.Tensor:
        """`size` bytes of the host's memory that the card reads and writes itself, zeros."""

    def device(self, size: int) -> torch.Tensor:
        """`size` bytes of the card's memory, zeros."""

    def new_stream(self, name: str) -> Stream:
        """A stream. name: for traces."""

    def new_event(self, *, busy_wait: bool = False) -> Event:
        """An event that nothing has recorded yet. busy_wait: who waits for it keeps a core, and is told sooner."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Copies bytes between a pinned buffer and one of the device, in either direction."""

    def assemble(self, assembly: Assembly, rows: int, stream: Stream) -> None:
        """Unpacks `staging` into `target`, `rows` rows of each input; those past the batch are zeros."""

    def compute(
        self, work: Callable[[], None], stream: Stream, *, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]
    ) -> None:
        """Runs torch's operators of `work` on the stream. reads, writes: the buffers, or parts, that it looks at."""

    def record(self, event: Event, stream: Stream) -> None:
        """The event stands for all that was put on the stream so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """What is put on the stream from now on begins after what the event stands for."""

    def synchronize(self, event: Event) -> None:
        """The calling thread waits for what the event stands for."""

    def new_pool(self) -> Pool:
        """Memory for the inner tensors of graphs that never run at the same time."""

    def capture(self, work: Callable[[], None], pool: Pool, stream: Stream, *, name: str) -> Graph:
        """What `work` puts on the stream, and only there, as a graph to be launched; nothing of it runs.

        The graph keeps addresses: the buffers must outlive it. Raises CaptureError when there is something in it that
        no graph holds.
        """

    def launch(self, graph: Graph, stream: Stream) -> None:
        """Puts a captured graph on a stream."""

    def memory(self) -> DeviceMemory:
        """What is taken and what is left."""


class Gpus(Protocol):
    """The cards that this process sees."""

    infos: Sequence[GpuInfo]
    # Why there is none, or why those that there are cannot be used; "" otherwise.
    why_none: str

    def driver(self, index: int) -> Driver:
        """The driver of a card, the same one each time. Raises DeviceLost or ConfigError when it cannot be used."""
