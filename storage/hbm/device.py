"""The interface of a GPU that tiers and sessions use: buffers, streams, events, copies, kernels.

`serving.gpu.torch_driver` implements it for CUDA; the tests have an implementation that runs the same calls on the
processor, in every order that streams and events allow.

A buffer is a uint8 tensor; slices of it may be viewed in other dtypes. Work that is put on a stream begins after all
earlier work of that stream, and is ordered with other streams and the host through events alone. A caller that frees or
reuses a buffer has waited for an event that lies behind its last use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

# Handles of a device. They belong to the device that made them.
Stream = Any
Event = Any


@dataclass(frozen=True)
class GpuInfo:
    """Properties of one GPU."""

    #: Index among the GPUs that CUDA sees.
    index: int
    name: str
    #: Compute capability, such as (9, 0).
    capability: tuple[int, int]
    #: Bytes of its memory.
    total_bytes: int
    uuid: str = ""

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True)
class DeviceMemory:
    """Memory in bytes."""

    #: Total memory of the GPU.
    total: int
    #: Free memory of the GPU, whichever process uses the rest.
    free: int
    #: GPU memory that the buffers of this device take.
    device: int
    #: Pinned host memory that the buffers of this device take.
    pinned: int


@dataclass(frozen=True)
class KernelCall:
    """One launch of a kernel of cuda/."""

    name: str
    #: Blocks of the grid, x and y.
    blocks: tuple[int, int]
    #: The kernel's arguments, eight bytes each; a tensor stands for its address.
    values: tuple[int | torch.Tensor, ...]
    #: Device buffers, or parts of them, that the kernel reads.
    reads: tuple[torch.Tensor, ...] = ()
    #: Device buffers, or parts of them, that the kernel writes.
    writes: tuple[torch.Tensor, ...] = ()
    #: Buffers that other launches may read or change meanwhile, because the protocol of publish.cuh lets them.
    shared: tuple[torch.Tensor, ...] = ()


class Device(Protocol):
    """One GPU. Thread-safe, after `enter_thread`.

    Every call may raise DeviceLost, after which every other call does, and DeviceOutOfMemory, after which the others
    continue to work.
    """

    info: GpuInfo

    def enter_thread(self) -> None:
        """Makes the GPU current for the calling thread."""

    def pinned(self, size: int) -> torch.Tensor:
        """Allocates `size` bytes of host memory that the GPU reads and writes itself, zeros."""

    def device(self, size: int) -> torch.Tensor:
        """Allocates `size` bytes of GPU memory, zeros."""

    def new_stream(self, name: str) -> Stream:
        """Creates a stream. name: for traces."""

    def new_event(self, *, busy_wait: bool = False) -> Event:
        """Creates an event that nothing has recorded yet. busy_wait: a waiting thread spins, and is woken sooner."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Copies bytes between a pinned buffer and one of the device, in either direction."""

    def zero(self, buffer: torch.Tensor, stream: Stream) -> None:
        """Fills a buffer of the device, or a part, with zeros."""

    def load_kernels(self) -> None:
        """Compiles and loads the kernels of `storage.hbm.lookup_kernels`, before the first is launched.

        Raises DeviceError, ConfigError.
        """

    def reach(self, other: Device) -> None:
        """Lets kernels of this GPU read and write the buffers of another GPU of this process, from this call on.

        Raises ConfigError, or DeviceError where it cannot.
        """

    def kernel(self, call: KernelCall, stream: Stream) -> None:
        """Launches a kernel. All its buffers belong to this GPU."""

    def record(self, event: Event, stream: Stream) -> None:
        """Records an event, which stands for all that was put on the stream so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Makes later work of the stream begin after the work that the event stands for."""

    def synchronize(self, event: Event) -> None:
        """Blocks the calling thread until the work that the event stands for is done."""

    def memory(self) -> DeviceMemory:
        """Returns how much memory is used and free."""
