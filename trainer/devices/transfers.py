"""Moves tensors between the host and a GPU without waiting: through pinned memory, on streams of their own.

torch's allocators of pinned and of GPU memory note which streams use a block, so a block is not given to others before
the copies that use it are done.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sent:
    """Tensors that a stream of their own brings to a GPU. `Transfers.receive` gives them to the step."""

    tensors: tuple[Tensor, ...]
    #: Done when they are there.
    event: Any


class Arriving(ABC):
    """Tensors on their way to the host."""

    @abstractmethod
    def wait(self) -> list[Tensor]:
        """Waits for them, and for nothing that was asked of the GPU later, and returns them in host memory."""


class Transfers(ABC):
    """Moves tensors between the host and one GPU. Work of the step is on the stream that is current in its thread."""

    @abstractmethod
    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns a tensor in host memory, not initialised, from which copies to the GPU need not wait."""

    @abstractmethod
    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns copies on the GPU of tensors that `host_tensor` made, in order with the work of the step.

        The host does not write to them any more.
        """

    @abstractmethod
    def send(self, tensors: Sequence[Tensor]) -> Sent:
        """Begins to bring tensors to the GPU beside the work of the step. Any thread may call it."""

    @abstractmethod
    def receive(self, sent: Sent) -> list[Tensor]:
        """Returns the tensors of `send`; the work of the step that is asked of the GPU next waits for them."""

    @abstractmethod
    def to_host(self, tensors: Sequence[Tensor]) -> Arriving:
        """Begins to bring tensors to the host, as the work of the step that was asked for so far leaves them."""


class _CudaArriving(Arriving):
    def __init__(self, tensors: list[Tensor], event: torch.cuda.Event) -> None:
        self._tensors = tensors
        self._event = event

    def wait(self) -> list[Tensor]:
        self._event.synchronize()
        return self._tensors


class CudaTransfers(Transfers):
    """Transfers of a CUDA GPU, with a stream for each direction beside that of the step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sending = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        #: The stream on which tensors go to the host.
        self.returning = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.to(self._device, non_blocking=True) for tensor in tensors]

    def send(self, tensors: Sequence[Tensor]) -> Sent:
        # A thread that has not named a GPU would start the first one.
        with torch.cuda.device(self._device), torch.cuda.stream(self._sending):
            pinned = [tensor.contiguous().pin_memory() for tensor in tensors]
            placed = tuple(tensor.to(self._device, non_blocking=True) for tensor in pinned)
            event = self._sending.record_event()
        return Sent(placed, event)

    def receive(self, sent: Sent) -> list[Tensor]:
        step = torch.cuda.current_stream(self._device)
        step.wait_event(sent.event)
        for tensor in sent.tensors:
            tensor.record_stream(step)  # its memory is of the other stream
        return list(sent.tensors)

    def to_host(self, tensors: Sequence[Tensor]) -> Arriving:
        found = [tensor.detach().contiguous() for tensor in tensors]
        self.returning.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self.returning):
            hosts = []
            for tensor in found:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                hosts.append(host.copy_(tensor, non_blocking=True))
                tensor.record_stream(self.returning)
            event = self.returning.record_event()
        return _CudaArriving(hosts, event)


_MADE: dict[torch.device, Transfers] = {}
_MAKING = threading.Lock()


def transfers_of(device: torch.device) -> Transfers | None:
    """Returns the transfers of a device; None for the processor, whose memory is the host's."""
    found = _MADE.get(device)
    if found is None and device.type == "cuda":
        with _MAKING:
            found = _MADE.setdefault(device, CudaTransfers(device)) if device not in _MADE else _MADE[device]
    return found


@contextmanager
def replaced_transfers(device: torch.device, by: Transfers) -> Iterator[None]:
    """Has `transfers_of` return other transfers for the block: those of a test, or of a measurement."""
    before = _MADE.get(device)
    _MADE[device] = by
    try:
        yield
    finally:
        if before is None:
            del _MADE[device]
        else:
            _MADE[device] = before
