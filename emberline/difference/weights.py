"""The difference of the dense weights of two snapshots, by name."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from storage.checkpoint.as_of import AsOf


@dataclass(frozen=True)
class WeightDifference:
    """A weight that differs."""

    name: str
    #: Its shape in each snapshot; "" where it is not there.
    before: str
    after: str
    #: Euclidean norm of the change, and of the weight before; 0 where the shapes differ.
    change: float = 0.0
    norm: float = 0.0
    #: The largest change of one value.
    largest: float = 0.0


def weight_differences(before: AsOf, after: AsOf) -> tuple[list[WeightDifference], int]:
    """Returns the weights that differ, the one that moved furthest for its size first, and how many do not.

    Bytes are compared.
    """
    old, new = before.weights(), after.weights()
    found, same = [], 0
    for name in sorted({*old, *new}):
        first, second = old.get(name), new.get(name)
        if first is None or second is None or first.shape != second.shape or first.dtype != second.dtype:
            found.append(WeightDifference(name, _shape(first), _shape(second)))
        elif torch.equal(_bytes(first), _bytes(second)):
            same += 1
        else:
            change = second.double() - first.double()
            norms = float(change.norm()), float(first.double().norm())
            found.append(WeightDifference(name, _shape(first), _shape(second), *norms, float(change.abs().max())))
    return sorted(found, key=_by_share), same


def _bytes(weight: torch.Tensor) -> torch.Tensor:
    return weight.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _shape(weight: torch.Tensor | None) -> str:
    return "" if weight is None else str(list(weight.shape))


def _by_share(entry: WeightDifference) -> tuple[bool, float, str]:
    return entry.change > 0, -entry.change / max(entry.norm, 1e-12), entry.name
