"""The label of a configuration: a column of 0 and 1, or a comparison with bounds or values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from storage.data import DataRows, Wanted
from storage.errors import ConfigError, InvalidInput
from trainer import TrainConfig, train
from trainer.config import parse_text
from trainer.config_errors import parse_config
from trainer.data.targets import read_labels

Make = Callable[..., TrainConfig]
STARS = [1, 2, 3, 4, 5, 4]


def with_label(config: TrainConfig, label: Any) -> TrainConfig:
    return parse_config(TrainConfig, {**config.model_dump(mode="json"), "label": label})


def labels(config: TrainConfig, column: Any) -> list[float]:
    read: list[float] = read_labels(pa.table({"stars": column}), config.targets).ravel().tolist()
    return read


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        ({"at_least": 4}, [0, 0, 0, 1, 1, 1]),
        ({"above": 4}, [0, 0, 0, 0, 1, 0]),
        ({"at_most": 2.5}, [1, 1, 0, 0, 0, 0]),
        ({"below": 2}, [1, 0, 0, 0, 0, 0]),
        ({"at_least": 2, "below": 4}, [0, 1, 1, 0, 0, 0]),
        ({"equals": 4}, [0, 0, 0, 1, 0, 1]),
        ({"equals": [1, 5]}, [1, 0, 0, 0, 1, 0]),
    ],
)
@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32()])
def test_numbers_are_compared(config_of: Make, comparison: Any, expected: list[int], kind: Any) -> None:
    config = with_label(config_of(), {"column": "stars", **comparison})
    assert labels(config, pa.array(STARS, kind)) == expected


def test_large_integers_are_compared_exactly(config_of: Make) -> None:
    config = with_label(config_of(), {"column": "stars", "at_least": 2**53 + 1})
    assert labels(config, pa.array([2**53, 2**53 + 1])) == [0, 1]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_text_and_booleans_are_compared(config_of: Make, kind: Any) -> None:
    config = with_label(config_of(), {"column": "stars", "equals": ["bought", "returned"]})
    assert labels(config, pa.array(["seen", "bought", "", "returned"]).cast(kind)) == [0, 1, 0, 1]
    refused = with_label(config_of(), {"column": "stars", "equals": False})
    assert labels(refused, pa.array([True, False])) == [0, 1]


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_row_without_a_value_has_no_label(config_of: Make, value: Any) -> None:
    config = with_label(config_of(), {"column": "stars", "at_least": 4})
    with pytest.raises(InvalidInput, match=r"'stars' holds (nulls|NaN); leave such rows out"):
        labels(config, pa.array([5.0, value]))


def test_a_column_of_other_numbers_is_told_of_comparisons(config_of: Make) -> None:
    with pytest.raises(InvalidInput, match=r"holds 3, expected 0 and 1; .* \{column: stars, at_least: 4\}"):
        labels(with_label(config_of(), "stars"), pa.array([1, 3]))


@pytest.mark.parametrize(
    ("label", "field", "words"),
    [
        ({"column": "stars", "at_leest": 4}, "label.at_leest", "did you mean 'at_least'"),
        ({"at_least": 4}, "label.column", "missing"),
        ({"column": "stars", "at_least": "4"}, "label.at_least", "expected a number, got '4'"),
        ({"column": "stars", "equals": []}, "label.equals", "at least 1 item"),
        ({"column": "stars", "equals": ["a", 1]}, "label", "texts or numbers, got both"),
        ({"column": "stars", "equals": 1, "above": 1}, "label", "`equals` stands alone, but above is given too"),
        ({"column": "stars", "at_least": 4, "above": 5}, "label", "one lower and one upper bound"),
        ({"column": "stars", "at_least": 4, "below": 4}, "label", "no number is at_least 4 and below 4"),
        (4, "label", "expected the name of a column of 0 and 1, or a comparison"),
    ],
)
def test_a_label_that_makes_no_sense_is_refused(config_of: Make, label: Any, field: str, words: str) -> None:
    content = {**config_of().model_dump(mode="json"), "label": label}
    with pytest.raises(ConfigError, match=words) as refused:
        parse_text(yaml.safe_dump(content))
    assert refused.value.field == field


def test_the_type_of_the_column_is_checked_before_training(clicks: Path, config_of: Make) -> None:
    for label, words in (
        ({"column": "item_code", "at_least": 4}, "'item_code' is string, expected numbers"),
        ({"column": "clicked", "equals": "yes"}, "'clicked' is bool, expected text"),
        ({"column": "item_cod", "equals": "yes"}, "no label column 'item_cod'; did you mean 'item_code'"),
    ):
        config = with_label(config_of(), label)
        wanted = Wanted(config.inputs, config.targets.numbers, config.targets.texts)
        with pytest.raises(ConfigError, match=words) as refused:
            DataRows.open(clicks, wanted)
        assert refused.value.field == "label"


def test_a_comparison_trains_as_the_column_of_0_and_1_that_it_stands_for(
    clicks: Path, config_of: Make, tmp_path: Path
) -> None:
    table = pq.read_table(clicks)
    stars = pa.array(np.where(table["clicked"].to_numpy() == 1, 5, 3).astype(np.int32))
    (tmp_path / "data").mkdir()
    pq.write_table(table.append_column("stars", stars), tmp_path / "data" / "rows.parquet")
    losses = []
    for name, label in (("plain", "clicked"), ("compared", {"column": "stars", "at_least": 4})):
        config = with_label(config_of(), label)
        report = train(config, tmp_path / "data", output=tmp_path / name, valid=0.2, limit=600, progress=False)
        losses.append(report.log_loss)
    assert losses[0] == losses[1]
