"""The generated data sets: one seed one file, the planted AUC is the true one, ids are what they are said to be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import ConfigError
from trainer.datasets import write_criteo_like, write_synthetic, write_wide
from trainer.datasets.id_space import id_effect, spread_ids, zipf_ranks
from trainer.datasets.parts import PartWriter
from trainer.datasets.planted import PlantedAuc
from trainer.metrics import auc


@given(st.integers(0, 50), st.integers(0, 2**40))
def test_spreading_is_one_to_one_and_reaches_all_of_63_bits(seed: int, start: int) -> None:
    ids = spread_ids(np.arange(start, start + 4096), seed=seed)
    assert len(np.unique(ids)) == 4096
    assert ids.min() >= 0
    assert ids.max() > 2**62
    assert np.bincount(ids >> 59, minlength=16).min() > 128


def test_the_same_number_has_other_ids_under_another_seed() -> None:
    assert not np.intersect1d(spread_ids(np.arange(10_000), seed=1), spread_ids(np.arange(10_000), seed=2)).size


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2])
def test_ranks_follow_the_power_law(exponent: float) -> None:
    ranks = zipf_ranks(np.random.default_rng(1), 400_000, 1000, exponent)
    assert ranks.min() == 0
    assert ranks.max() <= 999
    counts = np.bincount(ranks, minlength=1000)
    fitted = np.polyfit(np.log(np.arange(10, 500) + 1.5), np.log(counts[10:500]), 1)[0]
    assert fitted == pytest.approx(-exponent, abs=0.05)


def test_effects_have_mean_zero_and_variance_one_and_belong_to_their_id() -> None:
    effect = id_effect(np.arange(200_000), seed=4)
    assert effect.mean() == pytest.approx(0.0, abs=0.01)
    assert effect.std() == pytest.approx(1.0, abs=0.01)
    assert np.array_equal(effect[50:60], id_effect(np.arange(50, 60), seed=4))


def test_one_seed_gives_one_data_set_and_the_planted_auc_is_written(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_synthetic(tmp_path / name, rows=20_000, ids=5000, seed=seed)
    first, again, other = (pq.read_table(tmp_path / name / "train.parquet") for name in "abc")
    assert first.equals(again)
    assert not first.equals(other)
    assert first.num_rows == 16_000
    lengths = np.diff(first["tags"].combine_chunks().offsets.to_numpy())
    assert (lengths.min(), lengths.max()) == (1, 8)
    best = json.loads((tmp_path / "a" / "dataset.json").read_text())["best_auc"]
    assert 0.7 < best["valid"] < 0.95
    assert 0.7 < best["test"] < 0.95


def test_the_planted_auc_is_that_of_exactly_its_rows() -> None:
    rng = np.random.default_rng(2)
    probabilities = rng.random(1000)
    labels = rng.random(1000) < probabilities
    judge = PlantedAuc({"valid": (300, 650), "test": (650, 1000)})
    for start in range(0, 1000, 170):
        judge.add(probabilities[start : start + 170], labels[start : start + 170])
    best = judge.facts()["best_auc"]
    assert best["valid"] == auc(labels[300:650].astype(np.float32), probabilities[300:650])
    assert best["test"] == auc(labels[650:].astype(np.float32), probabilities[650:])


def test_wide_has_forty_columns_of_the_promised_types(tmp_path: Path) -> None:
    write_wide(tmp_path, rows=5000)
    table = pq.read_table(tmp_path / "train.parquet")
    kinds = [str(field.type) for field in table.schema if field.name != "clicked"]
    assert len(kinds) == 40
    assert {kind: kinds.count(kind) for kind in kinds} == {"string": 16, "uint64": 8, "int64": 8, "float": 8}
    assert max(table[f"key_{at:02}"].to_numpy().max() for at in range(8)) >= 2**63
    assert 0.05 < table["count_00"].null_count / table.num_rows < 0.15
    words = table["word_15"].to_pylist()
    assert "" in words
    assert any(not word.isascii() for word in words)


def test_criteo_like_has_the_columns_of_criteo_and_one_seed_gives_one_set(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_criteo_like(tmp_path / name, rows=20_000, seed=seed)
    table, again, other = (pq.read_table(tmp_path / name / "train.parquet") for name in "abc")
    assert table.equals(again)
    assert not table.equals(other)
    assert table.column_names == ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    assert {str(table.schema.field(f"I{n}").type) for n in range(1, 14)} == {"int64"}
    assert table["I12"].null_count / table.num_rows == pytest.approx(0.76, abs=0.02)
    assert table["I2"].null_count == 0
    assert all(len(word) == 8 and int(word, 16) >= 0 for word in table["C3"].drop_null().to_pylist()[:100])
    ids = table["C14"].value_counts()
    assert len(ids) == 27
    assert max(ids.field("counts").to_pylist()) > 10 * min(ids.field("counts").to_pylist())
    best = json.loads((tmp_path / "a" / "dataset.json").read_text())["best_auc"]
    assert best["test"] == pytest.approx(0.85, abs=0.02)


@pytest.mark.parametrize(("rows", "ids", "field"), [(5, 5000, "rows"), (5000, 10, "ids")])
def test_sizes_that_make_no_sense_are_refused(tmp_path: Path, rows: int, ids: int, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        write_synthetic(tmp_path, rows=rows, ids=ids)
    assert refused.value.field == field


def test_a_broken_run_leaves_no_part_that_looks_whole(tmp_path: Path) -> None:
    table = pa.table({"x": list(range(50))})
    writer = PartWriter(tmp_path, 100, table.schema)
    writer.write(table)
    assert not list(tmp_path.glob("*.parquet"))
    writer.write(table)
    writer.close({})
    assert sorted(path.name for path in tmp_path.glob("*.parquet")) == [
        "test.parquet",
        "train.parquet",
        "valid.parquet",
    ]
    assert pq.read_table(tmp_path / "valid.parquet")["x"].to_pylist() == list(range(30, 40))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="name another folder"):
        write_wide(tmp_path / "file", rows=1000)
