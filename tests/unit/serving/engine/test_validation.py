from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.engine.model import LoadedModel
from serving.engine.recent import RecentRequests
from serving.engine.replay import SLICE_ROWS, ModelParts, replay_golden
from serving.engine.validation import Claims, validate
from serving.model_config.options import ModelOptions
from serving.model_config.pbtxt import read_model_config
from serving.pipeline.snapshot import Snapshot
from storage import Golden
from storage.checkpoint import DenseGraph, delta_writer
from storage.checkpoint.delta_reader import PublishedDelta, open_delta
from storage.checkpoint.delta_writer import DeltaTable, write_delta
from storage.checkpoint.fingerprint import table_fingerprint
from storage.checkpoint.manifest import FileEntry
from storage.checkpoint.tables import TableData, write_table
from storage.errors import GuardError, ParityError
from storage.features import column_from_numpy
from storage.tiers.tiered import TieredStore

OPTIONS = ModelOptions()
DIM = 4


@pytest.fixture
def parts(world: Any, store: TieredStore) -> ModelParts:
    return ModelParts(world.published, store)


@pytest.fixture
def base(world: Any, graph: DenseGraph) -> Snapshot:
    return Snapshot.of_version(world.published, graph)


def requests(world: Any, count: int = 200) -> RecentRequests:
    kept = RecentRequests(1000, interval_ns=0)
    for item in np.random.default_rng(9).permutation(500)[:count]:
        kept.record(world.columns(np.array([item])), 1)
    return kept


def test_a_good_candidate_passes_and_the_report_has_the_figures(
    world: Any, parts: ModelParts, base: Snapshot, graph: DenseGraph
) -> None:
    candidate = world.snapshot(graph, 1, scale=1.1)
    report = validate(parts, base, candidate, world.golden(1.1), requests(world), options=OPTIONS)
    assert (report.golden_rows, report.guard.rows, report.guard.skipped) == (100, 200, "")
    assert 0 < report.golden_difference < 1e-6
    assert report.guard.shifts[0].correlation == pytest.approx(1.0)


