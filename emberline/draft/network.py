"""The network of a draft: what each model of the zoo asks of the data, and its sizes by the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from emberline.draft.text import text
from emberline.draft.treatment import FeatureDraft, Treatment

#: They read the list of ids that came before the item.
SEQUENCE_MODELS = ("din", "sasrec", "hstu")
#: They are made for several labels.
TASK_MODELS = ("mmoe", "ple")
#: It has to know which columns belong to the item.
TOWERS = "two_tower"
MODELS = ("deepfm", "dlrm", "wide_deep", "dcnv2", *SEQUENCE_MODELS, *TASK_MODELS, TOWERS)

LARGE_ROWS = 1_000_000
SMALL_ROWS = 20_000
# For few rows small networks with dropout, which overfit later (docs/tuning.md); for many rows larger ones without.
_SMALL_NETWORKS = {
    "deepfm": "{type: deepfm, hidden: [32], dropout: 0.3}",
    "dlrm": "{type: dlrm, bottom: [32], top: [32], dropout: 0.3}",
    "wide_deep": "{type: wide_deep, hidden: [32], dropout: 0.3}",
    "dcnv2": "{type: dcnv2, cross_layers: 2, rank: 32, hidden: [32], dropout: 0.3}",
    "mmoe": "{type: mmoe, experts: 4, expert: [32, 16], tower: [16], dropout: 0.2}",
    "ple": "{type: ple, levels: 1, shared_experts: 2, task_experts: 1, expert: [32, 16], tower: [16], dropout: 0.2}",
}
_NETWORKS = {
    "deepfm": "{type: deepfm, hidden: [64, 32]}",
    "dlrm": "{type: dlrm, bottom: [64], top: [64, 32]}",
    "wide_deep": "{type: wide_deep, hidden: [64, 32]}",
    "dcnv2": "{type: dcnv2, cross_layers: 2, hidden: [64, 32]}",
    "mmoe": "{type: mmoe, experts: 4, expert: [64, 32], tower: [16]}",
    "ple": "{type: ple, levels: 2, shared_experts: 2, task_experts: 1, expert: [64, 32], tower: [16]}",
}
# With a small initial_accumulator, ids that are seen once learn too. Cross layers, in which each id meets all others,
# do better when rare ids learn less and rates fall (docs/tuning.md).
_ROWS_OPTIMIZER = "{type: adagrad, lr: 0.1, initial_accumulator: 1.0e-5}"
_CROSS_OPTIMIZER = "{type: adagrad, lr: 0.2, initial_accumulator: 1.0e-4}"
_DENSE, _IDS = "output: dense", "output: ids"


@dataclass(frozen=True)
class Part:
    """A column of the data and what becomes of it."""

    column: str
    name: str
    treatment: Treatment
    features: tuple[FeatureDraft, ...]


def network(model: str, rows: int) -> str:
    """Returns the section `model` of a model of pooled features, as YAML."""
    return (_SMALL_NETWORKS if rows < LARGE_ROWS else _NETWORKS)[model]


def optimizer(model: str, steps: int) -> list[str]:
    """Returns the entries of the section `optimizer` for a training of so many steps, as YAML."""
    crosses = model == "dcnv2"
    lines = ["dense: {type: Adam, lr: 0.001}", f"sparse: {_CROSS_OPTIMIZER if crosses else _ROWS_OPTIMIZER}"]
    return [*lines, f"schedule: {{type: linear, steps: {steps}, end: 0.05}}"] if crosses else lines


def sequence_network(model: str, target: str, earlier: str) -> str:
    """Returns the section `model` of a model that reads the list of ids that came before the item, as YAML."""
    return f"{{type: {model}, target: {text(target)}, sequence: {text(earlier)}, hidden: [64, 32]}}"


def in_towers(parts: Sequence[Part], item: Sequence[str]) -> tuple[list[Part], str]:
    """Divides the features between the towers of the user and of the item, item: whose columns are these, its id first.

    Returns the parts, whose numbers stand in a group for each side, and the section `model`, as YAML.
    """
    sides: dict[str, list[str]] = {"user": [], "item": []}
    divided: list[Part] = []
    for part in parts:
        side = "item" if part.column in item else "user"
        group = f"{side}_numbers"
        features = tuple(
            replace(each, rest=f"{_DENSE}, group: {group}") if each.rest == _DENSE else each for each in part.features
        )
        for each in features:
            name = part.name + each.suffix if _IDS in each.rest else group
            if name not in sides[side]:
                sides[side].append(name)
        divided.append(replace(part, features=features))
    lists = [f"  {side}: [{', '.join(map(text, found))}]" for side, found in sides.items()]
    item_id = next(part.name for part in parts if part.column == item[0])
    options = ("  hidden: [64]", "  dim: 32", "  temperature: 0.1")
    return divided, "\n".join(["", f"  type: {TOWERS}", *lists, f"  item_id: {text(item_id)}", *options])
