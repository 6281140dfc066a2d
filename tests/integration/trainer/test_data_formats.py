"""The same clicks in any format train the same model to the bit, and bad rows are named by file and row."""

from __future__ import annotations

import bz2
import gzip
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from storage.data import DataOptions
from storage.errors import ConfigError, InvalidInput
from trainer import TrainReport, load_trained, train, update
from trainer.config import TrainConfig
from trainer.data import Batch
from trainer.loop import TrainingLoop

Make = Callable[..., TrainConfig]
Table = Callable[[int, int], pa.Table]
ROWS = 1200
PART = 300
NUMBERS = """
model_name: numbers
label: label
inputs:
  - {name: user, dtype: INT64}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: price, inputs: [price], transforms: [{op: log}], output: dense}
tables: [{name: users, dim: 4}]
model: {type: deepfm, hidden: [8]}
training: {batch_size: 128, epochs: 2, shuffle_rows: 500}
"""


def checkpoint_bytes(report: TrainReport) -> dict[str, bytes]:
    """Returns the rows, weights and optimizer values of the newest commit."""
    files = {path.name: path.read_bytes() for path in sorted(report.checkpoint.rglob("*.safetensors"))}
    assert len(files) > 1
    return files


def quiet(config: TrainConfig, data: object, output: Path, **options: object) -> TrainReport:
    return train(config, data, output=output, progress=False, **options)  # type: ignore[arg-type]


def flat(table: pa.Table) -> pa.Table:
    """Returns lists as text between bars; null lists, which a line cannot tell from empty ones, stay null."""
    for name in ("tags", "history"):
        strings = table[name].cast(pa.list_(pa.string()))
        place = table.column_names.index(name)
        table = table.set_column(place, name, pc.binary_join(strings, "|"))
    return table


