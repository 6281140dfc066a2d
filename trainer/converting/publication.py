"""Compares a converted module with its original and publishes it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.errors import InvalidInput, ParityError
from storage.features.strict_model import did_you_mean
from trainer.converting.converted import Converted
from trainer.converting.made_sample import made_sample
from trainer.publishing import publish
from trainer.publishing.dense_half import named_outputs


def tensors_of(given: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Returns the columns of a sample as tensors. Raises InvalidInput naming one that holds no numbers."""
    return {name: _tensor(name, values) for name, values in given.items()}


def _tensor(name: str, values: np.ndarray) -> Tensor:
    try:
        return torch.from_numpy(np.ascontiguousarray(values))
    except TypeError:
        what = "text or objects" if values.dtype == object else str(values.dtype)
        raise InvalidInput(
            f"sample: the column {name!r} holds {what}, expected numbers or booleans", field=name
        ) from None


def sample_for(converted: Converted, given: Mapping[str, np.ndarray] | None) -> dict[str, Tensor]:
    """Returns the sample as the module takes it: the given one, or one that is made.

    Raises InvalidInput naming an input that is missing, unknown or of another shape.
    """
    if given is None:
        return made_sample(converted)
    if not converted.inputs:
        return tensors_of(given)
    declared = {entry.name: entry for entry in converted.inputs}
    for name in given:
        if name not in declared:
            raise InvalidInput(f"sample: the model has no input {name!r}{did_you_mean(name, declared)}", field=name)
    sample: dict[str, Tensor] = {}
    for name, entry in declared.items():
        if name not in given:
            raise InvalidInput(f"sample: the input {name!r} is not there", field=name)
        values = _tensor(name, given[name])
        wanted = [
            values.shape[0],
            *(own if size is None else size for size, own in zip(entry.shape, values.shape[1:], strict=False)),
        ]
        if len(entry.shape) != values.dim() - 1 or list(values.shape) != wanted:
            shape = ["batch", *("any" if size is None else size for size in entry.shape)]
            raise InvalidInput(f"sample: {name!r} has the shape {list(values.shape)}, expected {shape}", field=name)
        if values.is_floating_point() != entry.dtype.is_floating_point:
            raise InvalidInput(f"sample: {name!r} is {values.dtype}, expected {entry.dtype}", field=name)
        sample[name] = values.to(entry.dtype)
    return sample


def largest_difference(converted: Converted, sample: Mapping[str, Tensor]) -> float | None:
    """Compares with the original on a sample; None where the original cannot be run here.

    Returns the largest difference, divided by the largest value of its output if that is above 1. Raises ParityError
    when it is above the tolerance.
    """
    if converted.original is None:
        return None
    wanted = converted.original({name: value.numpy() for name, value in sample.items()})
    with torch.no_grad():
        got = named_outputs(converted.module(dict(sample)))
    largest = 0.0
    for name, values in wanted.items():
        own = got[name].numpy().astype(np.float64)
        other = np.asarray(values, np.float64)
        if own.shape != other.shape:
            raise ParityError(f"output {name!r} is {list(own.shape)}, in the original {list(other.shape)}")
        apart = _differences(own, other)
        worst = float(np.max(apart, initial=0.0))
        if worst > converted.tolerance:
            row = int(np.unravel_index(np.argmax(apart), apart.shape)[0])
            raise ParityError(
                f"output {name!r} of row {row} differs from the original's: {own[row].ravel()[:4].tolist()} instead of "
                f"{other[row].ravel()[:4].tolist()}"
            )
        largest = max(largest, worst)
    return largest


def _differences(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns differences over the largest finite value of the other one if that is above 1: none between two values
    alike that are not finite, an infinite one where one alone is not finite.
    """
    finite = np.isfinite(own) & np.isfinite(other)
    size = max(1.0, float(np.abs(other[np.isfinite(other)]).max(initial=0.0)))
    apart = np.where((own == other) | (np.isnan(own) & np.isnan(other)), 0.0, np.inf)
    apart[finite] = np.abs(own[finite] - other[finite]) / size
    return apart


class RenamedOutputs(nn.Module):
    """Gives the outputs of a module other names, in their order."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.converted = module
        self._names = tuple(names)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = named_outputs(self.converted(batch))
        if len(outputs) != len(self._names):
            raise InvalidInput(
                f"the model has {len(outputs)} outputs ({', '.join(outputs)}), --output names {len(self._names)}",
                field="output",
            )
        return dict(zip(self._names, outputs.values(), strict=True))


def publish_converted(
    converted: Converted,
    sample: Mapping[str, Tensor],
    repository: Path | str | None,
    *,
    outputs: Sequence[str] = (),
    name: str,
    **options: Any,
) -> Path:
    """Publishes a converted module as `publish` does. repository: None publishes into a folder that is removed again,
    to see that it can be done.
    """
    module = RenamedOutputs(converted.module, outputs) if outputs else converted.module
    if repository is not None:
        return publish(module, dict(sample), repository, name=name, **options)
    with tempfile.TemporaryDirectory(prefix="emberline-check-") as folder:
        return publish(module, dict(sample), folder, name=name, **options)
