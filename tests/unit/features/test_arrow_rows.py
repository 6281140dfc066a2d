"""Tables of Arrow give the features of the columns that are made of them, whatever their layout, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import InvalidInput
from storage.features import FeatureBatch, FeatureEngine, FeatureSpec, column_from_arrow
from storage.features.arrow_rows import ArrowEngine, TableColumns
from tests.support.examples import examples

HASH = {"op": "hash", "seed": 3}
INPUTS: list[dict[str, Any]] = [
    {"name": "word", "dtype": "BYTES"},
    {"name": "filled", "dtype": "BYTES", "default": "none"},
    {"name": "bare", "dtype": "BYTES", "empty": "null"},
    {"name": "tags", "dtype": "BYTES", "kind": "list", "max_length": 6},
    {"name": "marks", "dtype": "BYTES", "kind": "list", "max_length": 6, "default": ["x", "y"]},
    {"name": "weights", "dtype": "FP32", "kind": "list", "max_length": 6},
    {"name": "number", "dtype": "INT64"},
    {"name": "key", "dtype": "UINT64"},
    {"name": "numbers", "dtype": "INT64", "kind": "list", "max_length": 6},
    {"name": "flag", "dtype": "BOOL"},
    {"name": "price", "dtype": "FP32", "missing": "null"},
    {"name": "prices", "dtype": "FP32", "kind": "list", "max_length": 6, "missing": "null"},
    {"name": "vector", "dtype": "FP32", "width": 2},
    {"name": "sure", "dtype": "BYTES", "nulls": "error"},
]
IDS: list[tuple[list[str], list[dict[str, Any]]]] = [
    (["word"], [HASH]),
    (["word"], [{"op": "hash", "seed": 4, "buckets": 50}, {"op": "modulo", "divisor": 7}]),
    (["word"], [{"op": "vocabulary", "values": ["a", "", "d-e-f"], "unknown": "absent"}]),
    (["word"], [{"op": "fill", "value": "nothing"}, HASH]),
    (["word"], [{"op": "split", "delimiter": "-", "max": 8}, HASH]),
    (["word"], [{"op": "is_null"}]),
    (["word"], [{"op": "pad", "length": 3, "value": "p"}, HASH]),
    (["filled"], [HASH]),
    (["bare"], [HASH]),
    (["tags"], [HASH]),
    (["tags"], [{"op": "truncate", "length": 2, "keep": "last"}, HASH]),
    (["tags"], [HASH, {"op": "truncate", "length": 1}]),
    (["tags"], [{"op": "pad", "length": 4, "value": ""}, HASH]),
    (["tags"], [{"op": "vocabulary", "values": ["a", "b"], "unknown": "absent"}]),
    (["marks"], [HASH]),
    (["word", "tags"], [{"op": "cross", "seed": 1, "max": 36}]),
    (["word", "number"], [{"op": "cross", "seed": 1, "buckets": 9, "max": 1}]),
    (["number"], []),
    (["key"], []),
    (["numbers"], []),
    (["flag"], []),
    (["price"], [{"op": "bucketise", "boundaries": [-1.0, 0.0, 2.0]}]),
    (["prices"], [{"op": "bucketise", "boundaries": [0.0]}]),
    (["sure"], [HASH]),
]
SPEC = FeatureSpec.model_validate(
    {
        "inputs": INPUTS,
        "features": [
            *(
                {"name": f"ids{place}", "inputs": names, "transforms": ops, "output": "ids", "table": "t"}
                for place, (names, ops) in enumerate(IDS)
            ),
            {"name": "cut", "inputs": ["tags"], "transforms": [HASH], "output": "ids", "table": "t", "pooling": "none",
             "length": 2},
            {"name": "weighed", "inputs": ["tags"], "transforms": [HASH], "output": "ids", "table": "t",
             "pooling": "weighted", "weights": "weights"},
            {"name": "log", "inputs": ["price"], "transforms": [{"op": "log"}], "output": "dense"},
            {"name": "price", "inputs": ["price"], "output": "dense"},
            {"name": "number", "inputs": ["number"], "transforms": [{"op": "log"}], "output": "dense"},
            {"name": "position", "inputs": ["word"], "transforms": [
                {"op": "vocabulary", "values": ["b", "a"], "unknown": 9}], "output": "dense"},
            {"name": "vector", "inputs": ["vector"], "output": "dense"},
        ],
    }
)  # fmt: skip
ENGINE = FeatureEngine(SPEC)
ARROW = ArrowEngine(ENGINE)

WORDS = ["", "a", "b", "d-e-f", "a longer word than eight bytes", "ü"]
INDICES = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()]


def check(table: Any) -> FeatureBatch:
    """Compares with the columns made one by one, and returns the features."""
    columns = {entry.name: column_from_arrow(table.column(entry.source), entry) for entry in SPEC.inputs}
    expected = ENGINE.run(columns, table.num_rows)
    found = ARROW.run(table)
    assert found.batch == table.num_rows
    assert found.dense.keys() == expected.dense.keys()
    for group, values in expected.dense.items():
        assert found.dense[group].tobytes() == values.tobytes(), group
    assert found.ids.keys() == expected.ids.keys()
    for name, bags in expected.ids.items():
        assert found.ids[name].values.tolist() == bags.values.tolist(), name
        assert found.ids[name].offsets.tolist() == bags.offsets.tolist(), name
        weights = found.ids[name].weights
        assert (weights is None) == (bags.weights is None)
        assert weights is None or bags.weights is None or weights.tobytes() == bags.weights.tobytes()
    return found


class Layouts:
    """Draws arrays with the layouts that Arrow allows."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def one_of(self, choices: list[Any]) -> Any:
        return choices[self.random.integers(len(choices))]

    def mask(self, rows: int) -> Any:
        return self.random.random(rows) < self.one_of([0.0, 0.3, 1.0])

    def text(self, rows: int, *, nulls: bool = True) -> Any:
        """Text, as it is or as a dictionary, with entries that no row has, that are there twice, or null."""
        kind, mask = self.one_of(TEXTS), self.mask(rows) if nulls else None
        if self.random.integers(2):
            return pa.array(self.random.choice(WORDS, rows), kind, mask=mask)
        known: list[Any] = [*WORDS, None] if nulls else WORDS
        entries = [self.one_of(known) for _ in range(self.one_of([1, 4, 40]))]
        index = pa.array(self.random.integers(0, len(entries), rows), self.one_of(INDICES), mask=mask)
        return pa.DictionaryArray.from_arrays(index, pa.array(entries, kind))

    def numbers(self, rows: int, kinds: list[Any], nulls: Any = None) -> Any:
        kind = self.one_of(kinds)
        values = self.random.integers(0, 100, rows).astype(kind.to_pandas_dtype())
        mask = self.mask(rows) if nulls is None else nulls
        return pa.array(values, kind, mask=mask)

    def floats(self, rows: int, *, nulls: bool = True) -> Any:
        kind = self.one_of([pa.float32(), pa.float64(), *(INTEGERS if nulls else [])])
        array = self.numbers(rows, [kind], None if nulls else np.zeros(rows, bool))
        return array.cast(kind)

    def rows_of(self, values: Any, offsets: Any) -> Any:
        """Lists; a null row may have values."""
        if self.random.integers(2):
            mask = pa.array(self.mask(len(offsets) - 1))
            return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=mask)
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)

    def offsets(self, rows: int) -> Any:
        """Lengths of up to 6, from a place on that may not be the first."""
        lengths = self.random.integers(0, 7, rows)
        return np.concatenate([[0], np.cumsum(lengths)]) + self.random.integers(3)

    def table(self, rows: int) -> Any:
        offsets = self.offsets(rows)
        # Weights go with tags, so neither of them has nulls.
        tags = self.text(int(offsets[-1]), nulls=False)
        other = self.offsets(rows)
        made = {
            "word": self.text(rows),
            "filled": self.text(rows),
            "bare": self.text(rows),
            "tags": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), tags),
            "marks": self.rows_of(self.text(int(other[-1])), other),
            "weights": pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), self.floats(int(offsets[-1]), nulls=False)
            ),
            "number": self.numbers(rows, INTEGERS),
            "key": self.numbers(rows, [pa.uint64(), pa.int64()]),
            "numbers": self.rows_of(self.numbers(int(other[-1]), INTEGERS), other),
            "flag": pa.array(self.random.integers(0, 2, rows).astype(bool), mask=self.mask(rows)),
            "price": self.floats(rows),
            "prices": self.rows_of(self.floats(int(other[-1])), other),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(2 * rows, np.float32)), 2),
            "sure": pa.array(self.random.choice(WORDS, rows), pa.string()).dictionary_encode(),
        }
        return pa.table(made)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(0, 40), skip=st.integers(0, 9))
