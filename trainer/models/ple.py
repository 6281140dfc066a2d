"""PLE: levels of experts, some shared and some of one task; each task mixes its own with the shared ones.

Source: Tang et al., "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for Personalized
Recommendations", 2020.

B batch, H values of an expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.model_config import PleConfig
from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings, Inputs, RankingModel, last_bias, mlp
from trainer.models.mmoe import gate_layouts, key, mixed, towers


class Ple(RankingModel):
    """Tables have any dims: all rows and dense features are one input, side by side."""

    def __init__(self, features: FeatureEmbeddings, config: PleConfig) -> None:
        super().__init__(features)
        features.expect_pooled("ple", same_dim=False)
        tasks = [task.name for task in features.tasks]
        widths = [features.width, *[config.expert[-1]] * (config.levels - 1)]
        self.levels = nn.ModuleList(
            _Level(tasks, width, config, is_last=place == len(widths) - 1) for place, width in enumerate(widths)
        )
        self.towers = towers(features, config.expert[-1], config.tower, config.dropout)

    def logits(self, inputs: Inputs) -> Tensor:
        joined = torch.cat([*self.features(inputs).parts(), *self.features.dense(inputs)], dim=1)
        values = {key(task.name): joined for task in self.tasks}
        shared = joined
        for level in self.levels:
            values, shared = level(values, shared)
        heads = [tower(values[name]) for name, tower in self.towers.items()]
        return heads[0] if len(heads) == 1 else torch.cat(heads, dim=1)

    def output_biases(self) -> Sequence[Tensor]:
        return [last_bias(tower) for tower in self.towers.values()]

    @staticmethod
    def layouts(inputs: blocks.InputLayout, weights: Mapping[str, blocks.Shape]) -> dict[str, blocks.WeightLayout]:
        found: dict[str, blocks.WeightLayout] = {}
        before = inputs.joined()
        tasks = [task for task, _ in inputs.heads]
        for level in range(_count("levels", weights)):
            name = f"levels.{level}"
            shared = [f"{name}.shared.{place}" for place in range(_count(f"{name}.shared", weights))]
            mix: blocks.Blocks = ((f"mixed {level}", blocks.mlp_width(shared[0], weights)),)
            own = {
                task: [f"{name}.own.{key(task)}.{place}" for place in range(_count(f"{name}.own.{key(task)}", weights))]
                for task in tasks
            }
            for expert in (*shared, *(each for experts in own.values() for each in experts)):
                found |= blocks.mlp_layouts(expert, weights, before, mix)
            for task in tasks:
                gated: blocks.Blocks = tuple((each, 1) for each in (*own[task], *shared))
                found |= gate_layouts(f"{name}.gates.{key(task)}", gated, before)
            every: blocks.Blocks = tuple((each, 1) for each in (*(one for task in tasks for one in own[task]), *shared))
            found |= gate_layouts(f"{name}.shared_gate", every, before)
            before = mix
        for task, width in inputs.heads:
            found |= blocks.mlp_layouts(f"towers.{key(task)}", weights, before, ((task, width),))
        return found


class _Level(nn.Module):
    """The experts and gates of one level. The last one mixes nothing for a level above it from all experts."""

    def __init__(self, tasks: Sequence[str], width: int, config: PleConfig, *, is_last: bool) -> None:
        super().__init__()

        def experts(count: int) -> nn.ModuleList:
            return nn.ModuleList(mlp(width, config.expert, dropout=config.dropout) for _ in range(count))

        own, shared = config.task_experts, config.shared_experts
        self.shared = experts(shared)
        self.own = nn.ModuleDict({key(task): experts(own) for task in tasks})
        self.gates = nn.ModuleDict({key(task): nn.Linear(width, own + shared) for task in tasks})
        self.shared_gate = None if is_last else nn.Linear(width, len(tasks) * own + shared)

    def forward(self, values: Mapping[str, Tensor], shared: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Maps what the level below made for each task, and for all, to the same of this level, (B, H) each."""
        common = [expert(shared) for expert in self.shared]
        own: dict[str, list[Tensor]] = {}
        for name, experts in self.own.items():
            assert isinstance(experts, nn.ModuleList)
            own[name] = [expert(values[name]) for expert in experts]
        made = {name: mixed([*own[name], *common], gate(values[name])) for name, gate in self.gates.items()}
        if self.shared_gate is None:
            return made, shared
        every = [each for experts in own.values() for each in experts]
        return made, mixed([*every, *common], self.shared_gate(shared))


def _count(prefix: str, weights: Mapping[str, blocks.Shape]) -> int:
    """Returns how many modules a ModuleList of this name has."""
    place = prefix.count(".") + 1
    return len({name.split(".")[place] for name in weights if name.startswith(f"{prefix}.")})
