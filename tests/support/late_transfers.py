"""Transfers of GPUs on a machine without one: a processor whose copies are as late as streams allow, and torch's meta.

A late copy shows a step that does not wait: until it is waited for, its destination holds NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.devices import Arriving, Sent, Transfers


class PromptTransfers(Transfers):
    """Transfers of a GPU whose memory is the host's, done when they are asked for."""

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.clone() for tensor in tensors]

    def send(self, tensors: Sequence[Tensor]) -> Sent:
        return Sent(tuple(tensors), None)

    def receive(self, sent: Sent) -> list[Tensor]:
        return list(sent.tensors)

    def to_host(self, tensors: Sequence[Tensor]) -> Arriving:
        return _There([tensor.detach().clone() for tensor in tensors])


class LateTransfers(Transfers):
    """Transfers of a GPU whose memory is the host's."""

    def __init__(self) -> None:
        self.sent = self.received = self.returned = self.waited = 0

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return _spoilt(torch.empty(tuple(shape), dtype=dtype))

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        copies = [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            _spoilt(tensor)  # pinned memory goes to others when it is copied
        return copies

    def send(self, tensors: Sequence[Tensor]) -> Sent:
        self.sent += 1
        return Sent(tuple(torch.full_like(tensor, torch.nan) for tensor in tensors), list(tensors))

    def receive(self, sent: Sent) -> list[Tensor]:
        self.received += 1
        for target, source in zip(sent.tensors, sent.event, strict=True):
            target.copy_(source)
        return list(sent.tensors)

    def to_host(self, tensors: Sequence[Tensor]) -> Arriving:
        self.returned += 1
        return _LateArriving(self, tensors)


def _spoilt(tensor: Tensor) -> Tensor:
    """Fills a tensor with what shows when it is used: NaN, or numbers of places that are nowhere."""
    return tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min)


class _LateArriving(Arriving):
    def __init__(self, transfers: LateTransfers, tensors: Sequence[Tensor]) -> None:
        self._transfers = transfers
        self._sources = [(tensor, tensor._version) for tensor in tensors]

    def wait(self) -> list[Tensor]:
        self._transfers.waited += 1
        assert all(tensor._version == version for tensor, version in self._sources), "changed while it was copied"
        return [tensor.detach().clone() for tensor, _ in self._sources]


class MetaTransfers(Transfers):
    """Transfers of torch's device `meta`, which has shapes without values: operators refuse tensors of two devices."""

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.to("meta") for tensor in tensors]

    def send(self, tensors: Sequence[Tensor]) -> Sent:
        return Sent(tuple(tensor.to("meta") for tensor in tensors), None)

    def receive(self, sent: Sent) -> list[Tensor]:
        return list(sent.tensors)

    def to_host(self, tensors: Sequence[Tensor]) -> Arriving:
        return _There([torch.zeros(tensor.shape) for tensor in tensors])


class _There(Arriving):
    def __init__(self, tensors: list[Any]) -> None:
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        return self._tensors