def test_tables_give_the_features_of_their_columns(seed: int, rows: int, skip: int) -> None:
    check(Layouts(seed).table(rows + skip).slice(skip))


@pytest.mark.parametrize("seed", range(4))
def test_chunks_with_dictionaries_of_their_own(seed: int) -> None:
    layouts = Layouts(seed)
    chunks = [pa.array(words).dictionary_encode() for words in (["b", None, "a"], ["a", "ü", "ü"], ["zz", "b", None])]
    assert len({str(chunk.dictionary) for chunk in chunks}) == 3
    rows = layouts.table(9)
    table = rows.set_column(rows.schema.get_field_index("word"), "word", pa.chunked_array(chunks)).slice(1)
    plain = pa.chunked_array([chunk.cast(pa.string()) for chunk in chunks])
    expected = check(rows.set_column(rows.schema.get_field_index("word"), "word", plain).slice(1))
    for name, bags in check(table).ids.items():
        assert bags.values.tolist() == expected.ids[name].values.tolist(), name


def with_word(word: Any) -> Any:
    rows = Layouts(1).table(len(word))
    return rows.set_column(rows.schema.get_field_index("word"), "word", word)


@pytest.mark.parametrize("entries", [["a"], ["a", "b"] * 40])
@pytest.mark.parametrize(("kind", "index"), [(pa.int8(), -1), (pa.int32(), 80), (pa.uint64(), 2**63)])
def test_an_index_outside_of_its_dictionary_is_refused(entries: list[str], kind: Any, index: int) -> None:
    indices = pa.array([0, index, 0], kind)
    word = pa.DictionaryArray.from_arrays(indices, pa.array(entries), safe=False)
    with pytest.raises(InvalidInput, match="input 'word': an index that its dictionary has not") as caught:
        ARROW.run(with_word(word))
    assert caught.value.field == "word"


