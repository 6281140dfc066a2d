"""Brings batches to the device that trains on them, ahead of their step. Ids stay in host memory, where tables are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from trainer.data.batches import Batch
from trainer.devices import transfers_of


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of a model's weights; the processor for a model without any."""
    weights = next(model.parameters(), None)
    return torch.device("cpu") if weights is None else weights.device


def inputs_on(device: torch.device, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a model's inputs with those on the device that are not ids, offsets or weights of ids."""
    return {name: each.to(device) if _is_dense(each) else each for name, each in inputs.items()}


class DeviceBatches:
    """Sends dense inputs, labels and weights of batches to a device, and gives its step what it computes on there."""

    def __init__(self, device: torch.device) -> None:
        self._by = transfers_of(device)

    def sent(self, batch: Batch) -> Batch:
        """Returns the batch, on its way to the device beside the step. Any thread may call it."""
        if self._by is None:
            return batch
        return replace(batch, sent=self._by.send(list(_of_device(batch).values())))

    def placed(self, batch: Batch) -> Batch:
        """Returns what the step computes on: the batch of `sent`, or one that is sent now, on the device."""
        if self._by is None:
            return batch
        sent = batch.sent or self._by.send(list(_of_device(batch).values()))
        on_device = dict(zip(_of_device(batch), self._by.receive(sent), strict=True))
        labels, weights = on_device.pop(_LABELS), on_device.pop(_WEIGHTS, None)
        return replace(batch, inputs={**batch.inputs, **on_device}, labels=labels, weights=weights, sent=None)


# No dense group has these names.
_LABELS, _WEIGHTS = " labels", " weights"


def _of_device(batch: Batch) -> dict[str, Tensor]:
    found = {_LABELS: batch.labels}
    if batch.weights is not None:
        found[_WEIGHTS] = batch.weights
    return found | {name: each for name, each in batch.inputs.items() if _is_dense(each)}


def _is_dense(tensor: Tensor) -> bool:
    return tensor.dim() > 1  # dense groups are (B, W); what belongs to ids has one dimension
