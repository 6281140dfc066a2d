"""What the tiers and the sessions ask of a card: buffers, streams, events, copies, kernels.

`serving.gpu.torch_driver` is the one for CUDA; the tests have one that runs the same calls on the processor, in every
order that streams and events allow.

A buffer is a uint8 tensor; slices of it may be viewed in other dtypes. Work that is put on a stream begins after all
that was put there before, and nothing is known of other streams, nor of the host, but through events. Whoever frees or
reuses a buffer has waited for an event that lies behind its last use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

# Handles of a device's own. They belong to the device that made them.
Stream = Any
Event = Any


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
    """Bytes. total, free: of the card, whoever uses it. device, pinned: that the buffers of this device take."""

    total: int
    free: int
    device: int
    pinned: int


@dataclass(frozen=True)
class KernelCall:
    """One launch of a kernel of cuda/.

    blocks: of the grid, x and y. values: the kernel's arguments, eight bytes each; a tensor stands for its address.
    reads, writes: buffers of the card, or parts, that it looks at. shared: those that other launches may read or change
    meanwhile, because the protocol of publish.cuh lets them.
    """

    name: str
    blocks: tuple[int, int]
    values: tuple[int | torch.Tensor, ...]
    reads: tuple[torch.Tensor, ...] = ()
    writes: tuple[torch.Tensor, ...] = ()
    shared: tuple[torch.Tensor, ...] = ()


class Device(Protocol):
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

    def zero(self, buffer: torch.Tensor, stream: Stream) -> None:
        """Fills a buffer of the device, or a part, with zeros."""

    def load_kernels(self) -> None:
        """Compiles and loads the kernels of `storage.hbm.lookup_kernels`, before the first is launched.

        Raises DeviceError, ConfigError.
        """

    def reach(self, other: Device) -> None:
        """Lets kernels of this card read and write the buffers of another card of this process, from now on.

        Raises DeviceError where it cannot, ConfigError.
        """

    def kernel(self, call: KernelCall, stream: Stream) -> None:
        """Launches a kernel. All its buffers are the card's own."""

    def record(self, event: Event, stream: Stream) -> None:
        """The event stands for all that was put on the stream so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """What is put on the stream from now on begins after what the event stands for."""

    def synchronize(self, event: Event) -> None:
        """The calling thread waits for what the event stands for."""

    def memory(self) -> DeviceMemory:
        """What is taken and what is left."""