def test_an_index_under_a_null_may_be_anything() -> None:
    index = pa.Array.from_buffers(
        pa.int32(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 99, 1], np.int32))], null_count=1
    )
    word = pa.DictionaryArray.from_arrays(index, pa.array(["a", "b"]), safe=False)
    expected = check(with_word(pa.array(["a", None, "b"])))
    assert ARROW.run(with_word(word)).ids["ids0"].values.tolist() == expected.ids["ids0"].values.tolist()


def test_errors_name_the_input_and_its_row() -> None:
    rows = Layouts(2).table(3)

    def replaced(name: str, values: Any) -> Any:
        return rows.set_column(rows.schema.get_field_index(name), name, values)

    with pytest.raises(InvalidInput, match="input 'numbers', row 1: has 7 values, max_length is 6"):
        ARROW.run(replaced("numbers", pa.array([[1], [1] * 7, []])))
    with pytest.raises(InvalidInput, match="input 'price', row 2: the dense feature 'log' is not a finite float32"):
        ARROW.run(replaced("price", pa.array([1.0, None, float("inf")])))
    with pytest.raises(InvalidInput, match="input 'sure', row 1: null"):
        ARROW.run(replaced("sure", pa.array(["a", None, "b"]).dictionary_encode()))
    with pytest.raises(InvalidInput, match="the input 'word' of dtype BYTES"):
        ARROW.run(replaced("word", pa.array([1, 2, 3])))


def test_columns_are_made_when_they_are_asked_for() -> None:
    table = Layouts(3).table(5)
    columns = TableColumns(table, SPEC.inputs)
    assert list(columns) == [entry.name for entry in SPEC.inputs]
    assert len(columns) == len(SPEC.inputs)
    assert columns["number"] is columns["number"]
    assert columns["number"].rows == 5
