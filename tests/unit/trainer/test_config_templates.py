"""Entries that stand for several names: what they are expanded to, and how errors name them as they were written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.errors import ConfigError
from trainer.config import load_config, parse_text
from trainer.config_templates import range_of
from trainer.trained import save_config

ADS = """
model_name: ads
label: label
inputs:
  - {name: I1..I13, dtype: INT64}
  - {name: C1..C26, dtype: BYTES}
  - {name: [user, item], dtype: INT64, column: $each_id}
features:
  - {name: I1..I13, inputs: [$each], transforms: [{op: log}], output: dense}
  - {each: I1..I13, name: $each_is_null, inputs: [$each], transforms: [{op: is_null}], output: dense}
  - {name: C1..C26, inputs: [$each], transforms: [{op: hash, salt: $each}], output: ids, table: $each}
  - {name: [user, item], inputs: [$each], output: ids, table: $eachs}
tables:
  - {name: C1..C26, dim: 9}
  - {name: [users, items], dim: 9}
model: {type: deepfm, hidden: [8]}
"""


def test_entries_are_repeated_for_each_name() -> None:
    config = parse_text(ADS)
    assert [entry.name for entry in config.inputs] == [
        *(f"I{n}" for n in range(1, 14)),
        *(f"C{n}" for n in range(1, 27)),
        "user",
        "item",
    ]
    assert config.inputs[-1].source == "item_id"
    assert len(config.features) == 13 + 13 + 26 + 2
    null = config.spec.feature("I7_is_null")
    assert null.inputs == ("I7",)
    hashed = config.spec.feature("C26")
    assert (hashed.table, hashed.transforms[0].model_dump()["salt"]) == ("C26", "C26")
    assert config.spec.feature("user").table == "users"
    assert len(config.tables) == 28


def test_digits_are_kept_as_they_are_written() -> None:
    text = ADS.replace("C1..C26", "C_08..C_11")
    assert [entry.name for entry in parse_text(text).tables][:4] == ["C_08", "C_09", "C_10", "C_11"]


def test_a_run_keeps_the_expanded_configuration(tmp_path: Path) -> None:
    config = parse_text(ADS)
    save_config(tmp_path, config)
    kept = tmp_path / "config.json"
    assert "$each" not in kept.read_text()
    assert len(json.loads(kept.read_text())["tables"]) == 28
    assert load_config(kept) == config


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("C26, dim: 9", "C26, dim: 0", "tables.0.dim", r"tables\.0\.dim \(for C1\): .* greater than or equal to 1"),
        ("C26, dtype: BYTES", "C26, dtype: TEXT", "inputs.1.dtype", r"inputs\.1\.dtype \(for C1\)"),
        ("{op: hash, salt", "{op: hsh, salt", "features.2.transforms.0", r"\(for C1\): .*did you mean 'hash'"),
        ("item], inputs: [$each]", "item], inputs: [$eachs]", "", "unknown input 'users'; did you mean 'user'"),
        (
            "{name: I1..I13, dtype",
            "{name: I13..I1, dtype",
            "inputs.0.name",
            r"ends before it begins; expected I1\.\.I13",
        ),
        ("{name: I1..I13, dtype", "{name: I1..J13, dtype", "inputs.0.name", r"expected I1\.\.I13"),
        ("{name: I1..I13, dtype", "{name: I1..I99999, dtype", "inputs.0.name", "99,999 names; expected 10,000 at most"),
        ("C26, inputs: [$each]", "C26, inputs: [C1..C26]", "features.2.inputs", r"write \$each"),
        ("name: $each_is_null", "name: is_null", "features.1.each", r"put \$each into it"),
        ("{name: [users, items]", "{name: [users, 3]", "tables.1.name", "or a list of them, got 3"),
        ("{name: [users, items]", "{name: []", "tables.1.name", "expected one name at least"),
        ("{name: [users, items]", "{name: [C1, users, items]", "", "a name stands twice"),
    ],
)
def test_a_fault_is_named_as_it_was_written(old: str, new: str, field: str, words: str) -> None:
    assert old in ADS
    with pytest.raises(ConfigError, match=words) as refused:
        parse_text(ADS.replace(old, new))
    assert refused.value.field == field


def test_what_stands_for_many_is_refused_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_text(ADS.replace("C26, dim: 9", "C26, dim: 0"))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["C1", "C2", "C3"], "C1..C3"),
        (["word_08", "word_09", "word_10"], "word_08..word_10"),
        (["C1", "C3", "C4"], None),
        (["C2", "C1", "C3"], None),
        (["a", "b", "c"], None),
        (["C1", "C2"], None),
    ],
)
def test_a_range_is_found_for_names_in_a_row(names: list[str], text: str | None) -> None:
    assert range_of(names) == text
