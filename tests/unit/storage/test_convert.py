"""Rows of any format become one Parquet file, which is there when it is complete, and not before."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.data import command
from storage.data import DataOptions, DataRows, convert
from storage.data.formats import delimited
from storage.errors import ConfigError, InvalidInput, StoreError


def clicks(path: Path, rows: int = 1000, last: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{number:04},{number / 4},1 2,{number % 2}\n" for number in range(rows))
    path.write_text("user,price,tags,label\n" + "".join(lines) + last)
    return path


def run(*arguments: object) -> str:
    done = CliRunner().invoke(command, ["convert", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_text_becomes_parquet_of_the_asked_types_and_row_groups(tmp_path: Path) -> None:
    clicks(tmp_path / "in" / "date=2026-01-01" / "a.csv")
    clicks(tmp_path / "in" / "date=2026-01-02" / "a.csv", 500)
    out = tmp_path / "out.parquet"
    printed = run(
        *(tmp_path / "in", out, "--quiet", "--row-group-rows", 400, "--list-delimiter", " "),
        *("--type", "user=string", "--type", "price=float32", "--type", "tags=list<int64>", "--type", "date=date32"),
    )
    assert "wrote 1,500 rows" in printed
    with pq.ParquetFile(out) as file:
        assert [file.metadata.row_group(index).num_rows for index in range(4)] == [400, 400, 400, 300]
        table = file.read()
    assert [str(kind) for kind in table.schema.types] == [
        "string",
        "float",
        "list<element: int64>",
        "int64",
        "date32[day]",
    ]
    assert table.slice(1001, 1).to_pylist()[0]["user"] == "0001"
    assert table["tags"][3].as_py() == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.parquet"]


def test_other_formats_and_types(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3], "x": [0.5, None, 2.0]})
    report = convert(table, tmp_path / "a.parquet", DataOptions(types={"id": "int32"}))
    assert report.rows == 3
    assert pq.read_table(tmp_path / "a.parquet").equals(
        table.cast(pa.schema([("id", pa.int32()), ("x", pa.float64())]))
    )
    (tmp_path / "a.libsvm").write_text("1 3:4\n0 7:1 9:2\n")
    run(tmp_path / "a.libsvm", tmp_path / "b.parquet", "--quiet")
    assert pq.read_table(tmp_path / "b.parquet").to_pydict() == {
        "label": [1.0, 0.0],
        "indices": [[3], [7, 9]],
        "values": [[4.0], [1.0, 2.0]],
    }


def test_a_value_that_does_not_fit_leaves_nothing_behind_and_is_named(tmp_path: Path) -> None:
    path = clicks(tmp_path / "a.csv", 200_000, "x,1,2,0\n")
    with pytest.raises(InvalidInput, match=r"a.csv: line 200002, column 'user': 'x' is no int64"):
        convert(path, tmp_path / "out.parquet", DataOptions(types={"user": "int64"}))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.csv"]
    with pytest.raises(ConfigError, match=r"data.types: there is no column 'usr'; did you mean 'user'\?"):
        convert(path, tmp_path / "out.parquet", DataOptions(types={"usr": "string"}))


def test_a_full_disk_ends_it_with_the_rows_that_were_written(tmp_path: Path) -> None:
    path = clicks(tmp_path / "a.csv", 200_000)
    # the unfinished file is the device that is always full
    (tmp_path / ".out.parquet.part").symlink_to("/dev/full")
    with pytest.raises(
        StoreError, match=r"out.parquet: cannot be written after [0-9,]+ of 200,000 rows: .*[Nn]o space"
    ):
        convert(path, tmp_path / "out.parquet", row_group_rows=50_000)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.csv"]


def test_files_with_more_columns_than_the_first_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user\n1\n")
    (tmp_path / "b.csv").write_text("user,item\n1,2\n")
    with pytest.raises(ConfigError, match=r"b.csv: has the column 'item', which .*a.csv has not"):
        convert(tmp_path, tmp_path / "out.parquet")


def test_the_command_names_wrong_options_and_its_help_shows_examples(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["convert", "--help"])
    examples = re.findall(r"emberline data convert .*", done.output)
    assert len(examples) >= 5
    path = clicks(tmp_path / "a.csv")
    with pytest.raises(ConfigError, match=r"data: types: column 'user': 'integr' is no type; did you mean"):
        run(path, tmp_path / "b.parquet", "--type", "user=integr")
    (tmp_path / "model.yaml").write_text("data: {delimter: ';'}\n")
    with pytest.raises(ConfigError, match=r"delimter: unknown key; did you mean 'delimiter'\?"):
        run(path, tmp_path / "b.parquet", "--data-config", tmp_path / "model.yaml")
    done = CliRunner().invoke(command, ["convert", str(path), str(path)])
    assert ".csv means CSV; expected a name such as a.parquet" in str(done.exception)
    (tmp_path / "b.parquet").touch()
    done = CliRunner().invoke(command, ["convert", str(path), str(tmp_path / "b.parquet")])
    assert "is there already; --overwrite replaces it" in str(done.exception)


def test_integers_that_no_int64_holds_stay_distinct(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("key,long,signed,real\n9223372036854775809,100000000000000000001,-1,1e30\n" + "7,8,2,1\n")
    with path.open("a") as file:
        file.write("18446744073709551615,100000000000000000002,9223372036854775808,9223372036854775808\n")
    convert(path, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert [str(kind) for kind in table.schema.types] == ["uint64", "string", "string", "double"]
    assert table["key"].to_pylist() == [2**63 + 1, 7, 2**64 - 1]
    assert table["long"].to_pylist() == ["100000000000000000001", "8", "100000000000000000002"]


def test_types_are_inferred_from_rows_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("p,t\n" + "".join(f"{row},{row}\n" for row in range(9000)) + "2.5,late\n")
    options = DataOptions(block_rows=1000)
    convert(path, tmp_path / "out.parquet", options)
    table = pq.read_table(tmp_path / "out.parquet")
    assert [str(kind) for kind in table.schema.types] == ["double", "string"]
    assert table.slice(8999).to_pylist() == [{"p": 8999.0, "t": "8999"}, {"p": 2.5, "t": "late"}]

    monkeypatch.setattr(delimited, "_SAMPLE_BYTES", 4000)  # less than the file has: some rows are not looked at
    path.write_text("p\n" + "".join(f"{row}\n" for row in range(1000, 9950)) + "2.5\n" + "1\n" * 2050)
    assert str(DataRows.open(path, None, options).schema.field("p").type) == "int64"
    with pytest.raises(InvalidInput, match=r"line 8952, column 'p': '2.5' is no int64, .* data.types: {p: double}, or"):
        convert(path, tmp_path / "out2.parquet", options)
    convert(path, tmp_path / "out3.parquet", DataOptions(block_rows=1000, types={"p": "double"}))


def test_text_that_is_not_utf_8_is_no_binary_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"user,item\n" + b"1,Z\n" * 2000 + b"2,Z\xfcrich\n")
    with pytest.raises(ConfigError, match=r"a.csv.*: line 2002, column 'item': the text is not UTF-8"):
        convert(path, tmp_path / "out.parquet", DataOptions(block_rows=1000))
    convert(path, tmp_path / "out.parquet", DataOptions(types={"item": "binary"}))
