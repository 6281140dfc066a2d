"""Bags of ids by key, which stand for TorchRec's KeyedJaggedTensor while a module is published.

A KeyedJaggedTensor holds all ids in one tensor, and computes where the bags of each key lie. Here each key has tensors
of its own, which can be followed from the batch to the embedding layers. B rows of the batch, N ids of a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from storage.errors import InvalidInput, Unsupported


@dataclass(frozen=True)
class Bags:
    """The bags of one key, as TorchRec's JaggedTensor gives them.

    ids (N,), where bags begin in them (B + 1,), from 0 to N, and weights (N,).
    """

    ids: Tensor
    ends: Tensor
    weighs: Tensor | None = None

    def values(self) -> Tensor:
        """Returns the ids."""
        return self.ids

    def offsets(self) -> Tensor:
        """Returns where bags begin, and the end."""
        return self.ends

    def lengths(self) -> Tensor:
        """Returns the number of ids of each bag, (B,)."""
        return self.ends[1:] - self.ends[:-1]

    def weights_or_none(self) -> Tensor | None:
        """Returns the weights of the ids, where they have some."""
        return self.weighs

    def weights(self) -> Tensor:
        """Returns the weights of the ids."""
        if self.weighs is None:
            raise InvalidInput("the KeyedJaggedTensor of the sample has no weights; a weighted collection needs them")
        return self.weighs

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors by the suffix that their names get."""
        return {"": self.ids, "_offsets": self.ends, **({} if self.weighs is None else {"_weights": self.weighs})}

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name)


class KeyedBags:
    """Bags by key; has what torchrec's collections, and this package's, ask of a KeyedJaggedTensor."""

    def __init__(self, bags: Mapping[str, Bags]) -> None:
        self._bags = dict(bags)

    @classmethod
    def of(cls, given: Any) -> KeyedBags:
        """Takes a KeyedJaggedTensor apart. Raises Unsupported for one whose keys have different rows."""
        inverse = getattr(given, "inverse_indices_or_none", lambda: None)()
        if inverse is not None:
            raise Unsupported(
                "a KeyedJaggedTensor with inverse_indices shares rows of the batch among its bags; give one without"
            )
        bags: dict[str, Bags] = {}
        keys: list[str] = given.keys()
        for key in keys:
            jagged = given[key]
            ends = jagged.offsets().detach().to(torch.int64)
            # Those of a key may go on from those of the key before it.
            bags[key] = Bags(jagged.values().detach(), ends - ends[:1], jagged.weights_or_none())
        if len({len(each.ends) for each in bags.values()}) > 1:
            counts = ", ".join(f"{key!r} {len(each.ends) - 1}" for key, each in bags.items())
            raise Unsupported(
                f"the keys of a KeyedJaggedTensor have different numbers of bags ({counts}); give one a row"
            )
        return cls(bags)

    def keys(self) -> list[str]:
        """Returns the keys, in order."""
        return list(self._bags)

    def __getitem__(self, key: str) -> Bags:
        return self._bags[key]

    def to_dict(self, compute_offsets: bool = True) -> dict[str, Bags]:
        """Returns the bags by key."""
        return dict(self._bags)

    def stride(self) -> Any:
        """Returns B."""
        return next(iter(self._bags.values())).ends.shape[0] - 1

    def inverse_indices_or_none(self) -> None:
        """Returns None: each row has bags of its own."""

    def split(self, segments: Sequence[int]) -> list[KeyedBags]:
        """Returns the bags of the first keys, of the next, and so on. segments: the number of keys of each part."""
        keys, parts, first = self.keys(), [], 0
        for count in segments:
            parts.append(self.permute(range(first, first + count)))
            first += count
        assert first == len(keys)
        return parts

    def permute(self, indices: Sequence[int], indices_tensor: Tensor | None = None) -> KeyedBags:
        """Returns the bags of these keys, by their numbers."""
        keys = self.keys()
        return KeyedBags({keys[number]: self._bags[keys[number]] for number in indices})

    def device(self) -> torch.device:
        """Returns where the ids are."""
        return next(iter(self._bags.values())).ids.device

    def to(self, *args: Any, **kwargs: Any) -> KeyedBags:
        """Returns itself: a module is published where it is."""
        return self

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name)


def is_keyed_jagged(value: object) -> bool:
    """Returns whether a value is a KeyedJaggedTensor; torchrec is not needed to know one."""
    return any(each.__name__ == "KeyedJaggedTensor" for each in type(value).__mro__)


def _refuse(name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(name)
    raise Unsupported(
        f"the module asks the KeyedJaggedTensor for {name!r}; while it is published, bags are only given to embedding "
        "collections: keys(), to_dict(), [key], split() and permute(), and of a key values(), offsets() and weights()"
    )
