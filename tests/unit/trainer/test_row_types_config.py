"""Row types as they are asked for: in a configuration, on the command line, and what a publisher makes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emberline.cli.row_types import asked_row_types, empty_lines, rounding_lines
from storage.checkpoint import DeltaTable, TableData
from storage.errors import ConfigError
from storage.rows import RowCodec
from storage.specs import TableSpec
from trainer import EmbeddingTable, Initializer
from trainer.config import TrainConfig, parse_text, with_row_types
from trainer.publishing.lookup_half import find_rows, rounded
from trainer.publishing.row_types import RowTypes, rounding_metadata
from trainer.settings import settings_of


def test_what_is_not_asked_stays_as_it_was_published_last() -> None:
    assert RowTypes.of(None).resolved(["a", "b"], None) == {"a": "fp32", "b": "fp32"}
    assert RowTypes.of("int8").resolved(["a", "b"], None) == {"a": "int8", "b": "int8"}
    asked = RowTypes.of({"default": "bf16", "b": "fp16"})
    assert asked.resolved(["a", "b"], None) == {"a": "bf16", "b": "fp16"}
    assert RowTypes.of({"b": "fp16"}).resolved(["a", "b"], None) == {"a": "fp32", "b": "fp16"}


def test_a_wrong_row_type_or_table_is_named() -> None:
    with pytest.raises(ConfigError, match=r"row_types\.item: row_type is 'fp8', expected one of fp32"):
        RowTypes.of({"item": "fp8"})
    with pytest.raises(ConfigError, match="there is no table 'itme'; did you mean 'item'"):
        RowTypes.of({"itme": "int8"}).check_names(["item", "user"])


def test_a_configuration_names_row_types(config_of: Callable[..., TrainConfig]) -> None:
    config = config_of("deepfm")
    table = config.tables[0].name
    asked = with_row_types(config, {"default": "bf16", table: "int8"})
    assert asked.publish.row_types == {"default": "bf16", table: "int8"}
    assert settings_of(asked) == settings_of(config)
    assert TrainConfig.model_validate_json(asked.model_dump_json()) == asked
    with pytest.raises(ConfigError, match=r"publish\.row_types: there is no table 'nothing'"):
        with_row_types(config, {"nothing": "int8"})
    with pytest.raises(ConfigError, match=r"publish\.row_types\.default.*'fp32'"):
        with_row_types(config, {"default": "int4"})


def test_the_configuration_says_where_a_row_type_is_wrong() -> None:
    text = """
model_name: m
label: y
inputs: [{name: user, dtype: INT64}]
features: [{name: user, inputs: [user], output: ids, table: users}]
tables: [{name: users, dim: 4}]
model: {type: deepfm}
publish: {row_types: {default: bf16, users: int9}}
"""
    with pytest.raises(ConfigError, match=r"publish\.row_types\.users") as caught:
        parse_text(text)
    assert caught.value.field == "publish.row_types.users"
    assert parse_text(text.replace("int9", "int8")).publish.row_types == {"default": "bf16", "users": "int8"}


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ([], None),
        (["int8"], {"default": "int8"}),
        (["item=bf16"], {"default": "fp16", "user": "bf16", "item": "bf16"}),
        (["item=bf16", "int8"], {"default": "int8", "item": "bf16"}),
    ],
)
def test_options_of_the_command_line(given: list[str], asked: dict[str, str] | None) -> None:
    assert asked_row_types(given, {"default": "fp16", "user": "bf16"}) == asked


@pytest.mark.parametrize("given", [["int7"], ["=int8"], ["item="], ["item=int7"], [""], ["int8", "bf16"]])
def test_options_that_cannot_be_are_named(given: list[str]) -> None:
    with pytest.raises(ConfigError, match="--row-type") as caught:
        asked_row_types(given, {})
    assert caught.value.field == "--row-type"


def test_the_rounding_of_tables_and_deltas_is_reported() -> None:
    ids, freq = np.arange(50), np.zeros(50, np.uint8)
    rows = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    table = TableData("item", 6, ids, rows, freq, "int8")
    delta = DeltaTable("word", 6, ids, rows, freq, ids[:0], "bf16")
    plain = TableData("user", 6, ids, rows, freq)
    report = rounding_metadata([table, delta, plain])["rounding"]
    assert sorted(report) == ["item", "word"]
    errors = np.abs(table.codec.decode(table.encoded).astype(np.float64) - rows)
    assert report["item"]["largest_error"] == errors.max()
    assert report["item"]["mean_error"] == pytest.approx(errors.mean())
    assert (report["item"]["bytes"], report["item"]["bytes_as_fp32"]) == (50 * 12, 50 * 24)
    lines = rounding_lines({"rounding": report})
    assert [line.split(",")[0] for line in lines] == [
        "table item: rows as int8",
        "table word: rows as bf16",
    ]
    assert rounding_metadata([plain]) == {}
    for strange in ({}, {"rounding": 3}, {"rounding": {"item": 7}}, {"rounding": {"item": {"bytes": "x"}}}):
        assert rounding_lines(strange) == []


@pytest.mark.parametrize("row_type", ["fp32", "fp16", "bf16", "int8"])
def test_rows_of_a_live_table_are_rounded_as_they_are_published(row_type: str) -> None:
    live = EmbeddingTable("t", 7, seed=2, rows=Initializer("uniform", 0.3))
    ids = np.arange(40, dtype=np.int64)
    rows = live.lookup(ids, train=True)
    published = TableData("t", 7, ids, rows, np.zeros(40, np.uint8), row_type)
    asked = np.array([3, 900, 39], np.int64)
    codec = RowCodec(row_type, 7)
    from_live, from_published = (
        rounded(codec, find_rows(live, asked)[0]),
        rounded(codec, find_rows(published, asked)[0]),
    )
    np.testing.assert_array_equal(from_live, from_published)
    np.testing.assert_array_equal(from_live[[0, 2]], published.codec.decode(published.encoded[[3, 39]]))
    assert not from_live[1].any()


def test_tables_without_a_row_are_named_when_they_are_published() -> None:
    tables = [TableSpec("item", 4, rows=3), TableSpec("user", 4, rows=0)]
    assert empty_lines(tables) == ["table user: has no rows; every id reads as zeros"]
