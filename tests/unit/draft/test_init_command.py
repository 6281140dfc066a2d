"""`emberline init`: how text is laid out, and what it says when that is not known."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emberline.cli.frame import command
from emberline.cli.predict import rows_from_file
from storage.errors import ConfigError
from storage.features import InputSpec
from trainer import train
from trainer.config import TrainConfig, load_config


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
    data = write(tmp_path / "rows.csv", ";")
    assert refusal(data).endswith("is there another delimiter? add --delimiter ';'")
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(data.read_bytes()))
    assert refusal(tmp_path / "rows.csv.gz").endswith("is there another delimiter? add --delimiter ';'")


def test_the_layout_of_a_yaml_is_taken_over_and_named_where_it_is_missing(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.txt", header=False, price="2")
    assert "data.format" in refusal(data)
    assert refusal(data).endswith("(in a YAML file, as the section `data:`, with --data-config)")
    (tmp_path / "layout.yaml").write_text("data: {format: csv, columns: [user, price, y]}")
    done = init(data, "--data-config", tmp_path / "layout.yaml", "--delimiter", ",")
    assert done.exit_code == 0, done.exception
    assert 'data: {"format": "csv", "delimiter": ",", "columns": ["user", "price", "y"]}' in done.stdout
    assert f"--data {data} --data-config THIS.yaml --rows 5" in done.stdout


def test_the_commands_of_the_draft_take_a_file_with_a_space_in_its_name(tmp_path: Path) -> None:
    data = write(tmp_path / "my rows.csv", price="2")
    assert init(data).stdout.count(f"--data '{data}' ") == 2


def test_a_file_with_a_header_only_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,y\n")
    assert refusal(tmp_path / "rows.csv") == f"{tmp_path / 'rows.csv'}: the data has no rows; give more data"


def test_predict_asks_for_the_delimiter_of_the_draft(tmp_path: Path) -> None:
    data, wanted = write(tmp_path / "rows.csv", ";", price="2"), [InputSpec(name="user", dtype="INT64")]
    with pytest.raises(ConfigError, match=r"wants the column 'user'.*another delimiter.* with --data-config"):
        rows_from_file(data, None, wanted, 0, 1)
    (tmp_path / "rows.yaml").write_text(init(data, "--delimiter", ";").stdout)
    assert rows_from_file(data, tmp_path / "rows.yaml", wanted, 3, 2) == [{"user": 3}, {"user": 4}]
    assert rows_from_file(f"{tmp_path}/row?.csv", tmp_path / "rows.yaml", wanted, 3, 1) == [{"user": 3}]


def test_predict_sends_nulls_only_for_columns_that_missing_columns_names(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,prise\n1,2.5\n")
    price = InputSpec(name="price", dtype="FP32", missing="null")
    wanted = [InputSpec(name="user", dtype="INT64"), price]
    with pytest.raises(ConfigError, match=r"rows.csv: input 'price' .* did you mean 'prise'.*the file has: user "):
        rows_from_file(tmp_path / "rows.csv", None, wanted, 0, 1)
    (tmp_path / "rows.yaml").write_text("data: {missing_columns: {price: null}}")
    rows = rows_from_file(tmp_path / "rows.csv", tmp_path / "rows.yaml", wanted, 0, 1)
    assert rows == [{"user": 1, "price": None}]


def test_two_labels_and_the_items_columns_are_options_of_the_command(tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("user,y,sold\n" + "".join(f"{row % 20},{row % 3 % 2},{row % 7 % 2}\n" for row in range(200)))
    done = init(data, "--label", "sold", "--model", "ple")
    assert done.exit_code == 0, done.exception
    assert "  - {name: sold, label: sold}" in done.stdout
    assert refusal(data, "--model", "two_tower").startswith("--model two_tower has to know the item's columns")


def columns_of(tmp_path: Path, **columns: list[str]) -> TrainConfig:
    """Writes text as it is, and returns the drafted configuration."""
    columns["user id"] = [str(row % 20) for row in range(200)]
    columns["y"] = [str(row % 3 % 2) for row in range(200)]
    lines = [columns, *zip(*(values * (200 // len(values)) for values in columns.values()), strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(",".join(line) for line in lines) + "\n", encoding="utf-8")
    done = init(tmp_path / "rows.csv")
    assert done.exit_code == 0, done.exception
    (tmp_path / "rows.yaml").write_text(done.stdout, encoding="utf-8")
    return load_config(tmp_path / "rows.yaml")


def test_words_for_no_value_do_not_make_numbers_text(tmp_path: Path) -> None:
    price = ["NA", *(f"{row / 7:.3f}" for row in range(98)), "n/a"]
    made = columns_of(tmp_path, price=price, age=["NaN", "31", "52", "18"], kind=["NA", "new", "old", "used"])
    dtypes = {entry.name: entry.dtype for entry in made.inputs}
    assert (dtypes["price"], dtypes["age"], dtypes["kind"]) == ("FP32", "FP32", "BYTES")
    assert set(made.data.null_values) == {"", "NA", "n/a"}
    assert "price: numbers, where NA, n/a are no value" in (tmp_path / "rows.yaml").read_text()
    report = train(made, tmp_path / "rows.csv", output=tmp_path / "run", progress=False)
    assert report.rows == 200 * made.training.epochs


def test_quoted_words_are_values_and_leave_the_column_a_text(tmp_path: Path) -> None:
    made = columns_of(tmp_path, price=['"NA"', "1.5", "2.5", "3.5"])
    assert made.data.null_values == ("",)
    assert next(entry for entry in made.inputs if entry.name == "price").dtype == "BYTES"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([f'"{row},{row % 10}"' for row in range(20)], "price: looks like numbers, taken as ids"),
        ([f'"1,{row:03}"' for row in range(20)], "price: looks like numbers, taken as ids"),
        ([f'"[{row % 2}, {row % 3}, 3]"' for row in range(20)], "price: JSON, each text taken as one id"),
    ],
)
def test_numbers_with_commas_and_json_are_not_split(tmp_path: Path, values: list[str], said: str) -> None:
    made = columns_of(tmp_path, price=values)
    assert [step.op for step in made.spec.feature("price").transforms] == ["hash", "fill"]
    assert said in (tmp_path / "rows.yaml").read_text()


def test_whole_fractions_that_may_be_ids_are_named(tmp_path: Path) -> None:
    columns_of(tmp_path, user_id=["61.0", "7.0", "12.0", "900.0", ""], rating=["1.0", "2.0"], item_id=["1.5", "2.0"])
    draft = (tmp_path / "rows.yaml").read_text().replace("\n#   ", " ")
    assert draft.count("if these are ids, write 123 for 123.0 and draft anew") == 1
    assert re.search(r"# user_id: numbers.*; if these are ids", draft)


def test_codes_with_leading_zeros_are_texts_and_names_are_made_to_fit(tmp_path: Path) -> None:
    long = "x" * 90
    made = columns_of(
        tmp_path,
        code=["007", "07", "12", "5"],
        предмет=["a", "b"],
        **{long + "a": ["u", "v"], long + "b": ["u", "w"], "größe:b": ["s", "t"]},
    )
    assert {entry.name: entry.source for entry in made.inputs} == {
        "code": "code",
        "column_2": "предмет",
        "x" * 48: long + "a",
        "x" * 48 + "_2": long + "b",
        "gro_e_b": "größe:b",
        "user_id": "user id",
    }
    assert made.spec.input("code").dtype == "BYTES"
    assert made.spec.feature("user_id").output == "ids"
    report = train(made, tmp_path / "rows.csv", output=tmp_path / "run", progress=False)
    assert report.rows == 200 * made.training.epochs
