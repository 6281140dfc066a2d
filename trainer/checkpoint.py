"""Training checkpoints: everything that a resumed run needs to go on bit for bit, in safetensors and JSON only.

OUTPUT/checkpoints/step-000000123/{state.json, dense.safetensors, tables/NAME.safetensors}. A checkpoint appears by the
rename of a complete folder; the newest KEEP stay.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.checkpoint.manifest import file_sha256
from storage.checkpoint.strict_json import canonical_json, parse_json
from storage.checkpoint.tensors import TensorFile, write_tensors
from storage.errors import CheckpointError, IntegrityError
from trainer.embedding import EmbeddingTable

KEEP = 2
FORMAT = "emberline-training-1"
_STATE = "state.json"
_DENSE = "dense.safetensors"
_MAX_STATE_BYTES = 16 << 20
_NAME = re.compile(r"step-([0-9]{9})")


@dataclass(frozen=True)
class Position:
    """How far training is. batch: batches of `epoch` that are done. loss_sum: over the rows of the epoch so far."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    rows: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class TrainingState:
    """What was saved beside the weights. history: the figures of the epochs so far."""

    position: Position
    training_digest: str
    data_fingerprint: str
    history: list[dict[str, Any]]


def save_checkpoint(
    output: Path,
    state: TrainingState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tables: Mapping[str, EmbeddingTable],
) -> Path:
    """Writes a checkpoint under output/checkpoints and drops all but the newest KEEP. Returns its folder."""
    home = output / "checkpoints"
    target = home / f"step-{state.position.step:09d}"
    folder = home / f".writing-{secrets.token_hex(8)}"
    try:
        (folder / "tables").mkdir(parents=True)
        digests: dict[str, str] = {}
        arrays: dict[str, np.ndarray[Any, Any]] = {"random": torch.get_rng_state().numpy()}
        arrays.update({f"model.{name}": _array(value) for name, value in model.state_dict().items()})
        for index, values in optimizer.state_dict()["state"].items():
            arrays.update({f"optimizer.{index}.{name}": _array(value) for name, value in values.items()})
        digests[_DENSE] = write_tensors(folder / _DENSE, arrays).sha256
        for name, table in tables.items():
            ids, rows, slots, counts = table.export_rows()
            waiting_ids, waiting_counts = table.export_counts()
            path = _table_path(name)
            digests[path] = write_tensors(
                folder / path,
                {
                    "ids": ids,
                    "rows": rows,
                    "slots": slots,
                    "counts": counts,
                    "waiting_ids": waiting_ids,
                    "waiting_counts": waiting_counts,
                },
            ).sha256
        content = {"format": FORMAT, "files": digests, **asdict(state)}
        with (folder / _STATE).open("xb") as file:
            file.write(canonical_json(content))
            file.flush()
            os.fsync(file.fileno())
        if target.exists():  # the same step again: it was saved by steps and at the end of the epoch
            shutil.rmtree(target)
        os.rename(folder, target)
    except OSError as error:
        raise CheckpointError(f"{home}: the training checkpoint could not be written: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for old in checkpoints(output)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def checkpoints(output: Path) -> list[Path]:
    """The complete checkpoints under a training output, oldest first."""
    home = output / "checkpoints"
    if not home.is_dir():
        return []
    return sorted(entry for entry in home.iterdir() if _NAME.fullmatch(entry.name) and entry.is_dir())


def read_state(folder: Path) -> TrainingState:
    """The state of a checkpoint, after checking the digest of every file. Raises IntegrityError, CheckpointError."""
    content = _content(folder)
    for path, digest in content["files"].items():
        file = folder / path
        if not file.is_file() or file_sha256(file) != digest:
            raise IntegrityError(
                f"{file}: missing, or not what was saved; remove {folder} to fall back to the one before"
            )
    return TrainingState(
        Position(**content["position"]), content["training_digest"], content["data_fingerprint"], content["history"]
    )


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    tables: Mapping[str, EmbeddingTable],
    optimizer: torch.optim.Optimizer | None = None,
) -> TrainingState:
    """Puts a checkpoint's weights and rows in place; with an optimizer also its state and torch's generator.

    model, tables, optimizer: fresh, from the configuration of the run. Raises CheckpointError when they do not fit.
    """
    state = read_state(folder)
    arrays = TensorFile.open(folder / _DENSE).arrays
    weights = {
        name.removeprefix("model."): _tensor(array) for name, array in arrays.items() if name.startswith("model.")
    }
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{folder}: its weights are those of another model: {error}") from None
    if optimizer is not None:
        values: dict[int, dict[str, Tensor]] = {}
        for name, array in arrays.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                values.setdefault(int(index), {})[key] = _tensor(array)
        optimizer.load_state_dict({"state": values, "param_groups": optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(_tensor(arrays["random"]))
    for name, table in tables.items():
        _restore(folder, name, table)
    return state


def _restore(folder: Path, name: str, table: EmbeddingTable) -> None:
    path = folder / _table_path(name)
    if not path.is_file():
        raise CheckpointError(f"{folder}: holds no table {name!r}; it was saved by another configuration")
    saved = TensorFile.open(path).arrays
    if saved["rows"].shape[1] != table.dim:
        raise CheckpointError(f"{folder}: table {name!r} has dim {saved['rows'].shape[1]}, expected {table.dim}")
    table.restore(saved["ids"], saved["rows"], saved["slots"], saved["counts"])
    table.restore_counts(saved["waiting_ids"], saved["waiting_counts"])


def _content(folder: Path) -> dict[str, Any]:
    path = folder / _STATE
    try:
        content = parse_json(path.read_bytes(), what=str(path), max_bytes=_MAX_STATE_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path}: expected format {FORMAT!r}; the checkpoint was made by another release")
    return content


def _table_path(name: str) -> str:
    return f"tables/{name}.safetensors"


def _array(value: Any) -> np.ndarray[Any, Any]:
    tensor = value if isinstance(value, Tensor) else torch.tensor(value)
    return tensor.detach().cpu().contiguous().numpy()  # numpy's own ascontiguousarray would give a scalar a dimension


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(array.copy())
