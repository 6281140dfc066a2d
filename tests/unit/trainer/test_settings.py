"""A configuration that is another than that of a run is refused by the names of what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import ConfigError
from trainer.config import TrainConfig, parse_text
from trainer.settings import check_same_model, check_same_training, settings_of

TEXT = """
model_name: shop
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: age, dtype: FP32}
  - {name: size, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: age, inputs: [age], transforms: [{op: log}], output: dense}
tables: [{name: users, dim: 4}]
model: {type: deepfm, hidden: [8]}
"""
SIZE = "\n  - {name: size, inputs: [size], output: dense}\ntables"
COLORS = "\n  - {name: color, inputs: [user], output: ids, table: colors}\ntables: [{name: colors, dim: 4}, "


def refused(trained: str, now: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_same_model(settings_of(parse_text(trained)), parse_text(now), Path("run"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (TEXT.replace("\ntables", SIZE), "features.size was added"),
        (TEXT.replace("dim: 4", "dim: 8"), "tables.users.dim was 4 and is 8"),
        (TEXT.replace("\ntables: [", COLORS), "features.color was added, tables.colors was added"),
        (TEXT.replace("hidden: [8]", "hidden: [9]"), "model.hidden was [8] and is [9]"),
        (
            TEXT.replace(
                "name: user, inputs: [user], output: ids", "name: user, inputs: [user], pooling: mean, output: ids"
            ),
            "features.user was ids of the table users, pooling sum and is ids of the table users, pooling mean",
        ),
    ],
)
def test_another_model_is_refused_by_what_differs(now: str, words: str) -> None:
    assert words in refused(TEXT, now)
    assert "train the new model into another folder" in refused(TEXT, now)


def test_a_feature_that_is_gone_is_named() -> None:
    assert "features.size was removed" in refused(TEXT.replace("\ntables", SIZE), TEXT)


def test_rates_admission_and_the_transforms_of_a_feature_are_not_the_model() -> None:
    now = TEXT.replace("dim: 4", "dim: 4, admit_after: 3").replace("{op: log}", "{op: clip, max: 3.0}")
    check_same_model(settings_of(parse_text(TEXT)), parse_text(now + "optimizer: {sparse: {lr: 0.5}}\n"), Path("run"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{op: log}", "{op: clip, max: 3.0}", "features.age was changed"),
        ("name: age, dtype: FP32", "name: age, dtype: FP64", "inputs.age was changed"),
        (
            "dim: 4",
            "dim: 4, admit_after: 2, admission: {type: bloom, expected_ids: 9}",
            "tables.users.admission was {'type': 'counter'} and is {'type': 'bloom'",
        ),
        ("label: clicked", "label: bought", "label was clicked and is bought"),
    ],
)
def test_a_resumed_training_names_every_difference(old: str, new: str, words: str) -> None:
    settings = settings_of(parse_text(TEXT))
    check_same_training(settings, parse_text(TEXT), Path("run"))
    with pytest.raises(ConfigError, match="was trained with another configuration") as caught:
        check_same_training(settings, parse_text(TEXT.replace(old, new)), Path("run"))
    assert words in str(caught.value)


@pytest.mark.parametrize("more", ["admit_after: 3", "eviction: {after_steps: 9}"])
def test_thresholds_of_admission_and_eviction_may_change_on_resume(more: str) -> None:
    check_same_training(
        settings_of(parse_text(TEXT)), parse_text(TEXT.replace("dim: 4", f"dim: 4, {more}")), Path("run")
    )


def test_column_types_come_from_the_data_and_are_no_setting() -> None:
    config = parse_text(TEXT)
    typed = config.with_column_types({"user": "integer"})
    assert typed.column_types == {"user": "integer"}
    assert settings_of(typed) == settings_of(config)
    assert TrainConfig.model_validate_json(typed.model_dump_json()) == typed
