"""Makes a sample for a converted module from what its file declares: ids that its tables have, and random numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from storage.errors import InvalidInput
from trainer.converting.converted import Converted
from trainer.publishing.recording import record

_FLAGS = 2  # an integer input that no table reads gets 0 and 1


def made_sample(converted: Converted, rows: int = 256, seed: int = 0) -> dict[str, Tensor]:
    """Returns inputs of `rows` rows. Raises InvalidInput where the file leaves a size open."""
    for entry in converted.inputs:
        if None in entry.shape:
            raise InvalidInput(
                f"the input {entry.name!r} has the shape {['batch', *entry.shape]}, where None is open; give --sample",
                field="sample",
            )
    zeros = {
        entry.name: torch.zeros([2, *(size or 0 for size in entry.shape)], dtype=entry.dtype)
        for entry in converted.inputs
    }
    container = nn.Module()
    container.add_module("module", converted.module)
    recording = record(container, zeros, lambda: converted.module(dict(zeros)))
    limits = {name: np.zeros([1, *value.shape[1:]], np.int64) for name, value in zeros.items()}
    for call in recording.calls:
        if call.values is None:
            continue
        count = len(call.layer.weight)  # type: ignore[arg-type]
        for leaf, places in recording.tracer.elements_of(call.values).items():
            # Both rows of the sample are alike; what is read of either is read of all.
            width = max(1, zeros[leaf].numel() // 2)
            part = limits[leaf].reshape(-1)
            read = np.unique(places.numpy() % width)
            part[read] = np.where(part[read] == 0, count, np.minimum(part[read], count))
    random = np.random.default_rng(seed)
    sample: dict[str, Tensor] = {}
    for entry in converted.inputs:
        shape = (rows, *(size or 0 for size in entry.shape))
        if entry.dtype.is_floating_point:
            sample[entry.name] = torch.from_numpy(random.random(shape)).to(entry.dtype)
        else:
            limit = np.where(limits[entry.name] == 0, _FLAGS, limits[entry.name])
            sample[entry.name] = torch.from_numpy(random.integers(0, limit, shape)).to(entry.dtype)
    return sample
