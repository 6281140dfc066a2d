"""The commands of docs/importing.md run on files as the page describes them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

from emberline.cli.frame import command
from storage.checkpoint.tensors import write_tensors

PAGE = Path(__file__).parents[3] / "docs" / "importing.md"
SAVED = Path(__file__).parents[2] / "unit" / "importing"
TEXT = PAGE.read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def commands(text: str) -> list[str]:
    """Returns the lines of a section's blocks of shell."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


COMMANDS = {title: commands(text) for title, text in SECTIONS.items() if commands(text)}


def lists(rows: np.ndarray) -> pa.Array:
    """Returns rows as a column of lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _parquet(folder: Path) -> None:
    ids = np.arange(100)[::-1]
    rows = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    columns = {"user_id": ids, "embedding": lists(rows), "views": ids * 3, "name": ["x"] * 100}
    pq.write_table(pa.table(columns), folder / "users.parquet")
    (folder / "parts").mkdir()
    for part in ("a", "b"):
        pq.write_table(pa.table({"id": ids[:50], "row": lists(rows[:50])}), folder / "parts" / f"{part}.parquet")


def _numpy(folder: Path) -> None:
    np.savez(folder / "users.npz", ids=np.arange(10), rows=np.eye(10, 8, dtype=np.float32))
    np.savez(folder / "items.npz", ids=np.arange(20), rows=np.ones((20, 4), np.float32))


def _newer(folder: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    np.savez(folder / "monday.npz", ids=np.arange(100), rows=rows)
    rows[3] = 1
    np.savez(folder / "tuesday.npz", ids=np.arange(90), rows=rows[:90])
    np.savez(folder / "noon.npz", ids=np.arange(5), rows=-rows[:5])


def _module(folder: Path) -> None:
    _numpy(folder)
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS["What comes out"], re.DOTALL)
    (folder / "ranker.py").write_text(code)
    torch.save(torch.nn.Linear(12, 1).state_dict(), folder / "head.pt")


def _safetensors(folder: Path) -> None:
    arrays: dict[str, np.ndarray] = {"keys": np.arange(20), "vectors": np.ones((20, 4), np.float16)}
    write_tensors(folder / "item.safetensors", arrays)


def _state_dict(folder: Path) -> None:
    torch.save(
        {"ebc.embedding_bags.user.weight": torch.ones(30, 4), "head.weight": torch.ones(1, 4)}, folder / "model.pt"
    )


def _dcp(folder: Path) -> None:
    shutil.copytree(SAVED / "dcp", folder / "checkpoint")


def _dynamicemb(folder: Path) -> None:
    place = folder / "dump" / "model.ebc"
    place.mkdir(parents=True)
    for rank in range(2):
        np.arange(10 * rank, 10 * rank + 10).tofile(place / f"item_emb_keys.rank_{rank}.world_size_2")
        np.ones((10, 4), np.float32).tofile(place / f"item_emb_values.rank_{rank}.world_size_2")


def _torcheasyrec(folder: Path) -> None:
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


def _hps(folder: Path) -> None:
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


def _tf_checkpoint(folder: Path) -> None:
    shutil.copytree(SAVED / "tf", folder / "train")


def _tfra(folder: Path) -> None:
    place = folder / "export" / "TFADE"
    place.mkdir(parents=True)
    np.arange(10).tofile(place / "item-parameter_mht_1of1_rank0_size1-keys")
    np.ones((10, 4), np.float32).tofile(place / "item-parameter_mht_1of1_rank0_size1-values")


WRITERS: dict[str, Callable[[Path], None]] = {
    "Look before you import": _parquet,
    "What comes out": _module,
    "Newer files": _newer,
    "parquet": _parquet,
    "safetensors": _safetensors,
    "numpy": _numpy,
    "state-dict": _state_dict,
    "dcp": _dcp,
    "dynamicemb": _dynamicemb,
    "torcheasyrec": _torcheasyrec,
    "hps": _hps,
    "tf-checkpoint": _tf_checkpoint,
    "tfra": _tfra,
}


@pytest.mark.parametrize("title", COMMANDS)
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    WRITERS[title](tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS[title]:
        program, *arguments = shlex.split(line)
        assert program == "emberline"
        done = CliRunner().invoke(command, [*arguments, "--quiet"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert ("published" in done.output) == ("--check" not in arguments)


def test_every_kind_has_a_section_with_a_command() -> None:
    from emberline.cli.import_tables import command_of
    from storage.importing import KINDS

    for kind in KINDS:
        assert any(f"import {kind} " in line for line in COMMANDS[kind]), kind
        assert command_of(kind).help
