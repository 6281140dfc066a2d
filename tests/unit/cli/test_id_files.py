"""Files of ids are read as they are written: no value becomes another one on the way."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberline.cli.id_files import read_values, whole_numbers
from storage.errors import InvalidInput


def test_text_and_csv_keep_the_digits_that_they_have(tmp_path: Path) -> None:
    text, csv = tmp_path / "ids.txt", tmp_path / "ids.csv"
    text.write_bytes("\ufeff007\r\na\u2028b\n\n007\n12345678901234567890\n".encode())
    assert read_values(text) == ["007", "a\u2028b", "12345678901234567890"]
    csv.write_text("user,city\n007,x\n7,y\n1.0,z\n")
    assert read_values(csv, "user") == ["007", "7", "1.0"]


def test_integers_and_whole_floats_of_parquet_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"id": pa.array([7, None, 2**63 - 1])}), path)
    assert read_values(path) == ["7", str(2**63 - 1)]
    pq.write_table(pa.table({"id": pa.array([7.0, None])}), path)
    assert read_values(path) == ["7"]


@pytest.mark.parametrize("value", [0.5, 2.0**53, float("nan"), float("inf")])
def test_floats_that_may_be_rounded_are_refused(tmp_path: Path, value: float) -> None:
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"id": [1.0, value]}), path)
    with pytest.raises(InvalidInput, match="write the column as integers or text"):
        read_values(path)


def test_other_encodings_are_refused_by_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_bytes("anna\nj\xf6rg\n".encode("latin-1"))
    with pytest.raises(InvalidInput, match="is not UTF-8 text: byte 6"):
        read_values(path)


@pytest.mark.parametrize("text", ["1_000", "0x10", "1.0", "", str(2**63), "9" * 100])
def test_what_is_no_id_is_refused(text: str) -> None:
    """Python's own int() reads 1_000, which would erase the rows of another id."""
    with pytest.raises(InvalidInput, match=r"value 2, .* is no id \(int64\)"):
        whole_numbers(Path("ids.txt"), ["7", text])


def test_ids_are_signed_numbers_of_64_bits() -> None:
    assert whole_numbers(Path("ids.txt"), ["007", "-5", "+3", str(-(2**63))]) == [7, -5, 3, -(2**63)]
