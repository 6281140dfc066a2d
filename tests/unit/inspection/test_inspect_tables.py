"""`emberline inspect --table` prints an analysis, writes it as JSON, Parquet and HTML, and refuses what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.inspect import command
from emberline.inspection import source
from storage.errors import CheckpointError, ConfigError, InvalidInput, NotFound
from tests.support.html_page import Page
from tests.unit.inspection.conftest import COUNTS, ITEMS, NORMS, STAMPS, TICKS, WAITING, planted_rows

ROOT = Path(__file__).parents[3]
TINY = ROOT / "model_repo" / "tiny"


def inspect(*arguments: str | Path) -> str:
    runner = CliRunner(env={"COLUMNS": "200"})
    return runner.invoke(command, list(map(str, arguments)), catch_exceptions=False, standalone_mode=False).output


def cells(output: str) -> list[list[str]]:
    """Returns the cells of each line, which two spaces or more divide."""
    return [re.split(r"  +", line.strip()) for line in output.splitlines()]


def test_the_analysis_of_a_run_is_printed(planted: Path) -> None:
    output = inspect(planted, "--tables")
    rows = cells(output)
    assert ["items", "100", "4", "fp32", "7.8 KiB", "40", "1,450", "84.8%"] in rows
    assert ["2 to <4", "60", "60.0%", "8.3%", "█" * 40] in rows
    assert ["2 (now)", "100", "97.32%", "6.2 KiB"] in rows
    assert ["norm below 0.001", "30", "30.0%", "4.14%", "1.9 KiB"] in rows
    assert ["last use 2 or more publishes ago", "50", "50.0%", "6.90%", "3.1 KiB"] in rows
    assert ["80%", "9", "9.0%", "342 B"] in [row[:4] for row in rows]
    for text in (
        "ids 0 to 297",
        "optimizer adagrad: 4 values a row; admit_after 2; 40 ids wait for a row, looked up 40 times",
        "p10 2, median 2, p90 5, p99 20, p99.9 1,000, largest 1,000",
        "near zero (norm below 0.001): 30.00% of the rows; all zeros: 20.00%",
        "1% of ids make 69.0%",
        "feature word: 1,000 buckets, 500 ids seen; about 693 values gave them, so 27.83% are expected to collide",
    ):
        assert text in output


def test_a_run_alone_lists_its_tables(planted: Path) -> None:
    output = inspect(planted)
    assert ["items", "4", "adagrad", "4", "2", "100"] in cells(output)
    assert f"emberline inspect {planted} --tables" in output


def test_a_version_without_counts_has_no_advice_that_needs_them() -> None:
    output = inspect(TINY, "--table", "words")
    assert "no use was counted" in output
    assert "L2 norm of a row" in output
    for text in ("admission thresholds", "memory of a server", "coverage of lookups", "approximate"):
        assert text not in output
    assert inspect(TINY / "1", "--table", "words").splitlines()[1:] == output.splitlines()[1:]


def test_json_has_the_figures(planted: Path, tmp_path: Path) -> None:
    printed = json.loads(inspect(planted, "--table", "items", "--json", "-"))
    (table,) = printed["tables"]
    assert (table["name"], table["rows"], table["lookups"], table["waiting"]["ids"]) == ("items", 100, 1450, 40)
    assert table["counts"]["quantiles"]["0.99"] == 20
    assert {entry["admit_after"]: entry["rows"] for entry in table["admit_after_would_keep"]}[10] == 10
    assert table["bytes_by_dim_and_row_type"]["4"]["int8"] == 800
    written = tmp_path / "figures.json"
    assert f"wrote {written}" in inspect(planted, "--table", "items", "--json", written)
    assert json.loads(written.read_text()) == printed


def test_parquet_has_every_row_and_the_waiting_ids(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PIECE_BYTES", 1)
    monkeypatch.setattr(source, "LEAST_ROWS", 30)
    target = tmp_path / "items.parquet"
    inspect(planted, "--table", "items", "--parquet", target)
    assert pq.ParquetFile(target).num_row_groups > 1
    table = pq.read_table(target)
    assert table.schema.names == ["id", "row", "count", "stamp", "tick", "norm", "optimizer"]
    assert table.schema.metadata[b"emberline.counts"] == b"exact"
    assert str(table.schema.field("row").type).startswith("fixed_size_list<")
    for name, wanted in (("id", ITEMS), ("count", COUNTS), ("stamp", STAMPS), ("tick", TICKS), ("norm", NORMS)):
        assert np.array_equal(table.column(name).to_numpy(), wanted), name
    rows = np.array(table.column("row").to_pylist(), np.float32)
    assert np.array_equal(rows, planted_rows())
    assert table.column("optimizer").to_pylist() == [[0.5] * 4] * 100
    waiting = pq.read_table(tmp_path / "items.waiting.parquet")
    assert waiting.column("id").to_pylist() == WAITING.tolist()
    assert waiting.column("count").to_pylist() == [1] * 40
    # The second table has no waiting ids, and those of the first do not stay beside it.
    inspect(planted, "--table", "words", "--parquet", target, "--overwrite")
    assert pq.read_table(target).num_rows == 500
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["items.parquet", "run"]


def test_parquet_of_a_published_table(tmp_path: Path) -> None:
    target = tmp_path / "words.parquet"
    inspect(TINY, "--table", "words", "--parquet", target)
    table = pq.read_table(target)
    assert table.schema.names == ["id", "row", "count", "norm"]
    assert table.schema.metadata[b"emberline.counts"] == b"approximate"
    rows = np.array(table.column("row").to_pylist(), np.float64)
    assert np.allclose(table.column("norm").to_numpy(), np.linalg.norm(rows, axis=1), rtol=1e-12)


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(planted: Path, tmp_path: Path) -> None:
    target = tmp_path / "tables.html"
    inspect(planted, "--tables", "--html", target)
    text = target.read_text(encoding="utf-8")
    page = Page(text)
    tags = [tag for tag, _ in page.seen]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\(|@import", text)
    assert [attrs["id"] for tag, attrs in page.seen if tag == "section"] == ["items", "words"]
    # items: coverage, occurrences, waiting ids, ticks, publishes, norms; words has none that wait and no tick.
    assert tags.count("svg") == 6 + 4
    assert "prefers-color-scheme: dark" in text
    for title in ("60 rows (60.00%), 8.28% of the lookups", "of the ids make 80% of the lookups"):
        assert title in text
    numbers = [
        float(value) for _, attrs in page.seen for key in ("x", "y", "width", "height") if (value := attrs.get(key))
    ]
    assert numbers
    assert all(0 <= value <= 520 for value in numbers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "x.html"], "--html belongs to an analysis of tables; give --table NAME or --tables too"),
        (["--data", "DATA"], "--data belongs to an analysis of tables"),
        (["--tables", "--table", "items"], "give one of the two"),
        (["--tables", "--parquet", "x.parquet"], "--parquet writes one table"),
        (["--table", "items", "--table", "words", "--parquet", "x.parquet"], "--parquet writes one table"),
        (["--table", "items", "--json", "x", "--html", "x"], "name the same file"),
        (["--table", "items", "--near-zero", "0"], "--near-zero"),
        (["--tabel", "items"], "--table"),
    ],
)
def test_options_that_do_not_go_together(planted: Path, arguments: list[str], message: str) -> None:
    given = [str(planted) if text == "DATA" else text for text in arguments]
    with pytest.raises(click.UsageError) as raised:
        inspect(planted, *given)
    assert message in raised.value.format_message()


def test_errors_name_the_option_or_the_folder(planted: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no table 'itmes'; did you mean 'items'\?"):
        inspect(planted, "--table", "itmes")
    with pytest.raises(InvalidInput, match=r"--html .*: there is no folder"):
        inspect(planted, "--tables", "--html", tmp_path / "nowhere" / "x.html")
    (tmp_path / "x.html").touch()
    with pytest.raises(InvalidInput, match="is there already; --overwrite replaces it"):
        inspect(planted, "--tables", "--html", tmp_path / "x.html")
    with pytest.raises(NotFound, match="neither the output folder of a training"):
        inspect(tmp_path, "--tables")
    with pytest.raises(NotFound, match="is a repository; give one of its models: tiny"):
        inspect(TINY.parent, "--tables")
    with pytest.raises(ConfigError, match="no feature of these tables hashes into buckets"):
        inspect(planted, "--table", "items", "--data", planted)
    (planted / "checkpoints" / "commit-000000001" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="another release"):
        inspect(planted, "--tables")


@pytest.mark.slow
def test_interrupted_it_leaves_no_file(planted: Path, tmp_path: Path) -> None:
    target = tmp_path / "items.parquet"
    code = f"""
import os, signal
from emberline.inspection import parquet, source
source.LEAST_ROWS, source.PIECE_BYTES = 10, 1
plain = parquet._arrays
def interrupted(facts, piece):
    if piece.ids[0] > 100:
        os.kill(os.getpid(), signal.{signal.SIGINT.name})
    return plain(facts, piece)
parquet._arrays = interrupted
from emberline.cli.frame import main
main(["inspect", {str(planted)!r}, "--table", "items", "--parquet", {str(target)!r}])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip().splitlines()[-1:]) == (130, ["emberline: interrupted"]), done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