def write(table: pa.Table, path: Path) -> None:
    """Writes a table in the format of the name, in blocks of PART rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".gz", ".bz2"):
        write(table, path.with_suffix(""))
        text = path.with_suffix("").read_bytes()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else bz2.compress(text))
        path.with_suffix("").unlink()
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=PART)
    elif path.suffix == ".orc":
        orc.write_table(table, path, stripe_size=1, batch_size=PART)
    elif path.suffix == ".arrow":
        feather.write_feather(table, str(path), chunksize=PART)
    else:
        pa_csv.write_csv(flat(table), path, pa_csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ","))


def test_the_same_clicks_train_the_same_model_in_any_format_and_layout(
    tmp_path: Path, config_of: Make, click_table: Table
) -> None:
    table = click_table(ROWS, 1)
    config = config_of(checkpoint_every_steps="0", shuffle_rows="600").model_copy(
        update={"data": DataOptions(block_rows=PART)}
    )
    data: dict[str, object] = {"memory": table}
    for suffix in (".parquet", ".csv", ".tsv", ".orc", ".arrow"):
        write(table, tmp_path / f"one{suffix}")
        data[f"one{suffix}"] = tmp_path / f"one{suffix}"
        for number in range(ROWS // PART):
            part = table.slice(number * PART, PART)
            write(part, tmp_path / f"many{suffix}" / f"{number}{suffix}")
            write(part, tmp_path / f"hive{suffix}" / f"part={number}" / f"rows{suffix}")
        data[f"many{suffix}"] = str(tmp_path / f"many{suffix}" / "*")
        data[f"hive{suffix}"] = tmp_path / f"hive{suffix}"
    for name in ("packed.csv.gz", "packed.tsv.bz2"):
        write(table, tmp_path / name)
        data[name] = tmp_path / name
    made = {name: checkpoint_bytes(quiet(config, given, tmp_path / f"run-{name}")) for name, given in data.items()}
    assert len(made) == 18
    for name, content in made.items():
        assert content == made["one.parquet"], name
    other = checkpoint_bytes(quiet(config, tmp_path / "one.csv", tmp_path / "other", limit=ROWS - PART))
    assert other != made["one.csv"]


def test_numbers_as_libsvm_train_the_model_of_parquet(tmp_path: Path, click_table: Table) -> None:
    import yaml

    clicks = click_table(ROWS, 1)
    user, price = pc.add(clicks["user"], 50_001), clicks["price"]
    label = clicks["clicked"].cast(pa.int8())
    table = pa.table({"user": user, "price": price, "label": label})
    write(table, tmp_path / "a.parquet")
    texts = price.cast(pa.string()).to_pylist()
    lines = (
        f"{one} 1:{who} 2:{text}\n" for one, who, text in zip(label.to_pylist(), user.to_pylist(), texts, strict=True)
    )
    (tmp_path / "a.libsvm").write_text("".join(lines))
    config = yaml.safe_load(NUMBERS)
    config["data"] = {"columns": ["user", "price"], "block_rows": PART}
    made = [checkpoint_bytes(quiet(config, tmp_path / f"a.{kind}", tmp_path / kind)) for kind in ("parquet", "libsvm")]
    assert made[0] == made[1]


def test_a_run_over_text_is_resumed_to_the_bit_without_searching_its_files_again(
    tmp_path: Path, config_of: Make, click_table: Table
) -> None:
    write(click_table(ROWS, 1), tmp_path / "a.csv")
    config = config_of(checkpoint_every_steps="0", shuffle_rows="600")
    config = config.model_copy(update={"data": DataOptions(block_rows=PART)})
    once = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 1})})
    whole = quiet(config, tmp_path / "a.csv", tmp_path / "whole")
    quiet(once, tmp_path / "a.csv", tmp_path / "run")
    (kept,) = (tmp_path / "run" / "data-index").glob("*.json")
    before = kept.stat().st_mtime_ns
    resumed = quiet(config, tmp_path / "a.csv", tmp_path / "run", resume=True)
    assert kept.stat().st_mtime_ns == before
    first, second = (load_trained(report.output).predict(tmp_path / "a.csv") for report in (whole, resumed))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(("step", "name"), [(3, "a.tsv"), (8, "a.csv.gz")])
def test_a_run_over_text_that_stops_within_an_epoch_goes_on_to_the_bit(
    tmp_path: Path, config_of: Make, click_table: Table, monkeypatch: pytest.MonkeyPatch, step: int, name: str
) -> None:
    write(click_table(ROWS, 1), tmp_path / name)
    config = config_of(checkpoint_every_steps="0", shuffle_rows="600")
    config = config.model_copy(update={"data": DataOptions(block_rows=PART, read_threads=2)})
    whole = quiet(config, tmp_path / name, tmp_path / "whole")
    real = TrainingLoop._step

    def stopped(loop: TrainingLoop, batch: Batch) -> float:
        if loop.position.step + 1 == step:
            signal.raise_signal(signal.SIGINT)
        return real(loop, batch)

    monkeypatch.setattr(TrainingLoop, "_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        quiet(config, tmp_path / name, tmp_path / "run")
    monkeypatch.setattr(TrainingLoop, "_step", real)
    copies = [path.stat().st_ino for path in (tmp_path / "run" / "data-index").glob("*.copy")]
    assert len(copies) == name.endswith(".gz")
    resumed = quiet(config, tmp_path / name, tmp_path / "run", resume=True)
    first, second = (load_trained(report.output).predict(tmp_path / name) for report in (whole, resumed))
    assert np.array_equal(first, second)
    assert resumed.steps == whole.steps
    assert not list((tmp_path / "run" / "data-index").glob("*.copy"))


def test_update_and_evaluation_read_text_too(tmp_path: Path, config_of: Make, click_table: Table) -> None:
    for number, name in enumerate(("old.csv", "new.tsv", "new.parquet")):
        write(click_table(600, 1 + min(number, 1)), tmp_path / name)
    quiet(config_of(epochs="1"), tmp_path / "old.csv", tmp_path / "run", valid=tmp_path / "new.tsv")
    trained = load_trained(tmp_path / "run")
    assert np.array_equal(trained.predict(tmp_path / "new.tsv"), trained.predict(tmp_path / "new.parquet"))
    assert trained.evaluate(tmp_path / "new.tsv").auc == trained.evaluate(tmp_path / "new.parquet").auc
    report = update(tmp_path / "run", tmp_path / "new.tsv", repository=tmp_path / "models", progress=False)
    assert report.rows == 600


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("clicked", 2, r"the label column 'clicked' holds 2, expected 0 and 1"),
        ("clicked", None, r"the label column 'clicked' holds nulls"),
        ("user", None, r"user"),
        ("tags", [1] * 5, r"tags.*5"),
    ],
)
def test_a_row_that_cannot_be_trained_on_is_named(
    tmp_path: Path, config_of: Make, click_table: Table, suffix: str, column: str, value: object, words: str
) -> None:
    for number in range(3):
        table = click_table(PART, number)
        table = table.set_column(5, "clicked", table["clicked"].cast(pa.int8()))
        if number == 1:
            values = table[column].to_pylist()
            values[250] = value
            place = table.column_names.index(column)
            table = table.set_column(place, column, pa.array(values, table[column].type))
        write(table, tmp_path / "data" / f"{number}{suffix}")
    content = config_of(shuffle_rows="500").model_dump(mode="json")
    content["inputs"][0]["nulls"] = "error"
    content["inputs"][2]["max_length"] = 4
    place = "row 250" if suffix == ".parquet" else "line 252"
    with pytest.raises(InvalidInput, match=f"1{suffix}: {place}: .*{words}"):
        train(content, tmp_path / "data", output=tmp_path / "run", progress=False)


def test_damaged_files_are_named_in_the_report(tmp_path: Path, config_of: Make, click_table: Table) -> None:
    for number in range(3):
        write(click_table(PART, number), tmp_path / "data" / f"{number}.csv")
    with (tmp_path / "data" / "1.csv").open("a") as file:
        file.write("1,2\n")
    with pytest.raises((ConfigError, InvalidInput), match=r"1.csv.*: line 302: 2 fields, expected 7"):
        quiet(config_of(), tmp_path / "data", tmp_path / "strict")
    config = config_of().model_copy(update={"data": DataOptions(on_damaged="skip")})
    report = quiet(config, tmp_path / "data", tmp_path / "run")
    assert report.rows == 2 * 2 * PART
    assert [Path(entry.path).name for entry in report.skipped] == ["1.csv"]
    assert "line 302" in (tmp_path / "run" / "report.json").read_text()
