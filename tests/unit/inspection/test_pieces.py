"""Pieces of a run and of a snapshot hold what the table itself has, whatever commits and deltas made it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from emberline.inspection import advice, source
from emberline.inspection.document import TableAnalysis, to_json_value
from emberline.inspection.figures import gather_figures
from emberline.inspection.merge import newest, ranges
from emberline.inspection.page import to_html
from emberline.inspection.published_source import open_published
from emberline.inspection.run_source import open_run
from emberline.inspection.source import Piece, TableSource
from serving.scoring import find_as_of
from storage import DeltaTable, open_version, write_delta
from storage.errors import IntegrityError, NotFound
from tests.unit.inspection.conftest import Run

ROOT = Path(__file__).parents[3]


def joined(table: TableSource) -> list[np.ndarray]:
    pieces: list[Piece] = list(table.pieces())
    fields = ("ids", "rows", "slots", "counts", "stamps", "ticks")
    return [np.concatenate([np.array(getattr(piece, name)) for piece in pieces]) for name in fields]


@pytest.mark.parametrize("piece_bytes", [1 << 10, 1 << 24])
def test_random_commits_read_as_the_table_has_it(run: Run, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(source, "LEAST_ROWS", 16)
    rng = np.random.default_rng(5)
    items = run.tables["items"]
    for step in range(12):
        wide = 4000 if step == 0 else 300
        items.native.set_tick(step + 1)
        items.lookup(rng.integers(-2000, 2000, wide), train=True)
        if step % 3 == 2:
            items.erase(rng.integers(-2000, 2000, 200))
            items.lookup(rng.integers(-2000, 2000, 50), train=True)
        folder = run.commit()
        opened = open_run(run.folder).tables["items"]
        got, exported = joined(opened), items.export_rows()
        for place, name in enumerate(("ids", "rows", "optimizer values", "counts", "stamps", "ticks")):
            assert np.array_equal(got[place], exported[place]), (step, name)
        waiting = [np.concatenate(parts) for parts in zip(*opened.waiting(), strict=True)]
        ids, counts = items.export_counts()
        assert np.array_equal(waiting[0], ids), step
        assert np.array_equal(waiting[1], counts), step
    assert len(list((run.folder / "checkpoints").glob("commit-*"))) > 1
    # An earlier commit is given by its folder.
    assert [len(each) for each in joined(open_run(folder).tables["items"])[:1]] == [items.size()]
    assert sum(len(piece) for piece in opened.pieces()) == items.size() <= opened.total


def test_ranges_are_bounded_and_complete() -> None:
    rng = np.random.default_rng(1)
    sources = [np.unique(rng.integers(0, 10_000, n)) for n in (3000, 40, 0, 700)]
    seen: list[list[np.ndarray]] = [[] for _ in sources]
    last = -1
    for parts in ranges(sources, 100):
        pieces = [ids[part] for ids, part in zip(sources, parts, strict=True)]
        assert 0 < sum(map(len, pieces)) <= 100 + len(sources)
        assert min(ids[0] for ids in pieces if len(ids)) > last
        last = max(ids[-1] for ids in pieces if len(ids))
        for every, ids in zip(seen, pieces, strict=True):
            every.append(ids)
    for every, ids in zip(seen, sources, strict=True):
        assert np.array_equal(np.concatenate(every), ids)


def test_ids_out_of_order_are_refused() -> None:
    with pytest.raises(IntegrityError, match="not strictly ascending"):
        newest([np.array([1, 3, 2]), np.array([4])])
    with pytest.raises(IntegrityError, match="not strictly ascending"):
        list(ranges([np.array([5, 1, 1, 1, 1]), np.array([9])], 2))


def test_a_changed_byte_is_refused_unless_digests_are_left_out(planted: Path) -> None:
    (file,) = planted.glob("checkpoints/*/tables/items.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"items\.safetensors"):
        open_run(planted)
    open_run(planted, verify=False)


def test_a_snapshot_has_the_rows_of_its_deltas(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "model_repo" / "tiny", tmp_path / "tiny")
    version = open_version(tmp_path / "tiny" / "1")
    ids = np.concatenate([shard.ids for shard in version.shards("words")])
    gone, changed = ids[[0, 5]], np.concatenate([ids[[1, -1]], [ids[-1] + 9]])
    write_delta(
        version.path,
        snapshot="d" * 32,
        base=version.snapshot,
        parent=version.snapshot,
        applies_to=[version.snapshot],
        from_sequence=0,
        sequence=1,
        tables=[
            DeltaTable("words", 4, changed, np.full((3, 4), 7, np.float32), np.array([1, 40, 255], np.uint8), gone)
        ],
        weights={name: tensor.numpy() for name, tensor in version.weights().items()},
        weight_dtypes={},
        golden=version.golden(),
        outputs=version.manifest.graph.outputs,
        created_unix_ms=1,
    )
    opened = open_published(tmp_path / "tiny")
    assert "1.1" in opened.title
    found = {
        int(id): (row, int(count))
        for piece in opened.tables["words"].pieces()
        for id, row, count in zip(piece.ids, piece.rows, piece.counts, strict=True)
    }
    assert sorted(found) == sorted({*ids.tolist(), *changed.tolist()} - set(gone.tolist()))
    # 40 stands for (16 + 8) << 1.
    assert [found[id][1] for id in changed.tolist()] == [1, 48, 507_904]
    assert all((found[id][0] == 7).all() for id in changed.tolist())
    shards = {int(id): row for shard in version.shards("words") for id, row in zip(shard.ids, shard.rows, strict=True)}
    assert np.array_equal(found[int(ids[2])][0], shards[int(ids[2])])
    assert find_as_of(tmp_path / "tiny").id == "d" * 32
    # Counts of a byte are said to be approximate, also where a page shows them.
    figures = gather_figures(opened.tables["words"])
    assert figures.uses == 1 + 48 + 507_904
    assert any("counts are approximate" in line for line in advice.remarks(figures))
    assert "occurrences in training, approximate" in to_html(opened, [TableAnalysis(figures)])
    assert to_json_value(opened, [TableAnalysis(figures)])["tables"][0]["counts_are_approximate"] is True
    # A version's folder means its newest snapshot too.
    assert open_published(tmp_path / "tiny" / "1").title.startswith("snapshot 1.1")


def test_a_folder_that_is_no_model_is_refused_with_what_it_is(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "model_repo" / "tiny", tmp_path / "models" / "tiny")
    with pytest.raises(NotFound, match="is a repository; give one of its models: tiny"):
        open_published(tmp_path / "models")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="neither the output folder of a training"):
        open_published(tmp_path / "empty")
