"""Writes the files that docs/importing.md and docs/guides describe, each into a folder as its page names them."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from storage.checkpoint.tensors import write_tensors

SAVED = Path(__file__).parents[2] / "unit" / "importing"


def lists(rows: np.ndarray) -> pa.Array:
    """Returns rows as a column of lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def write_parquet(folder: Path) -> None:
    ids = np.arange(100)[::-1]
    rows = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    columns = {"user_id": ids, "embedding": lists(rows), "views": ids * 3, "name": ["x"] * 100}
    pq.write_table(pa.table(columns), folder / "users.parquet")
    (folder / "parts").mkdir()
    for part in ("a", "b"):
        pq.write_table(pa.table({"id": ids[:50], "row": lists(rows[:50])}), folder / "parts" / f"{part}.parquet")


def write_numpy(folder: Path) -> None:
    np.savez(folder / "users.npz", ids=np.arange(10), rows=np.eye(10, 8, dtype=np.float32))
    np.savez(folder / "items.npz", ids=np.arange(20), rows=np.ones((20, 4), np.float32))


def write_newer(folder: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    np.savez(folder / "monday.npz", ids=np.arange(100), rows=rows)
    rows[3] = 1
    np.savez(folder / "tuesday.npz", ids=np.arange(90), rows=rows[:90])
    np.savez(folder / "noon.npz", ids=np.arange(5), rows=-rows[:5])


def write_module(folder: Path) -> None:
    write_numpy(folder)
    torch.save(torch.nn.Linear(12, 1).state_dict(), folder / "head.pt")


def write_safetensors(folder: Path) -> None:
    arrays: dict[str, np.ndarray] = {"keys": np.arange(20), "vectors": np.ones((20, 4), np.float16)}
    write_tensors(folder / "item.safetensors", arrays)


def write_state_dict(folder: Path) -> None:
    torch.save(
        {"ebc.embedding_bags.user.weight": torch.ones(30, 4), "head.weight": torch.ones(1, 4)}, folder / "model.pt"
    )


def write_dcp(folder: Path) -> None:
    shutil.copytree(SAVED / "dcp", folder / "checkpoint")


def write_dynamicemb(folder: Path) -> None:
    place = folder / "dump" / "model.ebc"
    place.mkdir(parents=True)
    for rank in range(2):
        np.arange(10 * rank, 10 * rank + 10).tofile(place / f"item_emb_keys.rank_{rank}.world_size_2")
        np.ones((10, 4), np.float32).tofile(place / f"item_emb_values.rank_{rank}.world_size_2")


def write_torcheasyrec(folder: Path) -> None:
    place, fqn = folder / "export" / "sparse", "model.ebc.embedding_bags.item"
    place.mkdir(parents=True)
    arrays = {f"{fqn}.keys": np.arange(10), f"{fqn}.values": np.ones((10, 4), np.float32)}
    np.savez(place / "sparse_dynamic_embedding-00-of-01.npz", **arrays)  # type: ignore[arg-type]
    (folder / "deltas").mkdir()
    columns = {
        "global_step": [5, 5],
        "table_fqn": [fqn] * 2,
        "key_id": [3, 11],
        "embedding": pa.array([[2.0] * 4, [3.0] * 4], pa.list_(pa.float32())),
        "source": ["model_delta_tracker"] * 2,
    }
    pq.write_table(pa.table(columns), folder / "deltas" / "delta_step_5.parquet")


def write_hps(folder: Path) -> None:
    for name, dim in (("wdl0", 1), ("wdl1", 8)):
        place = folder / f"{name}_sparse_2000.model"
        place.mkdir()
        np.arange(20)[::-1].tofile(place / "key")
        np.ones((20, dim), np.float32).tofile(place / "emb_vector")
    model = {
        "model": "wdl",
        "sparse_files": ["/models/wdl0_sparse_2000.model", "/models/wdl1_sparse_2000.model"],
        "embedding_table_names": ["wide", "deep"],
        "embedding_vecsize_per_table": [1, 8],
        "default_value_for_each_table": [0.0, 0.1],
    }
    (folder / "ps.json").write_text(json.dumps({"models": [model]}))


def write_tf_checkpoint(folder: Path) -> None:
    shutil.copytree(SAVED / "tf", folder / "train")


def write_tfra(folder: Path) -> None:
    place = folder / "export" / "TFADE"
    place.mkdir(parents=True)
    np.arange(10).tofile(place / "item-parameter_mht_1of1_rank0_size1-keys")
    np.ones((10, 4), np.float32).tofile(place / "item-parameter_mht_1of1_rank0_size1-values")


def write_guide_from_hps(folder: Path) -> None:
    """Writes a model of HPS, the dense weights of its network, and newer files of the same tables."""
    write_hps(folder)
    head = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    torch.save({f"head.{name}": value for name, value in head.state_dict().items()}, folder / "dense.pt")
    newer = folder / "newer"
    newer.mkdir()
    write_hps(newer)
    rows = np.fromfile(newer / "wdl1_sparse_2000.model" / "emb_vector", np.float32)
    rows[:8] = 7
    rows.tofile(newer / "wdl1_sparse_2000.model" / "emb_vector")


def write_guide_from_torchrec(folder: Path) -> None:
    """Writes a checkpoint, the weights over its tables, and a newer checkpoint of one process."""
    import torch.distributed.checkpoint as dcp

    write_dcp(folder)
    over = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    torch.save({f"over.{name}": value for name, value in over.state_dict().items()}, folder / "over.pt")
    rows = {name: np.arange(count)[:, None] % 97 + np.arange(dim) / 8 for name, count, dim in (("by_rows", 21, 4),)}
    state = {f"ebc.embedding_bags.{name}.weight": torch.from_numpy(value).float() for name, value in rows.items()}
    state["ebc.embedding_bags.by_rows.weight"][5] = 3.0
    columns = torch.from_numpy(np.arange(10)[:, None] % 97 + np.arange(6) / 8).float()
    state["ebc.embedding_bags.by_columns.weight"] = columns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about being alone
        dcp.save(state, checkpoint_id=folder / "newer", no_dist=True)  # type: ignore[attr-defined]


def write_guide_from_deeprec(folder: Path) -> None:
    """Writes a checkpoint, a newer one in which nothing changed, and the weights of a dense layer."""
    write_tf_checkpoint(folder)
    shutil.copytree(folder / "train", folder / "newer")
    np.savez(folder / "dense.npz", kernel=np.full((6, 1), 0.1, np.float32), bias=np.zeros(1, np.float32))


def write_guide_from_torcheasyrec(folder: Path) -> None:
    """Writes an export and deltas."""
    write_torcheasyrec(folder)


def write_guide_from_tfra(folder: Path) -> None:
    """Writes an export, and a newer one."""
    write_tfra(folder)
    shutil.copytree(folder / "export", folder / "newer")
    np.full((10, 4), np.arange(4), np.float32).tofile(
        folder / "newer" / "TFADE" / "item-parameter_mht_1of1_rank0_size1-values"
    )
