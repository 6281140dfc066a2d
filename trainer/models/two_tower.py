"""Two towers for retrieval: an embedding of the user's features and one of the item's, scored by their dot product.

In training, each row with label 1 has to find its item among the items of its batch. Items that are frequent are met as
wrong answers more often, so their scores are lowered by the logarithm of how often they come. Source: Yi et al.,
"Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019.

B batch, D values of an embedding, M buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean
from trainer.data.batches import Batch
from trainer.model_config import TwoTowerConfig
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, mlp
from trainer.task_config import TOWERS, Targets

USER, ITEM = TOWERS
_HIDDEN = -1e9
_RATE = 0.05
_BUCKETS = 1 << 16
_MIX = np.uint64(0x9E3779B97F4A7C15)


class TwoTower(RankingModel):
    """Each pooled feature and each dense group belongs to the user or to the item. Tables have any dims."""

    dense_method = "embed"

    def __init__(self, features: FeatureEmbeddings, config: TwoTowerConfig) -> None:
        super().__init__(features)
        features.expect_pooled("two_tower", same_dim=False)
        _check_sides(features, config)
        #: Values of an embedding.
        self.dim = config.dim
        self._sides = (config.user, config.item)
        widths = [sum(_width(features, name) for name in side) for side in self._sides]
        self.user_tower, self.item_tower = (mlp(width, config.hidden, out=config.dim) for width in widths)
        self._normalises, self._temperature = config.normalise, config.temperature
        self._item_id, self._corrects = config.item_id, config.correct_frequency
        #: For each bucket of item ids: the step at which it came last, and the mean steps between two times.
        self._frequencies = torch.zeros((2, _BUCKETS + 1), dtype=torch.float64)

    def get_extra_state(self) -> Tensor:
        """Returns the frequencies, which belong to a checkpoint and not to the graph that is published."""
        return self._frequencies

    def set_extra_state(self, state: Tensor) -> None:
        """Takes what a checkpoint holds."""
        self._frequencies.copy_(state)

    def logits(self, inputs: Inputs) -> Tensor:
        user, item = self.embed(inputs)
        return (user * item).sum(dim=1, keepdim=True)

    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """Returns the score of each user and item (B, 1), under the name of the task, and both embeddings (B, D)."""
        user, item = self.embed(inputs)
        score = (user * item).sum(dim=1, keepdim=True)
        return {self.tasks[0].name: score, USER: user, ITEM: item}

    def embed(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of the users and of the items, (B, D) each."""
        parts = dict(zip(self.features.pooled_names, self.features(inputs).parts(), strict=True))
        parts |= {group: inputs[group] for group in self.features.groups}
        towers = (self.user_tower, self.item_tower)
        sides = (torch.cat([parts[name] for name in side], dim=1) for side in self._sides)
        made = (tower(each) for tower, each in zip(towers, sides, strict=True))
        user, item = (functional.normalize(each, dim=1) if self._normalises else each for each in made)
        return user, item

    def item_ids(self, inputs: Inputs) -> NDArray[np.int64]:
        """Returns the id of each row's item (B,): the first one of its feature, -1 for a row without any."""
        values, offsets = (inputs[f"{self._item_id}.{part}"].numpy() for part in ("values", "offsets"))
        if len(values) == 0:
            return np.full(len(offsets) - 1, -1, np.int64)
        found = values[np.minimum(offsets[:-1], len(values) - 1)]
        return np.where(offsets[1:] > offsets[:-1], found, -1)

    def has_item(self, inputs: Inputs) -> NDArray[np.bool_]:
        """Returns whether each row (B,) has an item."""
        offsets = inputs[f"{self._item_id}.offsets"].numpy()
        found: NDArray[np.bool_] = offsets[1:] > offsets[:-1]
        return found

    def learn(self, batch: Batch, targets: Targets) -> tuple[Tensor, Tensor]:
        user, item = self.embed(batch.inputs)
        whole, own = batch.whole, self.item_ids(batch.inputs)
        items, ids, first = (item, own, 0) if whole is None else (whole.gathered(item), whole.array(own), whole.first)
        scores = user @ items.T / self._temperature
        if self._corrects:
            scores = scores - torch.from_numpy(np.log(self._seen(ids))).to(scores)
        same = torch.from_numpy(own[:, None] == ids[None, :])
        same[:, first : first + len(own)].fill_diagonal_(False)
        scores = scores.masked_fill(same.to(scores.device), _HIDDEN)  # another row of the same item is no wrong answer
        places = torch.arange(first, first + len(own), device=scores.device)
        losses = functional.cross_entropy(scores, places, reduction="none").unsqueeze(1) * (batch.labels > 0)
        if batch.weights is not None:
            losses = losses * batch.weights
        liked = (batch.labels > 0).sum()
        if whole is None:
            loss = losses.sum() / liked.clamp(min=1)
        else:
            loss = whole.part(losses.sum() / max(1.0, whole.total(float(liked))))
        return loss, (user * item).sum(dim=1, keepdim=True)

    def _seen(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Counts a step, and returns for each id (B,) the estimated share of batches that it is in."""
        last, interval = self._frequencies.numpy()
        step = last[_BUCKETS] = last[_BUCKETS] + 1.0
        buckets = ((ids.view(np.uint64) * _MIX) >> np.uint64(48)).astype(np.int64)
        once = np.unique(buckets)
        since = step - last[once]
        interval[once] = np.where(last[once] == 0.0, since, (1.0 - _RATE) * interval[once] + _RATE * since)
        last[once] = step
        shares: NDArray[np.float64] = 1.0 / interval[buckets]
        return shares


def _width(features: FeatureEmbeddings, name: str) -> int:
    return features.dims[name] if name in features.pooled_names else features.group_widths[name]


def _check_sides(features: FeatureEmbeddings, config: TwoTowerConfig) -> None:
    known = (*features.pooled_names, *features.groups)
    for side, names in (("user", config.user), ("item", config.item)):
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"two_tower: {side} names {name!r}, expected pooled features and groups of dense ones"
                    f"{did_you_mean(name, known)}",
                    field=f"model.{side}",
                )
    _check_once((*config.user, *config.item), known)
    single = [name for name in features.pooled_names if name not in features.combined_names]
    if config.item_id not in single:
        raise ConfigError(
            f"two_tower: item_id is {config.item_id!r}, expected a pooled feature whose table is one of rows"
            f"{did_you_mean(config.item_id, single)}",
            field="model.item_id",
        )


def _check_once(given: Sequence[str], known: Sequence[str]) -> None:
    for name in known:
        if given.count(name) != 1:
            said = "in neither tower" if name not in given else "given more than once"
            raise ConfigError(
                f"two_tower: {name!r} is {said}; expected each feature and group in `user` or in `item`", field="model"
            )
