"""Tests the documented shop configuration, whose data names a column otherwise, and data with dates, in every way."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli import score
from tests.e2e.test_commands import ROOT, emberline, run
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of
from trainer import load_trained, train
from trainer.config import parse_text

ROWS = 4_000

DATED = """
model_name: dated
label: clicked
inputs:
  - {name: user, dtype: INT64, column: user_id}
  - {name: day, dtype: INT64, column: date}
  - {name: at, dtype: INT64}
  - {name: seen, dtype: INT64, column: seen_ms, unit: ms}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: day, inputs: [day], output: ids, table: days}
  - {name: at, inputs: [at], transforms: [{op: affine, scale: 1.0e-15}], output: dense}
  - {name: seen, inputs: [seen], transforms: [{op: affine, scale: 1.0e-15}], output: dense}
tables: [{name: users, dim: 4}, {name: days, dim: 4}]
model: {type: dlrm, bottom: [4], top: [4]}
training: {batch_size: 256}
"""


def shop_config() -> str:
    """Returns the configuration as it is in the documentation."""
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    block = text[text.index("    model_name: shop") : text.index("A key that is not known is refused")]
    return "\n".join(line[4:] for line in block.splitlines())


def shop_rows(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 50, rows), rng.integers(0, 80, rows)
    histories = [[f"item-{j}" for j in rng.integers(0, 80, n)] for n in rng.integers(0, 30, rows)]
    return pa.table(
        {
            "user_id": user,
            "item": [f"item-{j}" for j in item],
            "history": histories,
            "price": rng.exponential(10.0, rows).astype(np.float32),
            "clicked": ((user + item) % 3 == 0).astype(np.int8),
        }
    )


def write_days(folder: Path, days: list[str], unit: str, rows: int = 600) -> Path:
    """Writes a Hive-partitioned folder: user_id, at (a timestamp in `unit`), seen_ms (integers), clicked."""
    for number, day in enumerate(days):
        rng = np.random.default_rng(number)
        start = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.UTC)
        seconds = int(start.timestamp()) + rng.integers(0, 86_400, rows)
        user = rng.integers(0, 50, rows)
        table = pa.table(
            {
                "user_id": user,
                "at": pa.array(seconds, pa.timestamp("s")).cast(pa.timestamp(unit)),
                "seen_ms": seconds * 1000,
                "clicked": (user % 2).astype(np.int8),
            }
        )
        place = folder / f"date={day}"
        place.mkdir(parents=True)
        pq.write_table(table, place / "part-0.parquet", row_group_size=250)
        (folder / "_SUCCESS").touch()
    return folder


def check_every_way(model: str, run_folder: Path, models: Path, data: Path, place: Path, within: float) -> None:
    """Asserts that every way of scoring `data` gives the trainer's scores.

    The ways are predict, the three transports, the load test and score.
    """
    expected = load_trained(run_folder).predict(data).reshape(-1)
    with ServerProcess(models, place / "store", place / "server.log") as server:
        lines = emberline("predict", model, "--url", server.url, "--data", str(data), "--rows", "50", "--skip", "3")
        scores = [np.ravel(json.loads(line.split("\t")[1]))[0] for line in lines.splitlines()]
        assert np.abs(np.array(scores) - expected[3:53]).max() <= within
        for transport, found in ask_all(server.url, server.grpc, model, requests_of(server.url, model, data, 500)):
            assert np.abs(found.reshape(-1) - expected[:500]).max() <= within, transport
        run(
            *(sys.executable, "-m", "loadtest", "--model", model, "--data", str(data), "--url", server.url),
            *("--grpc", server.grpc, "--users", "1", "--items", "8", "--seconds", "1"),
            *("--json", str(place / "figures.json")),
        )
    figures = json.loads((place / "figures.json").read_text())
    assert {kind: (entry["failures"], entry["requests"] > 0) for kind, entry in figures.items()} == dict.fromkeys(
        ("http_binary", "http_json", "grpc"), (0, True)
    )
    target = place / "scores.parquet"
    emberline("score", "--model", str(models / model), "--quiet", str(data), str(target))
    assert np.abs(pq.read_table(target)["score"].to_numpy() - expected).max() <= within


def test_the_documented_shop_is_scored_as_it_was_trained(tmp_path: Path) -> None:
    """The next test has every other way too, each with processes of its own."""
    pq.write_table(shop_rows(ROWS, 1), tmp_path / "clicks.parquet")
    pq.write_table(shop_rows(800, 2), tmp_path / "test.parquet")
    models, build, target = tmp_path / "models", tmp_path / "run", tmp_path / "scores.parquet"
    train(parse_text(shop_config()), tmp_path / "clicks.parquet", output=build, repository=models, progress=False)
    arguments = ["--model", str(models / "shop"), "--quiet", str(tmp_path / "test.parquet"), str(target)]
    CliRunner().invoke(score.score, arguments, catch_exceptions=False)
    expected = load_trained(build).predict(tmp_path / "test.parquet").reshape(-1)
    assert np.abs(pq.read_table(target)["score"].to_numpy() - expected).max() <= 1e-4


@pytest.mark.long
def test_the_documented_shop_is_trained_published_served_and_asked(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(shop_config())
    pq.write_table(shop_rows(ROWS, 1), tmp_path / "clicks.parquet")
    pq.write_table(shop_rows(800, 2), tmp_path / "test.parquet")
    build, models = tmp_path / "run", tmp_path / "models"
    emberline(
        *("train", str(tmp_path / "shop.yaml"), "--data", str(tmp_path / "clicks.parquet")),
        *("--output", str(build), "--repository", str(models), "--quiet"),
    )
    emberline("update", str(build), "--data", str(tmp_path / "test.parquet"), "--repository", str(models), "--quiet")
    # The shop publishes bf16 and int8 rows, and the trainer's scores are those of float32.
    check_every_way("shop", build, models, tmp_path / "test.parquet", tmp_path, within=1e-4)


@pytest.mark.long
def test_dates_and_timestamps_are_the_same_times_on_every_way(tmp_path: Path) -> None:
    (tmp_path / "dated.yaml").write_text(DATED)
    build, models = tmp_path / "run", tmp_path / "models"
    data = write_days(tmp_path / "clicks", ["2026-01-01", "2026-01-02", "2026-01-03"], "us")
    emberline(
        *("train", str(tmp_path / "dated.yaml"), "--data", str(data), "--valid", "0.1"),
        *("--output", str(build), "--repository", str(models), "--quiet"),
    )
    update = ("update", str(build), "--repository", str(models), "--quiet", "--data")
    # The same times in another unit are the same times.
    newer = write_days(tmp_path / "newer", ["2026-01-03", "2026-01-04"], "ms")
    emberline(*update, str(newer))
    check_every_way("dated", build, models, newer, tmp_path, within=1e-6)
    for unit in ("s", "ms", "ns"):
        again = write_days(tmp_path / unit, ["2026-01-03", "2026-01-04"], unit)
        trained = load_trained(build)
        assert np.array_equal(trained.predict(again), trained.predict(newer))

    # Integers are no times, on no way.
    part = newer / "date=2026-01-03" / "part-0.parquet"
    table = pq.read_table(part, partitioning=None)
    raw = table.set_column(1, "at", table["at"].cast(pa.int64())).append_column("date", table["at"].cast(pa.date32()))
    pq.write_table(raw, tmp_path / "raw.parquet")
    words = "'at' of the input 'at' holds int64 (integer); expected timestamp, as in training"
    with pytest.raises(AssertionError) as caught:
        emberline(*update, str(tmp_path / "raw.parquet"))
    assert words in str(caught.value)
    with pytest.raises(AssertionError) as caught:
        emberline(
            "score", "--model", str(models / "dated"), str(tmp_path / "raw.parquet"), str(tmp_path / "no.parquet")
        )
    assert words in str(caught.value)
    assert not (tmp_path / "no.parquet").exists()
