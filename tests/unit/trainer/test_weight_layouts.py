"""The layouts of the zoo's weights name every value of every weight, and the features are found in them by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainer.config import TrainConfig
from trainer.models import MODELS, RankingModel, build_model, build_tables
from trainer.models.blocks import InputLayout, WeightLayout, pair_blocks
from trainer.task_config import TaskConfig

#: Two towers start from another run by the names of their weights.
LAID_OUT = [kind for kind in MODELS if kind != "two_tower"]

CLASSES = "softmax_cross_entropy"
Make = Callable[..., TrainConfig]


def layouts_of(config: TrainConfig) -> tuple[RankingModel, dict[str, WeightLayout]]:
    model = build_model(config, build_tables(config))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    return model, model.layouts(InputLayout(config.spec, model.features.dims), shapes)


@pytest.mark.parametrize("kind", LAID_OUT)
@pytest.mark.parametrize("dense", [True, False])
def test_every_weight_has_a_layout_that_fits(config_of: Make, kind: str, dense: bool) -> None:
    config = config_of(kind)
    if not dense:
        kept = tuple(feature for feature in config.features if feature.output == "ids")
        config = config.model_copy(update={"features": kept})
        config.__dict__.pop("spec", None)
    model, layouts = layouts_of(config)
    for name, value in model.state_dict().items():
        assert layouts[name].fits(tuple(value.shape)), name
    roles = [layouts[name].role for name in model.state_dict()]
    assert len(set(roles)) == len(roles)


@pytest.mark.parametrize("kind", LAID_OUT)
def test_the_heads_of_several_tasks_have_their_names(config_of: Make, kind: str) -> None:
    config = config_of(kind)
    tasks = (TaskConfig(name="like", label="a"), TaskConfig(name="kind", label="b", loss=CLASSES, classes=3))
    config = config.model_copy(update={"label": None, "tasks": tasks})
    config.__dict__.pop("targets", None)
    model = build_model(config, build_tables(config))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    inputs = InputLayout(config.spec, model.features.dims, heads=config.targets.heads)
    layouts = model.layouts(inputs, shapes)
    assert all(layouts[name].fits(shape) for name, shape in shapes.items())
    heads = {block for layout in layouts.values() for block in layout.axes[0]} & {("like", 1), ("kind", 3)}
    assert heads == {("like", 1), ("kind", 3)}


@pytest.mark.parametrize("kind", LAID_OUT)
def test_no_label_stands_twice_on_an_axis(config_of: Make, kind: str) -> None:
    for layout in layouts_of(config_of(kind))[1].values():
        for axis in layout.axes:
            labels = [label for label, _ in axis]
            assert len(set(labels)) == len(labels)


def test_a_pair_has_one_label_whatever_the_order() -> None:
    assert pair_blocks(["a", "c", "b"]) == (("pair a c", 1), ("pair a b", 1), ("pair b c", 1))
    assert set(pair_blocks(["c", "b", "a"])) == set(pair_blocks(["a", "c", "b"]))
