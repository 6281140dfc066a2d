"""All lookups of a model in one call.

B bags, N ids of a feature, D dim, L length, W the dims of all pooled features together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import ConfigError, InvalidInput
from storage.features.strict_model import did_you_mean
from trainer.embedding.keyed_bags import KeyedBags
from trainer.embedding.layers import LayerIds, LayerLookup
from trainer.embedding.lookups import Lookups
from trainer.embedding.modules import Embedding, EmbeddingBag

Layer = EmbeddingBag | Embedding


class Embedded:
    """Holds what a collection looked up. One feature's part is collection[name]: (B, D) pooled, or rows (B, L, D)."""

    def __init__(
        self, pooled: Tensor | Sequence[Tensor], dims: Mapping[str, int], sequences: Mapping[str, tuple[Tensor, Tensor]]
    ) -> None:
        """pooled: (B, W), or a part (B, D) for each of `dims`, in their order."""
        self._pooled = pooled
        #: D of each pooled feature.
        self.dims = dims
        #: Rows (B, L, D) and lengths (B,) by feature.
        self.sequences = sequences
        self._split: dict[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        if name in self.sequences:
            return self.sequences[name][0]
        if name not in self.dims:
            known = (*self.dims, *self.sequences)
            raise InvalidInput(f"there is no feature {name!r} here{did_you_mean(name, known)}", field="features")
        return self._parts()[name]

    @property
    def pooled(self) -> Tensor:
        """The pooled features side by side, (B, W)."""
        return self._pooled if isinstance(self._pooled, Tensor) else torch.cat(list(self._pooled), dim=1)

    def parts(self) -> list[Tensor]:
        """Returns the pooled features, (B, D) each."""
        return list(self._parts().values())

    def _parts(self) -> dict[str, Tensor]:
        # Split once: each further split would be a node of its own in the graph, with a gradient of (B, W).
        if self._split is None:
            pooled = self._pooled
            if isinstance(pooled, Tensor):
                pooled = torch.split(pooled, list(self.dims.values()), dim=1)
            self._split = dict(zip(self.dims, pooled, strict=True))
        return self._split

    def stacked(self) -> Tensor:
        """Returns the pooled features, which have one dim, as (B, features, D)."""
        if isinstance(self._pooled, Tensor):
            return self._pooled.view(len(self._pooled), len(self.dims), next(iter(self.dims.values())))
        return torch.stack(list(self._pooled), dim=1)


class EmbeddingCollection(nn.Module):
    """Looks up all features of a batch in one native call, forward and back, and steps their rows in one more.

    layers: the layer of each feature; several may share a table. levels: for each feature whose layer has a chain, the
    features whose ids are its levels. It gives what the layers give one by one, bit for bit.
    forward(inputs) takes a dict with `F.values` (N,) int64 and `F.offsets` (B + 1,) int64 for each feature F, with mode
    weighted `F.weights` (N,) float32 beside, or TorchRec's KeyedJaggedTensor, whose keys are the features. Raises
    InvalidInput naming what is missing.
    """

    place: Tensor

    def __init__(self, layers: Mapping[str, Layer], levels: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__()
        if not layers:
            raise ConfigError("a collection needs at least one layer", field="layers")
        self.names = tuple(layers)
        self.layers = nn.ModuleList(layers.values())
        self.dims = {name: layer.table.dim for name, layer in layers.items() if isinstance(layer, EmbeddingBag)}
        self.levels = {name: tuple(given) for name, given in (levels or {}).items()}
        lookups = [self._with_levels(name, layer, layers) for name, layer in layers.items()]
        self._lookups = Lookups(lookups)
        self.register_buffer("place", torch.empty(0), persistent=False)  # as that of a layer

    def _with_levels(self, name: str, layer: Layer, layers: Mapping[str, Layer]) -> LayerLookup:
        wanted, given = () if layer.chain is None else layer.chain.levels, self.levels.get(name, ())
        tables = [layers[level].table if level in layers else None for level in given]
        if tables != [level.table for level in wanted]:
            expected = [level.table.name for level in wanted]
            raise ConfigError(
                f"feature {name!r}: its levels are {list(given)}, expected a feature for each of the tables {expected}"
                f"{did_you_mean(given[tables.index(None)], layers) if None in tables else ''}",
                field=f"levels.{name}",
            )
        return replace(layer.lookup(), levels=tuple(map(self.names.index, given)))

    def forward(self, inputs: Mapping[str, Tensor] | Any) -> Embedded:
        given = [_of_feature(inputs, name) for name in self.names]
        if all(_is_plain(layer) for layer in self.layers):
            return self._at_once(given)
        pooled, sequences = [], {}
        for name, layer, (values, offsets, weights) in zip(self.names, self.layers, given, strict=True):
            levels = [_of_feature(inputs, level)[:2] for level in self.levels.get(name, ())]
            chain = {"levels": levels} if levels else {}
            if name in self.dims:
                pooled.append(layer(values, offsets, weights, **chain))
            else:
                sequences[name] = layer(values, offsets, **chain)
        return Embedded(pooled, self.dims, sequences)

    def _at_once(self, given: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> Embedded:
        ids: list[LayerIds] = []
        for name, layer, (values, offsets, weights) in zip(self.names, self.layers, given, strict=True):
            try:
                if isinstance(layer, EmbeddingBag):
                    ids.append(layer.checked(values, offsets, weights))
                elif isinstance(layer, Embedding):
                    ids.append(layer.checked(values, offsets))
            except InvalidInput as error:
                raise InvalidInput(f"feature {name!r}: {error}", field=name) from None
        pooled, rows = self._lookups(ids, train=self.training, device=self.place.device)
        named = [(name, layer, own) for name, layer, own in zip(self.names, self.layers, ids, strict=True)]
        long = [(name, layer.lengths(own)) for name, layer, own in named if isinstance(layer, Embedding)]
        return Embedded(pooled, self.dims, {name: (part, each) for (name, each), part in zip(long, rows, strict=True)})


def _is_plain(layer: nn.Module) -> bool:
    """Returns whether the call of a layer is no more than its lookup.

    A publisher, or a user, may have put another module in its place, or hooked it.
    """
    hooked = "forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    return type(layer) in (EmbeddingBag, Embedding) and not hooked


def _of_feature(inputs: Any, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns values, offsets and weights of a feature."""
    if isinstance(inputs, Mapping):
        try:
            return inputs[f"{name}.values"], inputs[f"{name}.offsets"], inputs.get(f"{name}.weights")
        except KeyError as error:
            raise InvalidInput(
                f"feature {name!r}: the inputs lack {error.args[0]!r}{did_you_mean(error.args[0], list(inputs))}",
                field=name,
            ) from None
    # A KeyedJaggedTensor: torchrec is not needed to take one.
    try:
        jagged = inputs[name]
    except KeyError:
        keys = list(inputs.keys())
        raise InvalidInput(
            f"feature {name!r}: the KeyedJaggedTensor has no such key{did_you_mean(name, keys)}", field=name
        ) from None
    if isinstance(inputs, KeyedBags):
        return jagged.values(), jagged.offsets(), jagged.weights_or_none()
    offsets = jagged.offsets().to(torch.int64)
    return jagged.values().to(torch.int64), offsets - offsets[0], jagged.weights_or_none()
