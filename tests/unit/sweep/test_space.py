"""The values of a sweep as users write them, and what they are told when these are wrong."""

from __future__ import annotations

import re

import pytest
import yaml

from emberline.sweep.check import checked, content_of, grid_points, present_values
from emberline.sweep.space import Choices, Range, from_mapping, from_text
from storage.errors import ConfigError
from trainer.config import parse_text

MODEL = """
model_name: shop
label: clicked
inputs: [{name: user, dtype: INT64}, {name: item, dtype: INT64}]
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], output: ids, table: items}
tables: [{name: users, dim: 8}, {name: items, dim: 8}]
model: {type: dlrm, top: [16]}
optimizer: {sparse: {lr: 0.1}}
"""
CONFIG = parse_text(MODEL)
BASE = CONFIG.model_dump(mode="json", exclude_unset=True)


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("a.lr=log:0.01..1.0", Range("a.lr", 0.01, 1.0, log=True)),
        ("a.lr=log:1e-3..1", Range("a.lr", 0.001, 1.0, log=True)),
        ("a.n=log:16..256", Range("a.n", 16, 256, whole=True, log=True)),
        ("a.n=8..64/8", Range("a.n", 8, 64, whole=True, step=8)),
        ("a.p=0.0..0.5", Range("a.p", 0.0, 0.5)),
        ("a.p=-1..0.5", Range("a.p", -1.0, 0.5)),
        ("a.p=0.0..0.5/0.1", Range("a.p", 0.0, 0.5, step=0.1)),
        ("a.top=[64, 32],[128]", Choices("a.top", ([64, 32], [128]))),
        ("a.type=adam, ftrl", Choices("a.type", ("adam", "ftrl"))),
        ("a.flag=true,false", Choices("a.flag", (True, False))),
        ("a.x=0.5", Choices("a.x", (0.5,))),
        ("a.x=0.2,1e-6", Choices("a.x", (0.2, 1e-6))),
    ],
)
def test_the_command_line_reads_choices_and_ranges(text: str, parameter: Choices | Range) -> None:
    assert from_text(text) == parameter


def test_a_file_says_the_same_as_the_command_line() -> None:
    content = yaml.safe_load(
        """
        a.lr: {log: [0.01, 1.0]}
        a.n: {integers: [8, 64], step: 8}
        a.p: {range: [0, 0.5]}
        a.top: [[64, 32], [128]]
        a.type: {choices: [adam, ftrl]}
        """
    )
    texts = ["a.lr=log:0.01..1.0", "a.n=8..64/8", "a.p=0..0.5", "a.top=[64,32],[128]", "a.type=adam,ftrl"]
    assert from_mapping(content, "sweep.yaml") == tuple(map(from_text, texts))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "expected PATH=VALUES"),
        ("a=1..1", "expected the smaller number first, got 1 and 1"),
        ("a=log:0..1", "a logarithmic range begins above 0"),
        ("a=1..5/0", "a step is above 0"),
        ("a=x..y", "expected two numbers"),
        ("a=3,3", "a value stands there twice"),
        ("a=[1", "is not YAML"),
    ],
)
def test_wrong_values_are_refused_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_text(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lg": [1, 2]}, "parameters.a: unknown key 'lg'; did you mean 'log'?"),
        ({"log": 3}, "parameters.a.log: expected a list, got 3"),
        (
            {"log": [1, 2], "range": [1, 2]},
            "parameters.a: expected one of choices, range, log, integers, got range, log",
        ),
        ({"integers": [1, 2.5]}, "parameters.a: expected two whole numbers"),
        (5, "parameters.a: expected a list of choices"),
    ],
)
def test_wrong_files_are_refused_by_their_path(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_mapping({"a": given}, "sweep.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.sparse.lrr=0.1,0.2", "optimizer.sparse.lrr: unknown key; did you mean 'lr'?"),
        ("optimiser.sparse.lr=0.1", "optimiser: unknown key; did you mean 'optimizer'?"),
        ("tables.itms.dim=4,8", "tables.itms.dim: the list has no entry 'itms'; did you mean 'items'?"),
        ("tables.7.dim=4,8", "tables.7.dim: the list has no entry '7'"),
        ("label.x=1", "'x' lies below clicked, which is a value"),
        ("optimizer.sparse.lr=-1.0..1.0", "with optimizer.sparse.lr = -1.0: optimizer.sparse.lr: Input should be"),
        ("training.batch_size=256.0..512.0", "training.batch_size: Input should be a valid integer"),
        ("model.type=dlrm,dlmr", "model.type: expected one of"),
    ],
)
def test_what_the_configuration_does_not_take_is_refused_before_a_trial(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        checked(BASE, [from_text(text)], "model.yaml")


def test_a_value_may_need_another_parameter() -> None:
    """`linear` needs steps, which only the sweep gives; and the options of Adagrad are not in the way of Adam."""
    checked(
        BASE,
        [
            from_text("optimizer.schedule.type=constant,linear"),
            from_text("optimizer.schedule.steps=100..1000"),
            from_text("optimizer.sparse.type=adagrad,adam"),
        ],
        "model.yaml",
    )


def test_values_are_set_by_name_by_place_and_for_all() -> None:
    content = content_of(BASE, {"tables.*.dim": 4, "tables.items.admit_after": 3, "tables.0.admit_after": 2})
    assert [table["dim"] for table in content["tables"]] == [4, 4]
    assert [table["admit_after"] for table in content["tables"]] == [2, 3]
    assert content_of(BASE, {"training.seed": 5})["training"] == {"seed": 5}
    assert "training" not in BASE


def test_the_configuration_itself_is_the_first_trial_if_it_is_among_the_values() -> None:
    inside = [
        from_text("tables.*.dim=4,8"),
        from_text("optimizer.sparse.lr=log:0.01..1.0"),
        from_text("model.top=[16]"),
    ]
    assert present_values(CONFIG, inside) == {"tables.*.dim": 8, "optimizer.sparse.lr": 0.1, "model.top": [16]}
    assert present_values(CONFIG, [*inside, from_text("training.epochs=2,3")]) is None


def test_a_grid_counts_its_points_and_needs_steps() -> None:
    assert grid_points([from_text("a=1..3"), from_text("b=0.0..0.5/0.1"), from_text("c=x,y")]) == 3 * 6 * 2
    with pytest.raises(ConfigError, match=re.escape("a grid needs choices, or a range with a step such as 0..1/STEP")):
        grid_points([from_text("a=0.0..1.0")])
