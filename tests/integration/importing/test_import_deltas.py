"""Newer files of published tables become deltas, which servers take on top of the version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from emberline.cli.import_tables import command_of
from serving.scoring import Scorer, find_as_of
from storage.errors import ConfigError, InvalidInput, NotFound, Unsupported
from storage.features import column_from_numpy
from storage.importing import KINDS, FileTable, ImportOptions
from trainer.importing import import_delta, import_tables, rows_elsewhere

IDS = np.arange(100, dtype=np.int64) * 7
ROWS = np.linspace(-1, 1, 400, dtype=np.float32).reshape(100, 4)
MEMORY = 1 << 24


def table(folder: Path, ids: np.ndarray, rows: np.ndarray, name: str = "user", **options: Any) -> list[FileTable]:
    """Writes a table and opens it."""
    order = np.random.default_rng(0).permutation(len(ids))
    np.savez(folder / f"{name}.npz", ids=ids[order], rows=rows[order])
    return KINDS["numpy"].open([folder / f"{name}.npz"], ImportOptions(**options))


def served(folder: Path, ids: list[int], **columns: Any) -> np.ndarray:
    """Returns what the newest snapshot answers."""
    with Scorer(find_as_of(folder / "models" / "shop"), folder / "store") as scorer:
        return scorer.score({"user": column_from_numpy("INT64", np.array(ids)), **columns}, len(ids))[0]


@pytest.mark.parametrize("row_type", ["fp32", "int8"])
def test_what_differs_in_whole_files_is_a_delta(tmp_path: Path, row_type: str) -> None:
    models = tmp_path / "models"
    import_tables(table(tmp_path, IDS, ROWS), models, name="shop", row_types=row_type)
    newer = ROWS.copy()
    newer[3] = 9.0
    ids = np.append(IDS[:-2], 1)

    report = import_delta(
        table(tmp_path, ids, np.append(newer[:-2], [[5.0] * 4], axis=0)), models, name="shop", memory_bytes=MEMORY
    )

    assert report.changes == {"user": (2, 2)}
    assert report.folder is not None
    assert report.folder.parts[-2:] == ("deltas", "000001")
    found = served(tmp_path, [int(IDS[3]), 1, int(IDS[-1]), int(IDS[5])])
    np.testing.assert_allclose(found, [[9] * 4, [5] * 4, [0] * 4, ROWS[5]], atol=0.01 if row_type == "int8" else 0)
    again = import_delta(
        table(tmp_path, ids, np.append(newer[:-2], [[5.0] * 4], axis=0)), models, name="shop", memory_bytes=MEMORY
    )
    assert (again.folder, again.changes) == (None, {"user": (0, 0)})


def test_a_check_of_a_delta_compares_and_publishes_nothing(tmp_path: Path) -> None:
    models = tmp_path / "models"
    import_tables(table(tmp_path, IDS, ROWS), models, name="shop")
    newer = ROWS.copy()
    newer[3] = 9.0
    table(tmp_path, IDS[:-2], newer[:-2])
    arguments = [str(tmp_path / "user.npz"), "--delta", "--repository", str(models), "--name", "shop", "--quiet"]
    before = sorted(models.rglob("*"))
    done = CliRunner().invoke(command_of("numpy"), [*arguments, "--check"])
    assert done.exit_code == 0, repr(done.exception)
    assert "table user: 1 rows are new or changed, 2 ids are removed" in done.output
    assert "published" not in done.output
    assert sorted(models.rglob("*")) == before
    table(tmp_path, IDS[:-2], newer[:-2, :2].copy())
    done = CliRunner().invoke(command_of("numpy"), [*arguments, "--check"])
    assert isinstance(done.exception, Unsupported), repr(done.exception)


def test_files_without_rows_do_not_empty_a_table(tmp_path: Path) -> None:
    models = tmp_path / "models"
    import_tables(table(tmp_path, IDS, ROWS), models, name="shop")
    empty = table(tmp_path, IDS[:0], ROWS[:0])
    with pytest.raises(InvalidInput, match=f"the files hold no row of it, and the delta would remove all {len(IDS)}"):
        import_delta(empty, models, name="shop", memory_bytes=MEMORY)
    assert import_delta(empty, models, name="shop", partial=True, memory_bytes=MEMORY).folder is None


def test_a_table_beyond_the_memory_is_compared_exactly(tmp_path: Path) -> None:
    models, count = tmp_path / "models", 20_000
    ids = np.arange(count, dtype=np.int64) * 3
    rows = np.random.default_rng(1).normal(size=(count, 32)).astype(np.float32)
    import_tables(table(tmp_path, ids, rows), models, name="shop", memory_bytes=1 << 18)
    rows[::40] += 1
    report = import_delta(table(tmp_path, ids[5:], rows[5:]), models, name="shop", memory_bytes=1 << 18)
    assert report.changes == {"user": (count // 40 - 1, 5)}
    snapshot = find_as_of(models / "shop")
    found = [(shard.ids.copy(), shard.rows.copy()) for shard in snapshot.rows("user")]
    np.testing.assert_array_equal(np.concatenate([ids for ids, _ in found]), ids[5:])
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in found]), rows[5:])


def test_partial_files_change_what_they_hold_and_leave_the_rest(tmp_path: Path) -> None:
    models = tmp_path / "models"
    both = table(tmp_path, IDS, ROWS) + table(tmp_path, IDS, -ROWS, "item")
    import_tables(both, models, name="shop", pooling={"item": "mean"})
    for step in (1.0, 2.0):
        report = import_delta(
            table(tmp_path, IDS[:3], np.full((3, 4), step, np.float32)),
            models,
            name="shop",
            partial=True,
            memory_bytes=MEMORY,
        )
        assert report.changes == {"user": (3, 0), "item": (0, 0)}
    assert find_as_of(models / "shop").sequence == 2
    from storage.features import column_from_jagged

    item = column_from_jagged("INT64", IDS[:2], np.array([0, 1, 2]))
    np.testing.assert_array_equal(served(tmp_path, [0, int(IDS[9])], item=item), [[2.0] * 4, ROWS[9]])


@pytest.mark.parametrize("default", [0.0, 0.25])
def test_a_default_that_changed_is_refused_and_one_that_is_not_said_stays(tmp_path: Path, default: float) -> None:
    models, newer = tmp_path / "models", np.append(ROWS[:-1], [[9.0] * 4], axis=0)
    import_tables(table(tmp_path, IDS, ROWS, defaults={"user": 0.5}), models, name="shop")
    changed = table(tmp_path, IDS, newer, defaults={"user": default})
    with pytest.raises(ConfigError, match=r"read as constant\(0.5\), and in the files as .* --default user=0.5"):
        import_delta(changed, models, name="shop", memory_bytes=MEMORY)
    kept = table(tmp_path, IDS, newer, defaults={"user": 0.5})
    assert import_delta(kept, models, name="shop", memory_bytes=MEMORY).folder is not None
    assert import_delta(table(tmp_path, IDS, ROWS), models, name="shop", memory_bytes=MEMORY).folder is not None
    np.testing.assert_array_equal(served(tmp_path, [1]), [[0.5] * 4])


@pytest.mark.parametrize(("said", "is_refused"), [([0.0], True), (None, False), ([0.5], False)])
def test_the_default_of_a_ps_json_is_compared_where_it_has_one(
    tmp_path: Path, said: list[float] | None, is_refused: bool
) -> None:
    models, place = tmp_path / "models", tmp_path / "user.model"
    place.mkdir()
    IDS.tofile(place / "key")

    def read(rows: np.ndarray, defaults: list[float] | None) -> list[FileTable]:
        rows.tofile(place / "emb_vector")
        described = {"model": "m", "sparse_files": ["user.model"], "embedding_table_names": ["user"]}
        more = {} if defaults is None else {"default_value_for_each_table": defaults}
        (tmp_path / "ps.json").write_text(json.dumps({"models": [{**described, **more}]}))
        return KINDS["hps"].open([tmp_path / "ps.json"], ImportOptions())

    import_tables(read(ROWS, [0.5]), models, name="shop")
    newer = read(np.append(ROWS[:-1], [[9.0] * 4], axis=0).astype(np.float32), said)
    if is_refused:
        with pytest.raises(ConfigError, match=r"read as constant\(0.5\), and in the files as zeros"):
            import_delta(newer, models, name="shop", memory_bytes=MEMORY)
    else:
        assert import_delta(newer, models, name="shop", memory_bytes=MEMORY).changes == {"user": (1, 0)}


def test_evictions_of_partial_files_remove_ids(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    models = tmp_path / "models"
    import_tables(table(tmp_path, IDS, ROWS), models, name="shop")
    columns = {
        "global_step": [5, 5],
        "table_fqn": ["m.ebc.embedding_bags.user"] * 2,
        "key_id": [int(IDS[0]), int(IDS[1])],
        "embedding": pa.array([[2.0] * 4, [3.0] * 4], pa.list_(pa.float32())),
        "source": ["model_delta_tracker", "evicted"],
    }
    pq.write_table(pa.table(columns), tmp_path / "delta.parquet")
    tables = KINDS["torcheasyrec"].open([tmp_path / "delta.parquet"], ImportOptions())
    report = import_delta(tables, models, name="shop", partial=True, memory_bytes=MEMORY)
    assert report.changes == {"user": (1, 1)}
    np.testing.assert_array_equal(served(tmp_path, IDS[:3].tolist()), [[2.0] * 4, [0.0] * 4, ROWS[2]])


def made(bias: float) -> tuple[nn.Module, torch.Tensor]:
    """Returns a module without rows, and a sample."""

    class Ranker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user = nn.Embedding(1, 4)
            self.head = nn.Linear(4, 1)
            nn.init.constant_(self.head.weight, 1.0)
            nn.init.constant_(self.head.bias, bias)

        def forward(self, user: torch.Tensor) -> torch.Tensor:
            return self.head(self.user(user))

    with rows_elsewhere():
        return Ranker(), torch.tensor([0, 7, 14])


def test_weights_of_a_module_and_rows_of_files_come_in_one_delta(tmp_path: Path) -> None:
    models = tmp_path / "models"
    module, sample = made(0.0)
    import_tables(table(tmp_path, IDS, ROWS), models, name="shop", module=module, sample_batch=sample)
    module, sample = made(10.0)
    report = import_delta(
        table(tmp_path, IDS[:1], np.ones((1, 4), np.float32)),
        models,
        name="shop",
        partial=True,
        module=module,
        sample_batch=sample,
        memory_bytes=MEMORY,
    )
    assert report.folder is not None
    np.testing.assert_allclose(served(tmp_path, [0, 7]), [[14.0], [10 + ROWS[1].sum()]], atol=1e-5)
    with pytest.raises(Unsupported, match="or give the --module that it was imported with"):
        import_delta(table(tmp_path, IDS, ROWS), models, name="shop", memory_bytes=MEMORY)


def test_what_a_delta_cannot_do_is_refused(tmp_path: Path) -> None:
    models = tmp_path / "models"
    with pytest.raises(NotFound, match="nothing is published"):
        import_delta(table(tmp_path, IDS, ROWS), models, name="shop", memory_bytes=MEMORY)
    import_tables(table(tmp_path, IDS, ROWS), models, name="shop")
    with pytest.raises(Unsupported, match="rows of the table 'user' had 4 values and have 2"):
        import_delta(table(tmp_path, IDS, ROWS[:, :2].copy()), models, name="shop", memory_bytes=MEMORY)
    many = np.arange(3000, dtype=np.int64) + 10_000
    with pytest.raises(Unsupported, match="more than 50% of the rows of the table 'user' differ"):
        import_delta(table(tmp_path, many, np.ones((3000, 4), np.float32)), models, name="shop", memory_bytes=MEMORY)
    assert not list(models.glob("shop/1/deltas/0*"))
