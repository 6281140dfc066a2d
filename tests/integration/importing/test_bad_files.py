"""Each kind of tables with each fault that its files can have: refused by name, nothing runs, nothing is published."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import save_file

from emberline.cli.importing import command
from storage.errors import EmberlineError, InvalidInput, NotFound
from storage.importing import KINDS, ImportOptions
from tests.support.importing.written import SAVED, lists
from trainer.importing import import_tables

IDS = np.array([[5, -9], [7, 5]], np.int64)
#: The id 5 comes twice, with the same row.
ROWS = np.array([[[1, 2], [3, 4]], [[5, 6], [1, 2]]], np.float32)
FQN = "model.ebc.embedding_bags.item"


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@dataclass(frozen=True)
class Written:
    """Files of a kind: two parts, of ids and rows each."""

    kind: str
    #: Writes the part with these ids and rows, of two, into the folder.
    write: Callable[[Path, int, np.ndarray, np.ndarray], None]
    #: A file to cut off, and one that the other files need.
    cut: str
    needed: str = ""


def _parquet(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    pq.write_table(pa.table({"id": ids, "row": lists(rows)}), folder / f"{part}.parquet")


def _safetensors(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    save_file({"ids": ids, "rows": rows}, folder / f"{part}.safetensors")


def _numpy(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    np.savez(folder / f"{part}.npz", ids=ids, rows=rows)


def _hps(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    # A table is one folder, so both parts are in its files.
    for name, values in (("key", ids), ("emb_vector", rows)):
        with (folder / name).open("ab") as file:
            file.write(values.tobytes())


def _dynamicemb(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    ids.tofile(folder / f"item_emb_keys.rank_{part}.world_size_2")
    rows.tofile(folder / f"item_emb_values.rank_{part}.world_size_2")


def _tfra(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    ids.tofile(folder / f"item-parameter_mht_{part + 1}of2_rank0_size1-keys")
    rows.tofile(folder / f"item-parameter_mht_{part + 1}of2_rank0_size1-values")


def _torcheasyrec(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    arrays = {f"{FQN}.keys": ids, f"{FQN}.values": rows}
    np.savez(folder / f"sparse_dynamic_embedding-{part:02d}-of-02.npz", **arrays)  # type: ignore[arg-type]
    described = {"item": {"name": "item", "is_dynamic": True, "shape": [len(ids), rows.shape[1]]}}
    (folder / f"sparse_embeddings-{part:02d}-of-02.json").write_text(json.dumps(described))


def _state_dict(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    torch.save({f"user{part}_emb.weight": torch.from_numpy(rows)}, folder / f"{part}.pt")


def _dcp(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    import torch.distributed.checkpoint as dcp

    if part == 0:
        state = {"emb.weight": torch.from_numpy(rows)}
        with pytest.warns(UserWarning, match="single process"):
            dcp.save(state, checkpoint_id=folder, no_dist=True)  # type: ignore[attr-defined]


def _tf_checkpoint(folder: Path, part: int, ids: np.ndarray, rows: np.ndarray) -> None:
    for file in (SAVED / "tf").glob("ev.*"):
        shutil.copy(file, folder)


TABLES = {
    each.kind: each
    for each in (
        Written("parquet", _parquet, "1.parquet"),
        Written("safetensors", _safetensors, "1.safetensors"),
        Written("numpy", _numpy, "1.npz"),
        Written("hps", _hps, "emb_vector", "key"),
        Written("dynamicemb", _dynamicemb, "item_emb_values.rank_1.world_size_2", "item_emb_keys.rank_1.world_size_2"),
        Written(
            "tfra",
            _tfra,
            "item-parameter_mht_2of2_rank0_size1-values",
            "item-parameter_mht_1of2_rank0_size1-keys",
        ),
        Written(
            "torcheasyrec",
            _torcheasyrec,
            "sparse_dynamic_embedding-01-of-02.npz",
            "sparse_dynamic_embedding-00-of-02.npz",
        ),
        Written("state-dict", _state_dict, "1.pt"),
        Written("dcp", _dcp, "__0_0.distcp", "__0_0.distcp"),
        Written("tf-checkpoint", _tf_checkpoint, "ev.data-00000-of-00001", "ev.data-00000-of-00001"),
    )
}
#: Kinds whose files say which id a row has; of the others, rows are numbered. Those of tf-checkpoint are compared with
#: checksums that only TensorFlow writes, so that other values are another fault: a byte that changed.
WITH_IDS = ("parquet", "safetensors", "numpy", "hps", "dynamicemb", "tfra", "torcheasyrec")


def refused(folder: Path, kind: str, said: str) -> None:
    """Imports the folder, which is refused with this text, and publishes nothing."""
    given = folder / "ev" if kind == "tf-checkpoint" else folder
    repository = folder.parent / "models"
    with pytest.raises(EmberlineError, match=said) as error:
        import_tables(KINDS[kind].open([given], ImportOptions()), repository, name="shop")
    assert str(folder) in str(error.value)
    assert not [path for path in repository.rglob("*") if path.is_file()]


def written(tmp_path: Path, kind: str, ids: np.ndarray = IDS, rows: np.ndarray = ROWS) -> Path:
    """Writes both parts and returns their folder."""
    folder = tmp_path / "item"
    folder.mkdir()
    for part in range(2):
        TABLES[kind].write(folder, part, ids[part], rows[part])
    return folder


@pytest.mark.parametrize("kind", WITH_IDS)
def test_files_without_a_fault_are_read(tmp_path: Path, kind: str) -> None:
    (table,) = KINDS[kind].open([written(tmp_path, kind)], ImportOptions())
    assert np.concatenate(list(table.ids())).tolist() == IDS.reshape(-1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_that_is_not_there_is_said_to_be_missing(tmp_path: Path, kind: str) -> None:
    nowhere = tmp_path / "nowhere"
    named = [Path(f"item={nowhere}")] if kind in ("parquet", "safetensors", "numpy", "hps") else []
    for path in (nowhere, nowhere / "deeper", *named):
        with pytest.raises(NotFound, match=r"/nowhere.*: there is no such file") as error:
            KINDS[kind].open([path], ImportOptions())
        assert str(path).removeprefix("item=") in str(error.value)


@pytest.mark.parametrize("kind", TABLES)
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, kind: str) -> None:
    folder = written(tmp_path, kind)
    file = folder / TABLES[kind].cut
    file.write_bytes(file.read_bytes()[: -len(file.read_bytes()) // 3])
    refused(folder, kind, file.name.replace(".", r"\."))


@pytest.mark.parametrize("kind", [kind for kind, each in TABLES.items() if each.needed])
def test_a_file_or_shard_that_is_missing_is_named(tmp_path: Path, kind: str) -> None:
    folder = written(tmp_path, kind)
    (folder / TABLES[kind].needed).unlink()
    refused(folder, kind, "missing|no such file|no table in it")


@pytest.mark.parametrize("kind", [kind for kind in TABLES if kind != "tf-checkpoint"])
def test_a_row_that_is_not_finite_is_named(tmp_path: Path, kind: str) -> None:
    rows = ROWS.copy()
    rows[0, 1, 1] = np.nan
    id_ = -9 if kind in WITH_IDS else 1
    refused(written(tmp_path, kind, rows=rows), kind, f"the row of id {id_} in .* holds NaN or infinity")


@pytest.mark.parametrize("kind", WITH_IDS)
def test_an_id_with_two_rows_is_named(tmp_path: Path, kind: str) -> None:
    rows = ROWS.copy()
    rows[1, 1, 0] = 9
    refused(written(tmp_path, kind, rows=rows), kind, "the id 5 has two different rows, one in")


@pytest.mark.parametrize("kind", WITH_IDS)
def test_parts_of_other_dims_are_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "item"
    folder.mkdir()
    write = TABLES[kind].write
    write(folder, 0, IDS[0], ROWS[0])
    write(folder, 1, IDS[1], np.ones((2, 3), np.float32))
    refused(folder, kind, r"item.*(values|dim|bytes)")


@pytest.mark.parametrize("kind", ["numpy", "torcheasyrec", "state-dict", "dcp"])
def test_a_payload_does_not_run(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path, kind)
    monkeypatch.chdir(tmp_path)
    bad = np.array([Payload(), Payload()], dtype=object)
    if kind == "numpy":
        np.savez(folder / "1.npz", ids=IDS[1], rows=bad)
    elif kind == "torcheasyrec":
        arrays = {f"{FQN}.keys": bad, f"{FQN}.values": ROWS[1]}
        np.savez(folder / "sparse_dynamic_embedding-01-of-02.npz", **arrays)
    elif kind == "state-dict":
        torch.save({"user_emb.weight": torch.ones(2, 2), "x": Payload()}, folder / "1.pt")
    else:
        (folder / ".metadata").write_bytes(pickle.dumps(Payload()))
    refused(folder, kind, "would import posix.mkdir|Python objects")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["onnx", "torchscript", "pt2"])
def test_a_pipe_is_no_file_of_a_network_and_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    pipe = tmp_path / "ranker"
    os.mkfifo(pipe)
    result = CliRunner().invoke(command, [kind, str(pipe), "--sample", str(pipe), "--check"])
    assert isinstance(result.exception, InvalidInput)
    assert str(result.exception) == f"{pipe}: is no file"
