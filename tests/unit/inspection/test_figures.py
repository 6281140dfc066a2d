"""Figures and advice of a planted table are those that can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberline.inspection import advice
from emberline.inspection.collisions import hashed_features, measured_collisions
from emberline.inspection.figures import TRAINING_ROW_BYTES, TableFigures, gather_figures, scattered
from emberline.inspection.histogram import Bar, Histogram
from emberline.inspection.run_source import open_run
from emberline.inspection.source import Origin
from storage.errors import ConfigError
from tests.unit.inspection.conftest import ITEMS, Run
from trainer.embedding import EmbeddingTable


@pytest.fixture
def origin(planted: Path) -> Origin:
    return open_run(planted)


@pytest.fixture
def items(origin: Origin) -> TableFigures:
    return gather_figures(origin.tables["items"], hottest=3, sample=10)


def test_counts_norms_and_ids(items: TableFigures) -> None:
    assert (items.rows, items.uses, items.waiting, items.waiting_counts.uses) == (100, 1450, 40, 40)
    assert (items.smallest_id, items.largest_id) == (0, 297)
    assert (items.zero_rows, items.near_zero_rows, items.not_finite_rows) == (20, 30, 0)
    assert items.bytes_of() == {
        "values": 1600,
        "optimizer values": 1600,
        "index and counters": 100 * TRAINING_ROW_BYTES,
        "waiting ids": 1600,
    }
    assert [bar for bar in items.counts.doublings() if bar.rows] == [
        Bar(2, 4, 60, 120),
        Bar(4, 8, 30, 150),
        Bar(16, 32, 9, 180),
        Bar(512, 1024, 1, 1000),
    ]
    assert [items.counts.quantile(share) for share in (0, 0.5, 0.6, 0.61, 0.9, 0.99, 1)] == [2, 2, 2, 5, 5, 20, 1000]
    bars = [(bar.low, bar.rows) for bar in items.norms.doublings() if bar.rows]
    assert bars == [(0, 20), (2.0**-12, 10), (1, 69), (2, 1)]


def test_last_uses(items: TableFigures) -> None:
    def ages(unit: str) -> dict[float, int]:
        edges, rows, _ = items.ages[unit].filled()
        return dict(zip(edges.tolist(), rows.tolist(), strict=True))

    assert ages("publishes") == {0: 10, 1: 40, 2: 50}
    assert ages("ticks") == {0: 10, 10: 40, 100: 50}
    assert ages("stamps") == {1: 10, 2: 40, 4: 50}


def test_the_age_in_publishes_is_that_by_which_rows_expire(origin: Origin, items: TableFigures) -> None:
    # publishing.pending.expire erases what changed last at stamps[-n] or before.
    history = items.facts.history
    assert history is not None
    stamps = np.concatenate([np.array(piece.stamps) for piece in origin.tables["items"].pieces()])
    for publishes in (1, 2):
        expired = np.count_nonzero(stamps <= history.publishes[-publishes])
        assert items.ages["publishes"].at_least(publishes)[0] == expired


def test_listed_rows(items: TableFigures) -> None:
    assert [(row.id, row.count) for row in items.hottest] == [(297, 1000), (270, 20), (273, 20)]
    assert (items.hottest[0].stamp, items.hottest[0].tick, items.hottest[0].norm) == (5, 1000, 2.0)
    assert items.hottest[0].values == (0, -2, 0, 0)
    # Ten ids by their scattered keys, whatever the pieces.
    chosen = ITEMS[np.argsort(-scattered(ITEMS))[:10]]
    assert [row.id for row in items.sample] == sorted(chosen.tolist())


def test_coverage(items: TableFigures) -> None:
    shares = {share: advice.share_of_lookups(items, share) for share in (0.01, 0.1, 0.2, 1.0)}
    assert shares == pytest.approx({0.01: 1000 / 1450, 0.1: 1180 / 1450, 0.2: 1230 / 1450, 1.0: 1.0})
    curve = advice.coverage_curve(items)
    assert curve[0] == (0, 0)
    assert curve[-1] == (1, 1)
    assert curve == sorted(curve)
    eighty, *_, most = advice.budgets(items)
    # 1160 of 1450 occurrences: the row of 1000 and eight of 20.
    assert (eighty.rows, eighty.dram_bytes) == (9, 9 * (16 + 22))
    assert most.rows == 93  # 1435.5: all but 60 rows of 2 are 1330; 53 of those
    assert eighty.hbm_bytes >= 9 * 16


def test_admission(items: TableFigures) -> None:
    kept = {entry.admit_after: entry for entry in advice.admissions(items)}
    assert {key: entry.rows for key, entry in kept.items()} == {2: 100, 3: 40, 5: 40, 10: 10}
    assert kept[2].share == pytest.approx(1450 / 1490)
    assert kept[10].share == pytest.approx(1180 / 1490)
    assert kept[10].bytes == 10 * (16 + 16 + TRAINING_ROW_BYTES)
    # Waiting ids would get a row at once.
    assert advice.admissions(items, [1])[0].rows == 140


def test_evictions(items: TableFigures) -> None:
    freed = {(entry.by, entry.threshold): entry for entry in advice.evictions(items)}
    assert freed["norm", 1e-3].rows == 30
    assert freed["norm", 1e-3].share == pytest.approx(60 / 1450)
    assert freed["norm", 2.0**-12].rows == 20
    assert freed["publishes", 1].rows == 90
    assert freed["publishes", 2].share == pytest.approx(100 / 1450)
    assert {key[1]: entry.rows for key, entry in freed.items() if key[0] == "ticks"} == {
        **dict.fromkeys((1, 2, 4, 8), 90),
        **dict.fromkeys((16, 64), 50),
    }
    assert not any(by == "stamps" for by, _ in freed)


def test_bytes_by_row_type(items: TableFigures) -> None:
    assert advice.row_type_bytes(items)[4] == {"fp32": 1600, "fp16": 800, "bf16": 800, "int8": 800}
    assert sorted(advice.row_type_bytes(items)) == [2, 4, 8]


def test_the_bytes_of_a_row_in_training_are_about_those_of_the_table() -> None:
    table = EmbeddingTable("t", 8, optimizer="sgd")
    table.lookup(np.arange(200_000, dtype=np.int64), train=True)
    estimate = 200_000 * (32 + TRAINING_ROW_BYTES)
    # Beside them lie lists of changed ids and memory kept for growth.
    assert estimate / 1.5 < table.memory_bytes() < 1.5 * estimate


def test_remarks_name_what_is_wrong(run: Run, origin: Origin) -> None:
    words = gather_figures(origin.tables["words"])
    assert any("100% of the rows were used once" in line for line in advice.remarks(words))
    assert words.not_finite_rows == 0
    rows = np.array([[np.nan, 0, 0, 0], [np.inf, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    ones = np.ones(4, np.uint32)
    stamps = ones * run.tables["words"].stamp
    run.tables["words"].restore(np.arange(600, 604), rows, np.zeros((4, 4), np.float32), ones, stamps, ones)
    run.tables["words"].erase(np.arange(500, dtype=np.int64))
    run.commit()
    words = gather_figures(open_run(run.folder).tables["words"])
    assert (words.rows, words.not_finite_rows, words.norms.rows, words.zero_rows) == (4, 2, 2, 2)
    remarks = advice.remarks(words)
    assert any("2 rows hold NaN or infinity" in line for line in remarks)
    assert any("50% of the rows are all zeros" in line for line in remarks)


def test_a_histogram_without_rows() -> None:
    histogram = Histogram(7)
    histogram.add(np.empty(0), np.empty(0))
    assert (histogram.rows, histogram.quantile(0.5), histogram.doublings(), histogram.largest) == (0, 0, [], 0)


@pytest.mark.parametrize("bits", [7, 12])
def test_bins_have_the_width_they_promise(bits: int) -> None:
    rng = np.random.default_rng(bits)
    values = np.exp(rng.normal(0, 12, 5000)).astype(np.float32)
    histogram = Histogram(bits)
    histogram.add(values[:2000], np.ones(2000))
    histogram.add(values[2000:], np.full(3000, 2**32 - 1))
    assert histogram.rows == 5000
    assert histogram.uses == 2000 + 3000 * (2**32 - 1)
    ordered = np.sort(values)
    for share in (0.001, 0.3, 0.5, 0.999, 1.0):
        true = ordered[int(np.ceil(share * 5000)) - 1]
        assert true * (1 - 2.0**-bits) <= histogram.quantile(share) <= true


def test_whole_numbers_are_exact() -> None:
    histogram = Histogram(12)
    values = np.arange(8192)
    histogram.add(values, values)
    edges, rows, uses = histogram.filled()
    assert np.array_equal(edges, values)
    assert (rows == 1).all()
    assert np.array_equal(uses, values)


def test_collisions_are_expected_and_measured(origin: Origin, tmp_path: Path) -> None:
    words = gather_figures(origin.tables["words"])
    (feature,) = hashed_features(origin.spec, words)
    # n values leave 1000 (1 - 0.999^n) ids; 500 of them are left by n = 692.8.
    assert feature.buckets == 1000
    assert feature.expected_values == pytest.approx(692.8, abs=0.1)
    assert feature.expected_rate == pytest.approx(1 - 500 / 692.8, abs=1e-4)
    assert hashed_features(origin.spec, gather_figures(origin.tables["items"])) == []
    data = tmp_path / "words.parquet"
    pq.write_table(pa.table({"word": [f"word {i % 2000}" for i in range(5000)], "item": [0] * 5000}), data)
    found = measured_collisions(origin.spec, ["words"], [data], 4000)["word"]
    assert (found.before, found.buckets) == (2000, 1000)
    assert 800 < found.after < 900  # 1000 (1 - 0.999^2000) = 865
    assert measured_collisions(origin.spec, ["items"], [data], 4000) == {}
    pq.write_table(pa.table({"item": [0]}), data)
    with pytest.raises(ConfigError, match="word"):
        measured_collisions(origin.spec, ["words"], [data], 10)
