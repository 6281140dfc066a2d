"""The part of the training configuration about the network: the models of the zoo and their options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, WrapValidator, field_validator, model_validator

from storage.features.strict_model import StrictModel
from trainer.optimizer_config import Probability

Layers = Annotated[tuple[Annotated[int, Field(ge=1, le=65_536)], ...], Field(max_length=16)]

ExpertLayers = Annotated[Layers, Field(min_length=1)]


class DlrmConfig(StrictModel):
    """Bottom MLP over dense features, dot products of all pairs, top MLP. Sizes are those of hidden layers."""

    type: Literal["dlrm"]
    bottom: Layers = (64,)
    top: Layers = (64, 32)
    dropout: Probability = 0.0


class DeepFmConfig(StrictModel):
    """Factorisation machine beside an MLP. The first value of a row is its first-order weight, the rest the factors."""

    type: Literal["deepfm"]
    hidden: Layers = (64, 32)
    dropout: Probability = 0.0


class WideDeepConfig(StrictModel):
    """Linear part beside an MLP. The first value of a row is its linear weight, the rest goes into the MLP."""

    type: Literal["wide_deep"]
    hidden: Layers = (64, 32)
    dropout: Probability = 0.0


class DcnV2Config(StrictModel):
    """Cross layers, whose products reach one degree higher with each, beside an MLP or below it."""

    type: Literal["dcnv2"]
    cross_layers: int = Field(default=2, ge=1, le=16)
    #: Rank of the matrix of a cross layer; None for a whole one.
    rank: int | None = Field(default=None, ge=1, le=65_536)
    #: `parallel`: the MLP reads the inputs; `stacked`: it reads what the cross layers made.
    structure: Literal["parallel", "stacked"] = "parallel"
    hidden: Layers = (64, 32)
    dropout: Probability = 0.0


class DinConfig(StrictModel):
    """Attention of a target item over a sequence of items, then an MLP over everything."""

    type: Literal["din"]
    target: str
    sequence: str
    hidden: Layers = (64, 32)
    attention: Layers = (32,)
    dropout: Probability = 0.0


class MmoeConfig(StrictModel):
    """Experts that all tasks share, mixed by a gate of each task, and a tower of each task."""

    type: Literal["mmoe"]
    experts: int = Field(default=4, ge=1, le=256)
    #: Layers of an expert.
    expert: ExpertLayers = (64, 32)
    #: Hidden layers of a task's tower.
    tower: Layers = (16,)
    dropout: Probability = 0.0


class PleConfig(StrictModel):
    """Levels of shared experts and experts of one task, mixed by gates, and a tower of each task."""

    type: Literal["ple"]
    levels: int = Field(default=2, ge=1, le=16)
    shared_experts: int = Field(default=2, ge=1, le=256)
    #: Experts of each task.
    task_experts: int = Field(default=2, ge=1, le=256)
    #: Layers of an expert.
    expert: ExpertLayers = (64, 32)
    #: Hidden layers of a task's tower.
    tower: Layers = (16,)
    dropout: Probability = 0.0


class TransformerConfig(StrictModel):
    """Self-attention over a sequence of items before a target, then an MLP."""

    type: str
    target: str
    sequence: str
    #: Values of a state; None for those of a row.
    dim: int | None = Field(default=None, ge=1, le=65_536)
    heads: int = Field(default=1, ge=1, le=64)
    blocks: int = Field(default=2, ge=1, le=32)
    #: The end of the sequence at which its newest item stands.
    newest: Literal["first", "last"] = "last"
    hidden: Layers = (64, 32)
    dropout: Probability = 0.0


class SasRecConfig(TransformerConfig):
    """Causal self-attention over a sequence of items, whose newest state meets the target in an MLP."""

    type: Literal["sasrec"]


class HstuConfig(TransformerConfig):
    """Pointwise attention, without a softmax, over a sequence of items and the target, then an MLP."""

    type: Literal["hstu"]


class TwoTowerConfig(StrictModel):
    """An MLP over the features of the user and one over those of the item, whose results are compared."""

    type: Literal["two_tower"]
    #: Pooled features, and groups of dense ones, of the user and of the item.
    user: tuple[str, ...] = Field(min_length=1)
    item: tuple[str, ...] = Field(min_length=1)
    #: The feature whose id says which item it is.
    item_id: str
    hidden: Layers = (64,)
    #: Values of an embedding.
    dim: int = Field(default=32, ge=1, le=65_536)
    #: Divisor of the scores in the loss.
    temperature: float = Field(default=0.1, gt=0.0, allow_inf_nan=False)
    #: Makes the length of every embedding 1, so that scores are cosines.
    normalise: bool = True
    #: Corrects the scores of the items of a batch by how often they come.
    correct_frequency: bool = True


class OwnModelConfig(StrictModel):
    """A class of one's own; the entries beside `type` are the arguments of its constructor."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    #: MODULE:CLASS, as in `shop.models:Ranker`.
    type: str

    @field_validator("type")
    @classmethod
    def _names_a_class(cls, value: str) -> str:
        if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value) is None:
            raise ValueError("expected MODULE:CLASS, such as shop.models:Ranker")
        return value

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        return value  # the class says which there are

    @property
    def arguments(self) -> dict[str, JsonValue]:
        """Arguments by name."""
        return dict(self.__pydantic_extra__)


ZooConfig = (
    DlrmConfig
    | DeepFmConfig
    | WideDeepConfig
    | DcnV2Config
    | MmoeConfig
    | PleConfig
    | DinConfig
    | SasRecConfig
    | HstuConfig
    | TwoTowerConfig
)
_ZOO: TypeAdapter[ZooConfig] = TypeAdapter(Annotated[ZooConfig, Field(discriminator="type")])


def _chosen(content: object, _: object) -> object:
    # The type says which one it is; tried one after the other, all would complain of a wrong entry.
    kind = content.get("type") if isinstance(content, Mapping) else None
    if isinstance(content, OwnModelConfig) or (isinstance(kind, str) and ":" in kind):
        return OwnModelConfig.model_validate(content)
    return _ZOO.validate_python(content)


#: A model of the zoo by its name, or a class of one's own.
ModelConfig = Annotated[ZooConfig | OwnModelConfig, WrapValidator(_chosen)]
