"""Fields that an entry of a stream lacks mean the same, whatever is read with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from storage.data.columns import Wanted
from storage.data.options import DataOptions
from storage.data.streams.messages import Messages
from storage.errors import ConfigError, InvalidInput
from storage.features import InputSpec

WANTED = Wanted(
    [
        InputSpec(name="user", dtype="INT64"),
        InputSpec(name="history", dtype="BYTES", kind="list"),
        InputSpec(name="price", dtype="FP32"),
    ],
    numbers={"clicked": "label"},
)
ENTRIES: list[dict[bytes, bytes]] = [
    {b"user": b"7", b"history": b"a|b", b"price": b"3.5", b"clicked": b"1"},
    {b"user": b"8", b"price": b"2", b"clicked": b"0"},
    {b"user": b"9", b"history": b"", b"clicked": b"1"},
]


def read(options: DataOptions, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Returns the rows of all entries, read in parts of these lengths."""
    messages, found, start = Messages(WANTED, options), [], 0
    for length in lengths:
        first = start
        table = messages.fields(ENTRIES[start : start + length], lambda row, first=first: f"entry {first + row}")  # type: ignore[misc]
        found += table.to_pylist()
        start += length
    return found


@pytest.mark.parametrize("lengths", [(3,), (1, 2), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize(("missing", "price"), [({}, None), ({"price": 0.25}, 0.25)])
def test_rows_do_not_depend_on_what_is_read_together(
    lengths: tuple[int, ...], missing: dict[str, float], price: float | None
) -> None:
    rows = read(DataOptions(missing_columns=missing, list_delimiter="|"), lengths)
    assert [row["user"] for row in rows] == [7, 8, 9]
    assert [row["history"] for row in rows] == [["a", "b"], None, None]  # an empty text is null
    assert [row["price"] for row in rows] == [3.5, 2.0, price]
    assert [row["clicked"] for row in rows] == [1.0, 0.0, 1.0]


def test_a_field_that_nobody_has_sent_is_an_error_unless_requests_may_lack_it() -> None:
    with pytest.raises(ConfigError, match="input 'history' wants the column 'history'"):
        Messages(WANTED, DataOptions()).fields(ENTRIES[1:2], lambda row: f"entry {row}")
    optional = [entry.model_copy(update={"missing": "null"}) for entry in WANTED.inputs]
    messages = Messages(replace(WANTED, inputs=optional), DataOptions())
    table = messages.fields([{b"user": b"1", b"clicked": b"0"}], lambda row: f"entry {row}")
    assert table.to_pylist() == [{"user": 1, "history": None, "price": None, "clicked": 0.0}]


def test_a_text_that_is_no_number_names_its_entry() -> None:
    messages = Messages(WANTED, DataOptions())
    with pytest.raises(InvalidInput, match="entry 1: column 'price'"):
        messages.fields([ENTRIES[0], {**ENTRIES[1], b"price": b"dear"}], lambda row: f"entry {row}")
