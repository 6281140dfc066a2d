"""`emberline init`: how text is laid out, and what it says when that is not known."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emberline.cli.frame import command
from emberline.cli.predict import _from_file
from storage.errors import ConfigError
from storage.features import InputSpec


def init(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["init", *map(str, arguments), "--label", "y"])


def refusal(*arguments: object) -> str:
    error = init(*arguments).exception
    assert isinstance(error, ConfigError)
    return str(error)


def write(path: Path, delimiter: str = ",", *, header: bool = True, price: str = "1,5") -> Path:
    lines = [delimiter.join(("user", "price", "y"))] if header else []
    lines += [delimiter.join((str(row % 20), price, str(row % 3 % 2))) for row in range(200)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("delimiter", [";;", "", "é", "\\t"])
def test_a_delimiter_that_is_none_is_refused_by_its_name(tmp_path: Path, delimiter: str) -> None:
    said = refusal(write(tmp_path / "rows.csv", ";"), "--delimiter", delimiter)
    assert said.startswith("data: delimiter: expected one ASCII character")


def test_another_delimiter_is_guessed_where_the_lines_do_not_fit_the_header(tmp_path: Path) -> None:
    assert refusal(write(tmp_path / "rows.csv", ";")).endswith("is there another delimiter? add --delimiter ';'")


def test_the_layout_of_a_yaml_is_taken_over_and_named_where_it_is_missing(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.txt", header=False, price="2")
    assert "data.format" in refusal(data)
    assert refusal(data).endswith("(in a YAML file, as the section `data:`, with --data-config)")
    (tmp_path / "layout.yaml").write_text("data: {format: csv, columns: [user, price, y]}")
    done = init(data, "--data-config", tmp_path / "layout.yaml", "--delimiter", ",")
    assert done.exit_code == 0, done.exception
    assert 'data: {"format": "csv", "delimiter": ",", "columns": ["user", "price", "y"]}' in done.stdout
    assert f"--data {data} --data-config THIS.yaml --rows 5" in done.stdout


def test_a_file_with_a_header_only_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,y\n")
    assert refusal(tmp_path / "rows.csv") == f"{tmp_path / 'rows.csv'}: the data has no rows; give more data"


def test_predict_asks_for_the_delimiter_of_the_draft(tmp_path: Path) -> None:
    data, wanted = write(tmp_path / "rows.csv", ";", price="2"), [InputSpec(name="user", dtype="INT64")]
    with pytest.raises(ConfigError, match=r"wants the column 'user'.*another delimiter.* with --data-config"):
        _from_file(data, None, wanted, 0, 1)
    (tmp_path / "rows.yaml").write_text(init(data, "--delimiter", ";").stdout)
    assert _from_file(data, tmp_path / "rows.yaml", wanted, 3, 2) == [{"user": 3}, {"user": 4}]


def test_predict_sends_nulls_only_for_columns_that_missing_columns_names(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,prise\n1,2.5\n")
    price = InputSpec(name="price", dtype="FP32", missing="null")
    wanted = [InputSpec(name="user", dtype="INT64"), price]
    with pytest.raises(ConfigError, match=r"rows.csv: input 'price' .* did you mean 'prise'.*the file has: user "):
        _from_file(tmp_path / "rows.csv", None, wanted, 0, 1)
    (tmp_path / "rows.yaml").write_text("data: {missing_columns: {price: null}}")
    rows = _from_file(tmp_path / "rows.csv", tmp_path / "rows.yaml", wanted, 0, 1)
    assert rows == [{"user": 1, "price": None}]
