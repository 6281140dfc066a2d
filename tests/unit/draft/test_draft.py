"""Drafted configurations: what becomes of each kind of column, what is left out, and that they train as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.frame import command
from emberline.draft import MODELS, Draft, draft
from emberline.draft.network import SEQUENCE_MODELS, TASK_MODELS, TOWERS
from emberline.draft.text import names
from storage.data import DataOptions
from storage.errors import ConfigError
from trainer import train
from trainer.config import TrainConfig, parse_text
from trainer.datasets.criteo_like import write_criteo_like

ROWS = 2000
RNG = np.random.default_rng(1)
LABELS = RNG.integers(0, 2, ROWS)


def drafted(tmp_path: Path, label: str = "clicked", **columns: Any) -> Draft:
    return draft([write(tmp_path, **columns)], label)


def write(tmp_path: Path, **columns: Any) -> Path:
    table = pa.table({"clicked": LABELS, "shop_id": RNG.integers(0, 50, ROWS), **columns})
    pq.write_table(table, tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def ops(made: Draft, feature: str) -> list[str]:
    return [step.op for step in made.config.spec.feature(feature).transforms]


def boundaries(config: TrainConfig, feature: str) -> list[float]:
    cut, fill = config.spec.feature(feature).transforms
    assert (cut.op, fill.op) == ("bucketise", "fill")
    return list(cut.model_dump()["boundaries"])


def reasons(made: Draft) -> dict[str, str]:
    return dict(made.left_out)


def nullable(values: Any, share: float = 0.2) -> Any:
    return pa.array(values, mask=RNG.random(ROWS) < share)


def test_numbers_are_taken_by_their_shape(tmp_path: Path) -> None:
    made = drafted(
        tmp_path,
        plain=RNG.standard_normal(ROWS),
        views=np.exp(RNG.standard_normal(ROWS) * 2).astype(np.int64),
        age=RNG.normal(40, 12, ROWS),
        change=np.concatenate([RNG.standard_normal(ROWS - 2), [1e9, -3e8]]),
        income=nullable(RNG.normal(0, 1e4, ROWS)),
    )
    assert (ops(made, "plain"), ops(made, "views"), ops(made, "age")) == ([], ["bucketise", "fill"], ["standardise"])
    assert ops(made, "change") == ["bucketise", "fill"]
    assert made.config.spec.feature("change").output == "ids"
    assert ops(made, "income_is_null") == ["is_null"]
    assert made.config.spec.input("income").missing == "null"
    standardise = made.config.spec.feature("age").transforms[0].model_dump()
    assert standardise["mean"] == pytest.approx(40, abs=1)


def test_numbers_are_cut_at_as_many_quantiles_as_asked_for(tmp_path: Path) -> None:
    views = np.exp(RNG.standard_normal(ROWS) * 2).astype(np.int64)
    data = write(tmp_path, price=RNG.lognormal(3, 1, ROWS), views=views, income=nullable(RNG.normal(0, 1e4, ROWS)))
    done = CliRunner().invoke(command, ["init", str(data), "--label", "clicked", "--quantiles", "32"])
    assert done.exit_code == 0, done.exception
    config = parse_text(done.stdout)
    bounds = {name: boundaries(config, name) for name in ("price", "views", "income")}
    assert [len(bounds[name]) for name in ("price", "income")] == [31, 31]
    assert 10 < len(bounds["views"]) < 31  # many views are 0 or 1
    ranges = np.bincount(np.searchsorted(bounds["price"], pq.read_table(data)["price"].to_numpy(), "right"))
    assert ranges.tolist() == pytest.approx([ROWS / 32] * 32, abs=2)
    assert config.spec.feature("shop_id").transforms == ()  # ids stay ids
    train(config, data, output=tmp_path / "run", progress=False, limit=100)


def test_ids_are_found_by_name_and_by_their_range(tmp_path: Path) -> None:
    spread = RNG.integers(0, 2**62, 300)
    made = drafted(
        tmp_path, visitor=spread[RNG.integers(0, 300, ROWS)], color=nullable(RNG.choice(["red", "blue"], ROWS))
    )
    assert {made.config.spec.feature(name).table for name in ("shop_id", "visitor", "color")} == {
        "shop_id",
        "visitor",
        "color",
    }
    assert ops(made, "color") == ["hash", "fill"]
    assert ops(made, "visitor") == []


def test_texts_of_several_words_are_split_and_lists_share_the_table_of_their_ids(tmp_path: Path) -> None:
    words = np.array(["war", "love", "space", "crime", "music", "kids"])
    texts = ["|".join(RNG.choice(words, RNG.integers(1, 4), replace=False)) for _ in range(ROWS)]
    items = RNG.integers(0, 200, ROWS)
    history = [RNG.integers(0, 200, RNG.integers(0, 5)).tolist() for _ in range(ROWS)]
    made = drafted(tmp_path, genres=texts, item=items, history=history)
    assert ops(made, "genres") == ["split", "hash"]
    assert made.config.spec.feature("history").table == "item"
    assert made.config.spec.input("history").kind == "list"


def test_lists_of_lists_are_joined_and_train(tmp_path: Path) -> None:
    shops = RNG.integers(0, 50, ROWS)
    sessions = [[[int(shop), 7], [int(shop) % 5]] for shop in shops]
    made = draft([write(tmp_path, shop_id=shops, sessions=sessions)], "clicked")
    assert (made.config.spec.input("sessions").flatten, made.config.spec.feature("sessions").table) == (True, "shop_id")
    train(made.config, tmp_path / "rows.parquet", output=tmp_path / "run", progress=False, limit=100)


def test_dictionaries_vectors_and_infinity_train_too(tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(RNG.random(ROWS * 4).astype(np.float32)), 4)
    path = write(
        tmp_path,
        color=pa.array(RNG.choice(["red", "blue"], ROWS).tolist()).dictionary_encode(),
        vector=vectors,
        rate=np.where(np.arange(ROWS) == 3, np.inf, RNG.random(ROWS)),
    )
    made = draft([path], "clicked")
    assert made.config.spec.flow("vector").high == 4
    assert ops(made, "rate") == ["clip"]
    report = train(made.config, path, output=tmp_path / "run", limit=300, progress=False)
    assert report.rows > 0


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_times_become_hours_and_weekdays(tmp_path: Path, unit: str) -> None:
    seconds = RNG.integers(1_600_000_000, 1_700_000_000, ROWS) * (1000 if unit == "ms" else 1)
    made = drafted(tmp_path, ordered_at=seconds, seen=pa.array(seconds).cast(pa.timestamp(unit)))
    assert made.config.spec.feature("ordered_at_hour").transforms[0].model_dump()["unit"] == unit
    assert made.config.spec.feature("seen_weekday").transforms[0].model_dump()["unit"] == "us"
    assert {table.name for table in made.config.tables} >= {"hours", "weekdays"}


def test_what_says_nothing_or_too_much_is_left_out_with_the_reason(tmp_path: Path) -> None:
    made = drafted(
        tmp_path,
        version=np.full(ROWS, 3),
        row=np.arange(ROWS),
        nothing=pa.nulls(ROWS, pa.string()),
        paid=LABELS * 3.5 + RNG.random(ROWS) * 0.1,
        state=np.where(LABELS == 1, "done", "open"),
        nested=pa.array([{"a": 1}] * ROWS),
    )
    assert [entry.name for entry in made.config.inputs] == ["shop_id"]
    found = reasons(made)
    assert "the same value in every row (3)" in found["version"]
    assert "another value in every row" in found["row"]
    assert "null in every row" in found["nothing"]
    assert "known only after it" in found["paid"]
    assert "known only after it" in found["state"]
    assert "no input takes" in found["nested"]
    assert all(f"{name} (" in made.text for name in ("version", "row", "nothing", "nested"))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (LABELS.astype(bool), "label: liked"),
        (LABELS + 1, "label: {column: liked, equals: 2}"),
        (np.where(LABELS == 1, "yes", "no"), 'label: {column: liked, equals: "yes"}'),
        (np.tile([1, 2, 3, 4, 5], ROWS // 5), "label: {column: liked, at_least: 4}"),
        (RNG.standard_normal(ROWS), "  - {name: score, label: liked, loss: mean_squared_error}"),
    ],
)
def test_the_label_is_taken_for_what_it_is(tmp_path: Path, values: Any, line: str) -> None:
    if isinstance(values[0], np.str_):
        values = values.tolist()
    assert line in drafted(tmp_path, "liked", liked=values).text.splitlines()


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("clickd", "no column 'clickd'; did you mean 'clicked'"),
        ("one", r"has one value only \(1\.0\)"),
        ("some", "nulls in 2,000 rows; leave the rows without a label out"),
        ("words", r"has 3 texts \(.*\), expected two; write label: \{column: words, equals: TEXT\}"),
        ("many", "list<.*>, expected numbers, booleans or text"),
    ],
)
def test_a_label_that_is_none_is_refused(tmp_path: Path, label: str, words: str) -> None:
    columns = {
        "one": np.ones(ROWS),
        "some": nullable(LABELS),
        "words": RNG.choice(["a", "b", "c"], ROWS).tolist(),
        "many": [[1]] * ROWS,
    }
    with pytest.raises(ConfigError, match=words) as refused:
        drafted(tmp_path, label, **columns)
    assert refused.value.field == "label"


def test_data_without_a_useful_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": LABELS, "one": np.ones(ROWS)}), tmp_path / "rows.parquet")
    with pytest.raises(ConfigError, match=r"no column to learn from beside 'y' \(one: the same value"):
        draft([tmp_path / "rows.parquet"], "y")


def test_odd_names_and_a_model_of_numbers_alone_train_too(tmp_path: Path) -> None:
    table = pa.table({"y": LABELS, "unit price ($)": RNG.normal(5, 2, ROWS), "a..b": RNG.normal(50, 2, ROWS)})
    pq.write_table(table, tmp_path / "rows.parquet")
    made = draft([tmp_path / "rows.parquet"], "y")
    assert [entry.source for entry in made.config.inputs] == ["unit price ($)", "a..b"]
    report = train(made.config, tmp_path / "rows.parquet", output=tmp_path / "run", limit=300, progress=False)
    assert report.rows > 0


@pytest.mark.parametrize("model", SEQUENCE_MODELS)
def test_models_of_sequences_read_the_lists_of_an_item_that_came_before(tmp_path: Path, model: str) -> None:
    items = RNG.integers(0, 200, ROWS)
    history = [RNG.integers(0, 200, RNG.integers(0, 70)).tolist() for _ in range(ROWS)]
    path = write(tmp_path, item=items, history=history)
    made = draft([path], "clicked", model=model)
    feature = made.config.spec.feature("history")
    assert (feature.pooling, feature.length, feature.table) == ("none", 50, "item")
    report = train(made.config, path, output=tmp_path / "run", limit=300, progress=False)
    assert report.rows > 0
    with pytest.raises(ConfigError, match=f"--model {model} reads the list .* but no column"):
        draft([write(tmp_path)], "clicked", model=model)


def visits(tmp_path: Path, **columns: Any) -> Path:
    items = RNG.integers(0, 200, ROWS)
    history = [RNG.integers(0, 200, RNG.integers(1, 9)).tolist() for _ in range(ROWS)]
    stars = RNG.normal(30, 5, ROWS) + 8 * LABELS
    return write(tmp_path, item=items, price=RNG.normal(5, 2, ROWS), history=history, stars=stars, **columns)


@pytest.mark.parametrize("model", TASK_MODELS)
def test_several_labels_become_tasks_and_no_inputs(tmp_path: Path, model: str) -> None:
    path = visits(tmp_path)
    made = draft([path], ["clicked", "stars"], model=model)
    liked, stars = made.config.tasks
    assert (liked.name, liked.loss, stars.name, stars.loss) == (
        *("clicked", "binary_cross_entropy"),
        *("stars", "mean_squared_error"),
    )
    variance = np.var(pq.read_table(path)["stars"].to_numpy())
    assert stars.weight == pytest.approx(1 / variance, rel=0.05)
    assert {"clicked", "stars"}.isdisjoint(entry.source for entry in made.config.inputs)
    report = train(made.config, path, output=tmp_path / "run", limit=300, progress=False)
    assert report.rows > 0
    with pytest.raises(ConfigError, match=f"--model {model} learns several labels"):
        draft([path], "clicked", model=model)


def test_a_column_that_gives_one_of_the_labels_away_is_left_out(tmp_path: Path) -> None:
    other = np.roll(LABELS, 7)
    path = write(tmp_path, bought=other, paid=other * 9.5)
    assert "known only after it" in reasons(draft([path], ["clicked", "bought"]))["paid"]


def test_two_towers_get_the_columns_that_are_named_as_the_items(tmp_path: Path) -> None:
    path = visits(tmp_path, colour=RNG.choice(["red", "blue"], ROWS).tolist())
    made = draft([path], "clicked", model=TOWERS, item=["item", "colour", "price"])
    model: Any = made.config.model
    assert (model.item_id, set(model.item)) == ("item", {"item", "colour", "item_numbers"})
    assert set(model.user) == {"shop_id", "history", "user_numbers"}
    assert made.config.spec.feature("history").table == made.config.spec.feature("item").table
    assert made.config.tasks[0].loss == "in_batch_softmax"
    report = train(made.config, path, output=tmp_path / "run", limit=300, progress=False)
    assert report.rows > 0


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({}, "item", "give --item COLUMN once for each, the item's id first"),
        ({"item": ["itm"]}, "item", "no column 'itm'; did you mean 'item'"),
        ({"item": ["clicked"]}, "item", "no column 'clicked'"),
        ({"item": ["number", "item"]}, "item", r"'number', the id of the item, was left out \(number: another value"),
        ({"item": ["item", "price", "history", "shop_id", "stars"]}, "item", "leaves no column for the user"),
        ({"item": ["item"], "labels": "stars"}, "label", "a quantity of .* needs a label of two values, or a rating"),
        ({"item": ["item"], "labels": ["clicked", "stars"]}, "label", "two_tower learns one label, got clicked, stars"),
        ({"item": ["item"], "model": "dlrm"}, "item", "--item is for --model two_tower, got dlrm"),
    ],
)
def test_what_two_towers_cannot_learn_from_is_refused(
    tmp_path: Path, options: dict[str, Any], field: str, words: str
) -> None:
    path = visits(tmp_path, number=np.arange(ROWS))
    with pytest.raises(ConfigError, match=words) as refused:
        draft([path], options.pop("labels", "clicked"), **{"model": TOWERS, **options})
    assert refused.value.field == field


@pytest.mark.parametrize("model", sorted({*MODELS} - {*SEQUENCE_MODELS, *TASK_MODELS, TOWERS}))
def test_criteo_comes_out_in_about_twenty_lines_and_trains(tmp_path: Path, model: str) -> None:
    write_criteo_like(tmp_path, rows=3000)
    made = draft([tmp_path / "train.parquet"], "label", model=model)
    assert len(made.config.inputs) == 39
    said = [line for line in made.text.splitlines() if line and not line.startswith("#")]
    assert len(said) <= 25
    report = train(made.config, tmp_path / "train.parquet", output=tmp_path / "run", limit=500, progress=False)
    assert report.rows > 0


def test_rates_of_cross_layers_fall_to_the_end_of_the_training(tmp_path: Path) -> None:
    config = draft([write(tmp_path)], "clicked", model="dcnv2").config
    schedule, training = config.optimizer.schedule, config.training
    assert schedule.type == "linear"
    assert schedule.steps == training.epochs * (ROWS * 9 // 10) // training.batch_size


def test_the_command_writes_yaml_alone_and_says_the_rest_on_standard_error(tmp_path: Path) -> None:
    table = pa.table({"clicked": LABELS, "shop_id": RNG.integers(0, 50, ROWS), "one": np.ones(ROWS)})
    pa.csv.write_csv(table, tmp_path / "shop.csv", pa.csv.WriteOptions(delimiter=";"))
    arguments = ["init", str(tmp_path / "shop.csv"), "--label", "clicked"]
    done = CliRunner().invoke(command, [*arguments, "--delimiter", ";"])
    assert done.exit_code == 0
    assert "model_name: shop" in done.stdout
    assert 'data: {"delimiter": ";"}' in done.stdout
    assert "left out: one: the same value in every row" in done.stderr
    (tmp_path / "shop.yaml").write_text(done.stdout)
    report = train(
        tmp_path / "shop.yaml", tmp_path / "shop.csv", output=tmp_path / "run", limit=300, valid=0.1, progress=False
    )
    assert report.auc is not None
    with pytest.raises(ConfigError, match=r"one column only.*add --delimiter ';'"):
        draft([tmp_path / "shop.csv"], "clicked", options=DataOptions())


def test_names_are_shortened_to_ranges() -> None:
    assert names(["a"]) == "a"
    assert names(["C1", "C2", "C3", "C5"]) == "[C1..C3, C5]"
    assert names(["x", "I1", "I2", "yes"]) == '[x, I1, I2, "yes"]'
