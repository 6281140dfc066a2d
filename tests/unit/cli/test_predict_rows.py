"""Rows that `emberline predict --instances` sends: times may be text, everything else stays as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from emberline.cli.predict import rows_from_file, with_times
from storage.errors import InvalidInput

METADATA = {
    "inputs": [
        {"name": "at", "datatype": "INT64", "shape": [-1, 1], "parameters": {"column_type": "timestamp"}},
        {"name": "seen", "datatype": "INT64", "shape": [-1, -1], "parameters": {"column_type": "timestamp"}},
        {"name": "seen.lengths", "datatype": "INT64", "shape": [-1]},
        {"name": "item", "datatype": "BYTES", "shape": [-1, 1], "parameters": {"column_type": "string"}},
    ]
}
NOON_US = 1_769_860_800_000_000  # date -u -d '2026-01-31 12:00' +%s


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("2026-01-31 12:00:00", NOON_US),
        ("2026-01-31T12:00:00.000001Z", NOON_US + 1),
        ("2026-01-31T13:00+01:00", NOON_US),
        ("2026-01-31", NOON_US - 43_200_000_000),
        ("1969-12-31 23:59:59.5", -500_000),
        (NOON_US, NOON_US),
        (None, None),
    ],
)
def test_a_time_is_sent_in_microseconds(value: Any, sent: int | None) -> None:
    rows = [{"at": value, "seen": [value, NOON_US], "item": "2026-01-31"}]
    assert with_times(rows, METADATA) == [{"at": sent, "seen": [sent, NOON_US], "item": "2026-01-31"}]


def test_text_that_is_no_time_is_refused_with_its_input_and_row() -> None:
    with pytest.raises(InvalidInput, match=r"'at', row 1: 'noon' is no time; expected text such as '2026-") as caught:
        with_times([{"at": 1}, {"at": "noon"}], METADATA)
    assert caught.value.field == "at"


def test_rows_that_are_no_objects_are_left_to_the_server() -> None:
    assert with_times([7, [1]], METADATA) == [7, [1]]


def test_lines_of_json_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"item": 1}\n{"item": "a\u2028b"}\n{"item": 3}\n', encoding="utf-8")
    assert rows_from_file(path, None, [], 1, 2) == [{"item": "a\u2028b"}, {"item": 3}]
    assert rows_from_file(path, None, [], 3, 2) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"item": 1}\n\n{"item": 2}\n', "rows.jsonl: line 2 is not JSON"),
        (b'{"item": 1}\n{"item": \n', "rows.jsonl: line 2 is not JSON"),
        (b'{"item": "\xff"}\n', "rows.jsonl: not UTF-8: byte 10 cannot be read"),
    ],
)
def test_a_line_that_is_no_json_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=re.escape(message)):
        rows_from_file(path, None, [], 0, 10)
