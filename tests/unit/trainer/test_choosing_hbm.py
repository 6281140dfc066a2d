"""A GPU keeps the rows with the largest counts of all tables that fit together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import ConfigError
from tests.support.examples import examples
from tests.support.late_transfers import LateTransfers
from trainer import EmbeddingTable
from trainer.config import TrainConfig
from trainer.devices import replaced_transfers
from trainer.embedding import HbmRows
from trainer.embedding.hbm import most_counted
from trainer.models import build_model, build_tables
from trainer.step import TrainingStep
from trainer.step_profile import StepProfile

HOST = torch.device("cpu")
COUNTS = st.lists(st.sampled_from([1, 2, 3, 2**32 - 1]) | st.integers(1, 2**32 - 1), max_size=6)


@given(st.lists(st.tuples(COUNTS, st.integers(1, 5)), min_size=1, max_size=4), st.integers(0, 60))
@settings(max_examples=examples(100), deadline=None)
def test_the_largest_counts_that_fit_are_chosen(tables: list[tuple[list[int], int]], most_bytes: int) -> None:
    counts = [np.array(sorted(own, reverse=True), np.uint32) for own, _ in tables]
    expected, left = [0] * len(tables), most_bytes
    rows = [(-int(count), number) for number, own in enumerate(counts) for count in own]
    for _, number in sorted(rows):
        left -= tables[number][1]
        if left < 0:
            break
        expected[number] += 1
    assert most_counted(counts, [size for _, size in tables], most_bytes) == expected


@pytest.mark.parametrize("most", [0, 1, 7, 199, 200, 500])
def test_a_table_returns_the_ids_seen_most(most: int) -> None:
    draws, table = np.random.default_rng(most), EmbeddingTable("t", 1)
    table.lookup(np.repeat(draws.permutation(200), draws.integers(1, 5, 200)), train=True)
    ids, _, _, counts, *_ = table.export_rows()
    expected = np.lexsort((ids, -counts.astype(np.int64)))[:most]
    found, of_found = table.unsettled.most_seen(most)
    assert np.array_equal(found, ids[expected])
    assert np.array_equal(of_found, counts[expected])


def test_the_memory_given_is_never_exceeded_though_other_tables_become_hot() -> None:
    tables = [EmbeddingTable("narrow", 2), EmbeddingTable("wide", 6)]
    rows = HbmRows(tables, 480, HOST, LateTransfers())
    for turn in range(4):
        tables[turn % 2].lookup(np.repeat(np.arange(100), 10**turn), train=True)
        rows.choose()
        assert 0 < rows.figures().memory_bytes <= 480


@dataclass(frozen=True)
class Report:
    memory_bytes: int


@pytest.mark.parametrize("memory", [1000, 1001])
def test_more_than_the_memory_of_the_gpu_is_refused(
    memory: int, config_of: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(config_of)
    config: TrainConfig = config_of("dlrm", hbm_bytes="1000")
    tables = build_tables(config)
    model = build_model(config, tables)
    monkeypatch.setattr("trainer.step.device_report", lambda _: Report(memory))
    with replaced_transfers(HOST, LateTransfers()):
        if memory > 1000:
            TrainingStep(config, model, tables, StepProfile())
            return
        with pytest.raises(ConfigError, match=r"hbm_bytes: expected less than the memory of cpu, 1,000 bytes"):
            TrainingStep(config, model, tables, StepProfile())
