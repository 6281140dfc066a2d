"""A KeyedJaggedTensor with the methods of TorchRec's that modules and this package use, for tests without TorchRec.

test_keyed_jagged.py publishes TorchRec's own models too, where it is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class JaggedTensor:
    """The bags of one key."""

    ids: Tensor
    counts: Tensor
    weighs: Tensor | None

    def values(self) -> Tensor:
        return self.ids

    def offsets(self) -> Tensor:
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)])

    def weights(self) -> Tensor:
        assert self.weighs is not None
        return self.weighs

    def weights_or_none(self) -> Tensor | None:
        return self.weighs


class KeyedJaggedTensor:
    """All ids in one tensor, those of the first key first. bags: how many each key has; as many as others if None."""

    def __init__(
        self, keys: list[str], values: Tensor, lengths: Tensor, weights: Tensor | None, bags: list[int] | None = None
    ) -> None:
        self._keys, self._values, self._lengths, self._weights = keys, values, lengths, weights
        self._bags = bags or [len(lengths) // len(keys)] * len(keys)

    def keys(self) -> list[str]:
        return self._keys

    def length_per_key(self) -> list[int]:
        return [int(own.sum()) for own in self._lengths.split(self._bags)]

    def __getitem__(self, key: str) -> JaggedTensor:
        return self.to_dict()[key]

    def to_dict(self) -> dict[str, JaggedTensor]:
        counts, sizes = self._lengths.split(self._bags), self.length_per_key()
        values = self._values.split(sizes)
        weights = [None] * len(sizes) if self._weights is None else self._weights.split(sizes)
        each = zip(self._keys, values, counts, weights, strict=True)
        return {key: JaggedTensor(own, lengths, weighs) for key, own, lengths, weighs in each}