def test_wrong_golden_scores_end_it_before_the_guard(
    world: Any, parts: ModelParts, base: Snapshot, graph: DenseGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = requests(world)
    monkeypatch.setattr(kept, "requests", lambda: pytest.fail("the guard was asked"))
    with pytest.raises(ParityError, match="golden requests: output 'score' differs"):
        validate(parts, base, world.snapshot(graph, 1, scale=1.1), world.golden(), kept, options=OPTIONS)


def test_the_difference_is_named_by_its_row_in_all_golden_rows(world: Any, parts: ModelParts, base: Snapshot) -> None:
    golden = world.golden()
    golden.outputs["score"][SLICE_ROWS + 5] += 0.5
    with pytest.raises(ParityError, match=f"row {SLICE_ROWS + 5}, at most 1e-05"):
        replay_golden(parts, base, golden)


def test_golden_columns_of_one_row_stand_for_every_slice(world: Any, parts: ModelParts, base: Snapshot) -> None:
    golden = world.golden()
    price = column_from_numpy("FP32", np.zeros(golden.batch, np.float32))
    assert replay_golden(parts, base, replace(golden, columns={**golden.columns, "price": price})) < 1e-6


def test_a_trainer_gone_wrong_passes_the_golden_requests_and_is_refused_by_the_guard(
    world: Any, parts: ModelParts, base: Snapshot, graph: DenseGraph
) -> None:
    flipped = world.snapshot(graph, 1, scale=-1.0)
    golden = world.golden(-1.0)
    with pytest.raises(GuardError, match="live guard: output 'score'"):
        validate(parts, base, flipped, golden, requests(world), options=OPTIONS)
    off = ModelOptions(live_guard=False)
    assert validate(parts, base, flipped, golden, requests(world), options=off).guard.skipped == "live_guard is off"
    few = validate(parts, base, flipped, golden, requests(world, 63), options=OPTIONS)
    assert few.guard.skipped == "63 rows of recent requests, 64 are needed"
    first = validate(parts, None, flipped, golden, None, options=OPTIONS)
    assert first.guard.skipped == "nothing was served before"


def test_one_weight_beneath_valid_digests_is_refused(
    world: Any, parts: ModelParts, base: Snapshot, graph: DenseGraph
) -> None:
    claims = Claims.of_version(world.published.manifest)
    assert validate(parts, None, base, world.golden(), None, options=OPTIONS, claims=claims).golden_rows == 100
    changed = world.snapshot(graph, 0, scale=float(np.nextafter(np.float32(1), np.float32(2))))
    assert replay_golden(parts, changed, world.golden()) < 1e-6  # too small for the golden requests to see
    with pytest.raises(ParityError, match="golden requests: the dense weights are not the trainer's"):
        validate(parts, None, changed, world.golden(), None, options=OPTIONS, claims=claims)


def test_requests_that_the_candidate_does_not_take_are_left_out(
    world: Any, parts: ModelParts, base: Snapshot, graph: DenseGraph
) -> None:
    kept = requests(world, 100)
    for _ in range(3):
        kept.record({"gone": column_from_numpy("INT64", np.array([1]))}, 1)
    candidate = world.snapshot(graph, 1, scale=1.1)
    report = validate(parts, base, candidate, world.golden(1.1), kept, options=OPTIONS)
    assert report.guard.rows == 100


def test_a_replay_is_cut_into_slices(
    world: Any, parts: ModelParts, base: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    score = parts.processor.score

    def counted(batches: Any, snapshot: Snapshot) -> Any:
        sizes.append(sum(batch.batch for batch in batches))
        return score(batches, snapshot)

    monkeypatch.setattr(parts.processor, "score", counted)
    validate(parts, base, base, world.golden(), requests(world, 150), options=OPTIONS)
    assert max(sizes) <= SLICE_ROWS
    assert sum(sizes) == 100 + 2 * 150


@dataclass
class Staged:
    """A delta on the tiny version, and the reference answers of its snapshot."""

    delta: PublishedDelta
    rows: dict[int, np.ndarray]

    def score(self, ids: np.ndarray) -> np.ndarray:
        totals = np.array([self.rows[i].sum() if i in self.rows else 0.0 for i in ids.tolist()], np.float32)
        values: np.ndarray = 1 / (1 + np.exp(-totals[:, None]))
        return values


@pytest.fixture
def delta_of(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Staged]:
    """Publishes a delta beside a copy of the version. tamper: changes rows as they are written to their file."""

    def make(ids: np.ndarray, rows: np.ndarray, removed: np.ndarray, tamper: Any = None) -> Staged:
        after = dict(zip(world.ids.tolist(), world.rows, strict=True))
        after.update(zip(ids.tolist(), rows, strict=True))
        for gone in removed.tolist():
            after.pop(gone, None)
        staged = Staged(None, after)  # type: ignore[arg-type]
        asked = np.concatenate([ids[:20], removed[:5], world.ids[:40], [-7]]).astype(np.int64)
        golden = Golden(world.columns(asked), len(asked), {"score": staged.score(asked)}, 1e-5)
        fingerprints = {"item": table_fingerprint(ids, rows, removed)}

        def damaging(folder: Path, table: TableData, **options: Any) -> list[FileEntry]:
            return write_table(folder, replace(table, rows=tamper(table.rows.copy())), **options)

        if tamper is not None:
            monkeypatch.setattr(delta_writer, "write_table", damaging)
        manifest = world.published.manifest
        path = write_delta(
            world.path,
            snapshot=secrets.token_hex(16),
            base=manifest.snapshot,
            parent=manifest.snapshot,
            applies_to=[manifest.snapshot],
            from_sequence=0,
            sequence=int(secrets.token_hex(4), 16) + 1,
            tables=[DeltaTable("item", DIM, ids, rows, np.full(len(ids), 9, np.uint8), removed)],
            weights={name: value.numpy() for name, value in world.published.graph().weights().items()},
            weight_dtypes=dict.fromkeys(world.published.graph().weights(), "F32"),
            golden=golden,
            outputs=manifest.graph.outputs,
            fingerprints=fingerprints,
        )
        staged.delta = open_delta(path)
        return staged

    return make


@pytest.fixture
def own_store(world: Any, tmp_path: Path) -> Iterator[TieredStore]:
    (tmp_path / "store").mkdir()
    with TieredStore.open(tmp_path / "store", world.published.tables, dram_bytes=None) as opened:
        opened.load(world.published)
        yield opened


def stage(world: Any, store: TieredStore, staged: Staged) -> tuple[ModelParts, Snapshot, Claims]:
    delta = staged.delta
    overlay = store.stage(delta)
    graph = world.published.graph().with_weights(delta.weights())
    candidate = Snapshot(
        delta.snapshot, 3, delta.sequence, 1 << overlay, graph, delta.manifest.created_unix_ms, delta.path
    )
    return ModelParts(world.published, store), candidate, Claims.of_delta(delta.manifest, overlay)


def changed_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = np.array([-(2**63), -1, 0, 3, 9, 100, 499, 600, 2**63 - 1], np.int64)
    rows = np.random.default_rng(11).standard_normal((len(ids), DIM)).astype(np.float32)
    return ids, rows, np.array([5, 50, 10_000], np.int64)


def test_a_staged_delta_is_checked_row_by_row_and_answers_as_published(
    world: Any, own_store: TieredStore, delta_of: Callable[..., Staged], base: Snapshot
) -> None:
    ids, rows, removed = changed_rows()
    staged = delta_of(ids, rows, removed)
    parts, candidate, claims = stage(world, own_store, staged)
    golden = staged.delta.golden(world.published.spec, world.published.manifest.graph)
    report = validate(parts, base, candidate, golden, requests(world), options=OPTIONS, claims=claims)
    assert report.guard.skipped == ""
    asked = np.concatenate([ids, removed, world.ids])
    for snapshot, expected in ((candidate, staged.score(asked)), (base, world.score(asked))):
        scored = parts.score([parts.features(world.columns(asked), len(asked))], snapshot)
        assert np.allclose(scored.outputs[0], expected, atol=1e-6)


def test_one_row_changed_beneath_valid_digests_is_refused(
    world: Any, own_store: TieredStore, delta_of: Callable[..., Staged], base: Snapshot
) -> None:
    def tamper(rows: np.ndarray) -> np.ndarray:
        rows[6, 2] = np.nextafter(rows[6, 2], np.float32(9))  # an id that golden requests reach, by too little to see
        return rows

    staged = delta_of(*changed_rows(), tamper=tamper)
    parts, candidate, claims = stage(world, own_store, staged)
    golden = staged.delta.golden(world.published.spec, world.published.manifest.graph)
    assert replay_golden(parts, candidate, golden) < 1e-5
    with pytest.raises(ParityError, match="golden requests: table 'item': the staged rows and removed ids"):
        validate(parts, base, candidate, golden, None, options=OPTIONS, claims=claims)


def test_a_model_answers_from_overlays_by_the_mask_of_its_snapshot(
    world: Any, own_store: TieredStore, delta_of: Callable[..., Staged], tmp_path: Path
) -> None:
    staged = delta_of(*changed_rows())
    _, candidate, _ = stage(world, own_store, staged)
    (tmp_path / "tiny").mkdir()
    first = Snapshot.of_version(world.published, world.published.graph())
    model = LoadedModel(read_model_config(tmp_path / "tiny"), world.published, own_store, first)
    ids = np.array([3, 5, 50, 7, -1, 600])
    try:
        for snapshot, expected in ((candidate, staged.score(ids)), (first, world.score(ids))):
            model.history.switch(snapshot)
            result = asyncio.run(model.infer(world.columns(ids), len(ids)))
            assert result.snapshot is snapshot
            assert np.allclose(result.outputs[0], expected, atol=1e-6)
        assert model.store_stats().hits["overlay"] == 3
    finally:
        assert model.close(10.0)
