"""`emberline inspect` shows what files of rows hold, of any format, with their partitions."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.inspect import command
from storage.errors import ConfigError


def test_a_partitioned_folder_is_shown_with_its_partitions(tmp_path: Path) -> None:
    for day, user in (("2026-01-02", 7), ("2026-01-01", 8)):
        (tmp_path / f"date={day}").mkdir()
        pq.write_table(pa.table({"user": [user, 9]}), tmp_path / f"date={day}" / "part-0.parquet")
    done = CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)
    lines = [line.replace("│", " ").split() for line in done.output.splitlines()]
    assert "4 rows" in done.output
    assert ["date", "partition", "2026-01-01"] in lines
    assert ["user", "int64", "8"] in lines
    (tmp_path / "date=2026-01-01" / "b.csv").write_text("user\n1\n")
    with pytest.raises(ConfigError, match=r"1 CSV files \(date=2026-01-01/b.csv, ...\) and 2 of the kind Parquet"):
        CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)


def test_patterns_compressed_text_and_its_layout_are_shown(tmp_path: Path) -> None:
    for number in "123":
        (tmp_path / f"{number}.csv.gz").write_bytes(gzip.compress(f"user;city\n{number};Bonn\n9;\n".encode()))
    (tmp_path / "layout.yaml").write_text("data: {delimiter: ';'}\n")
    for place in (tmp_path / "[12].csv.gz", f"file://{tmp_path}/[12].*.gz"):
        arguments = [str(place), "--data-config", str(tmp_path / "layout.yaml")]
        done = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert "4 rows" in done.output
        assert ["city", "string", "Bonn"] in [line.replace("│", " ").split() for line in done.output.splitlines()]
    for path, words in (
        (tmp_path / "none-*.csv", "no file or folder matches"),
        (tmp_path / "layout.yaml", "kind YAML"),
    ):
        with pytest.raises(ConfigError, match=words):
            CliRunner().invoke(command, [str(path)], catch_exceptions=False)
