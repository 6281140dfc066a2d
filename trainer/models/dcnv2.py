"""DCNv2: cross layers, which multiply the inputs with linear functions of themselves, and an MLP.

Source: Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
Systems", 2021; a cross layer makes x0 * (W x + b) + x of x, with W = U V of low rank if so configured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.model_config import DcnV2Config
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, last_bias, mlp


class DcnV2(RankingModel):
    """Tables have any dims: all rows and dense features are one input, side by side."""

    def __init__(self, features: FeatureEmbeddings, config: DcnV2Config) -> None:
        super().__init__(features)
        features.expect_pooled("dcnv2", same_dim=False)
        width = features.width
        self.cross = nn.ModuleList(_matrix(width, config.rank) for _ in range(config.cross_layers))
        is_parallel = config.structure == "parallel" and len(config.hidden) > 0
        self.deep = mlp(width, config.hidden, dropout=config.dropout) if is_parallel else None
        # Stacked, the MLP reads what the cross layers made; in parallel, one layer reads both results.
        hidden = () if is_parallel else config.hidden
        joined = width + config.hidden[-1] if is_parallel else width
        self.top = mlp(joined, hidden, dropout=config.dropout, out=features.heads)
        if not hidden:
            _begin_by_feature(self.top[0], features)

    def logits(self, inputs: Inputs) -> Tensor:
        first = torch.cat([*self.features(inputs).parts(), *self.features.dense(inputs)], dim=1)
        crossed = first
        for matrix in self.cross:
            crossed = first * matrix(crossed) + crossed
        if self.deep is not None:
            crossed = torch.cat([crossed, self.deep(first)], dim=1)
        result: Tensor = self.top(crossed)
        return result

    def output_biases(self) -> Sequence[Tensor]:
        return (last_bias(self.top),)

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        fields = tuple((f"field {inputs.names(name)}", inputs.dims[name]) for name in inputs.pooled)
        both = (*fields, *inputs.dense())
        found: dict[str, blocks.WeightLayout] = {}
        for name in (name for name in weights if name.startswith("cross.")):
            ranks: blocks.Blocks = ((f"rank of {name.split('.')[1]}", min(weights[name])),)
            axes: dict[str, tuple[blocks.Blocks, ...]] = {
                "weight": (both, both),
                "bias": (both,),
                "down.weight": (ranks, both),
                "up.weight": (both, ranks),
                "up.bias": (both,),
            }
            found[name] = blocks.WeightLayout(name, axes[name.split(".", 2)[2]])
        # The last of these layers is a hidden one: what `top` reads of it has its name.
        deep: blocks.Blocks = (("deep", weights[_last(weights)][0]),) if _last(weights) in weights else ()
        return {
            **found,
            **blocks.mlp_layouts("deep", weights, both, deep),
            **blocks.mlp_layouts("top", weights, (*both, *deep), inputs.heads),
        }


class _LowRank(nn.Module):
    """A linear layer whose matrix is the product of two narrow ones."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.up(self.down(values))
        return result


def _begin_by_feature(layer: nn.Module, features: FeatureEmbeddings) -> None:
    """Gives the weights of each feature's rows first values as though the layer read that feature alone.

    As one of many inputs they would begin so small that rows learn far slower than those of a linear model.
    """
    assert isinstance(layer, nn.Linear)
    start = 0
    for name in features.pooled_names:
        end, bound = start + features.dims[name], features.dims[name] ** -0.5
        nn.init.uniform_(layer.weight[:, start:end], -bound, bound)
        start = end


def _matrix(width: int, rank: int | None) -> nn.Module:
    return nn.Linear(width, width) if rank is None or rank >= width else _LowRank(width, rank)


def _last(weights: Mapping[str, blocks.Shape]) -> str:
    places = [int(name.split(".")[1]) for name in weights if name.startswith("deep.") and name.endswith(".weight")]
    return f"deep.{max(places)}.weight" if places else ""
