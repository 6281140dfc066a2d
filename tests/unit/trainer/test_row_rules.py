"""Mistakes in the configuration of admission and eviction are named."""

from __future__ import annotations

import pytest

from storage.errors import ConfigError
from tests.unit.trainer.test_settings import TEXT
from trainer.admission import BloomAdmission
from trainer.config import parse_text
from trainer.eviction import Eviction
from trainer.row_tables import TableConfig


def with_table(more: str) -> str:
    return TEXT.replace("dim: 4", f"dim: 4, {more}")


def test_the_configuration_describes_filter_and_eviction() -> None:
    table = parse_text(
        with_table("admit_after: 3, admission: {type: bloom, expected_ids: 100}, eviction: {after_seconds: 9}")
    ).tables[0]
    assert isinstance(table, TableConfig)
    assert table.bloom == BloomAdmission(100, 0.01)
    assert table.eviction is not None
    assert table.eviction.eviction == Eviction(after_seconds=9.0)
    counted = parse_text(with_table("admission: {type: counter}")).tables[0]
    assert isinstance(counted, TableConfig)
    assert counted.bloom is None


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ("admission: {type: bloom}", "tables.0.admission.expected_ids", "missing"),
        ("admission: {type: bloon}", "tables.0.admission.type", "bloom"),
        ("admission: {type: bloom, expected_ids: 5}", "tables.0", "admit_after is 1, expected 2 to 256"),
        (
            "admit_after: 2, admission: {type: bloom, expected_ids: 5, false_rate: 0.9}",
            "tables.0.admission.false_rate",
            "less than or equal to 0.5",
        ),
        ("eviction: {}", "tables.0.eviction", "expected after_steps, after_seconds or below_norm"),
        ("eviction: {after_step: 3}", "tables.0.eviction.after_step", "after_steps"),
        ("eviction: {after_steps: 0}", "tables.0.eviction.after_steps", "greater than or equal to 1"),
        ("eviction: {below_norm: -1}", "tables.0.eviction.below_norm", "greater than 0"),
    ],
)
def test_a_mistake_is_named(more: str, field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        parse_text(with_table(more))
    assert refused.value.field == field
