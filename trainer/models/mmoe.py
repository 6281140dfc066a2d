"""MMoE: experts that all tasks share, a gate for each task that mixes them, and a tower for each task on top.

Source: Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", 2018. One
expert makes it a shared bottom with towers.

B batch, E experts, H values of an expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.model_config import MmoeConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, last_bias, mlp


class Mmoe(RankingModel):
    """Tables have any dims: all rows and dense features are one input, side by side."""

    def __init__(self, features: FeatureEmbeddings, config: MmoeConfig) -> None:
        super().__init__(features)
        features.expect_pooled("mmoe", same_dim=False)
        width, dropout = features.width, config.dropout
        self.experts = nn.ModuleList(mlp(width, config.expert, dropout=dropout) for _ in range(config.experts))
        self.gates = nn.ModuleDict({key(task.name): nn.Linear(width, config.experts) for task in features.tasks})
        self.towers = towers(features, config.expert[-1], config.tower, dropout)

    def logits(self, inputs: Inputs) -> Tensor:
        joined = torch.cat([*self.features(inputs).parts(), *self.features.dense(inputs)], dim=1)
        made = [expert(joined) for expert in self.experts]
        heads = [self.towers[name](mixed(made, gate(joined))) for name, gate in self.gates.items()]
        return heads[0] if len(heads) == 1 else torch.cat(heads, dim=1)

    def output_biases(self) -> Sequence[Tensor]:
        return [last_bias(tower) for tower in self.towers.values()]

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        both = inputs.joined()
        out = blocks.mlp_width("experts.0", weights)
        mix: blocks.Blocks = (("mixed", out),)
        experts: blocks.Blocks = tuple((f"expert {place}", 1) for place in range(_experts(weights)))
        found: dict[str, blocks.WeightLayout] = {}
        for place in range(len(experts)):
            found |= blocks.mlp_layouts(f"experts.{place}", weights, both, mix)
        for task, width in inputs.heads:
            found |= gate_layouts(f"gates.{key(task)}", experts, both)
            found |= blocks.mlp_layouts(f"towers.{key(task)}", weights, mix, ((task, width),))
        return found


def key(task: str) -> str:
    """Returns the name of a task's part in a ModuleDict; without a prefix it could be one of the dict's methods."""
    return f"of_{task}"


def towers(features: FeatureEmbeddings, width: int, hidden: Sequence[int], dropout: float) -> nn.ModuleDict:
    """Builds an MLP for each task: (B, width) -> (B, values of the task's head)."""
    return nn.ModuleDict(
        {key(task.name): mlp(width, hidden, dropout=dropout, out=task.width) for task in features.tasks}
    )


def mixed(experts: Sequence[Tensor], gate: Tensor) -> Tensor:
    """Returns the sum (B, H) of experts, each (B, H), by the softmax of the gate (B, E)."""
    shares = torch.softmax(gate, dim=1).unsqueeze(2)
    return (torch.stack(list(experts), dim=1) * shares).sum(dim=1)


def gate_layouts(name: str, experts: blocks.Blocks, inputs: blocks.Blocks) -> dict[str, blocks.WeightLayout]:
    """Returns the layouts of a gate's weights. name: of the gate in its model."""
    return {
        f"{name}.weight": blocks.WeightLayout(f"{name}.weight", (experts, inputs)),
        f"{name}.bias": blocks.WeightLayout(f"{name}.bias", (experts,)),
    }


def _experts(weights: Mapping[str, blocks.Shape]) -> int:
    return len({name.split(".")[1] for name in weights if name.startswith("experts.")})
