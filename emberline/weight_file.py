"""Loads the weights of a module from a safetensors file, or from a state_dict that torch saved; no pickle is run."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.checkpoint.tensors import DTYPES, read_header
from storage.errors import CheckpointError, UnsafeArtifact
from storage.features.strict_model import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

# Keys below which training programs keep a module's weights in what they save.
_INSIDE = ("state_dict", "model_state_dict", "model", "module")
# What wrappers put before the names of a module's weights.
_PREFIXES = ("module.", "_orig_mod.", "model.")
_NEITHER = "neither a safetensors file nor a state_dict of tensors that torch.save wrote"
# How torch names what a pickle would import.
_REFUSED = re.compile(r"GLOBAL ([\w.]+)")


def load_weights(module: nn.Module, path: Path) -> None:
    """Copies a file's weights into a module. Raises CheckpointError that names the weight that does not fit."""
    wanted = module.state_dict()
    found = _without_prefix(_read(path), set(wanted))
    for name in wanted:
        if name not in found:
            raise CheckpointError(f"{path}: it has no weight {name!r}{did_you_mean(name, list(found))}")
    for name, value in found.items():
        if name not in wanted:
            raise CheckpointError(f"{path}: the module has no weight {name!r}{did_you_mean(name, list(wanted))}")
        if value.shape != wanted[name].shape:
            raise CheckpointError(
                f"{path}: the weight {name!r} is {list(value.shape)}, the module's is {list(wanted[name].shape)}"
            )
    module.load_state_dict(found)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path}: is no file")
    with path.open("rb") as file:
        start = file.read(9)
    # A zip is torch's; a safetensors file begins with the length of its JSON header.
    if start[8:9] == b"{" or path.suffix == ".safetensors":
        return _safetensors(path)
    import torch

    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=start[:2] == b"PK")
    except pickle.UnpicklingError as error:
        # What torch says advises to load the file without weights_only.
        if found := _REFUSED.search(str(error)):
            raise UnsafeArtifact(
                f"{path}: it would import {found[1]}, and nothing but tensors is read; nothing was run; "
                "save the module's state_dict() alone"
            ) from None
        raise CheckpointError(f"{path}: {_NEITHER}") from None
    except Exception as error:  # an archive raises whatever damage makes it raise
        said = str(error).strip().splitlines()
        raise CheckpointError(f"{path}: {_NEITHER}: {said[0] if said else type(error).__name__}") from None
    return _state_dict(saved, path)


def _state_dict(saved: Any, path: Path) -> dict[str, Tensor]:
    import torch

    for key in _INSIDE:
        if isinstance(saved, Mapping) and isinstance(saved.get(key), Mapping):
            saved = saved[key]
            break
    if not isinstance(saved, Mapping) or not all(isinstance(value, torch.Tensor) for value in saved.values()):
        raise CheckpointError(
            f"{path}: holds no state_dict, names and tensors; save one by torch.save(module.state_dict(), path)"
        )
    return dict(saved)


def _safetensors(path: Path) -> dict[str, Tensor]:
    import torch

    with path.open("rb", buffering=0) as file:
        try:
            places, start = read_header(path.name, file, metadata=True)
        except UnsafeArtifact as error:
            raise CheckpointError(str(error)) from None
    # Copy-on-write: torch takes arrays that could be written to, and the file stays as it is.
    data = np.memmap(path, np.uint8, mode="c", offset=start) if path.stat().st_size > start else np.empty(0, np.uint8)
    found: dict[str, Tensor] = {}
    for name, place in places.items():
        array = data[place.first : place.last]
        bits = array.view(np.int16 if place.dtype == "BF16" else DTYPES[place.dtype])
        value = torch.from_numpy(bits.reshape(place.shape) if bits.flags.aligned else bits.copy().reshape(place.shape))
        found[name] = value.view(torch.bfloat16) if place.dtype == "BF16" else value
    return found


def _without_prefix(found: dict[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    for _ in range(len(_PREFIXES)):
        prefix = next((each for each in _PREFIXES if all(name.startswith(each) for name in found)), None)
        if not found or prefix is None or wanted & found.keys():
            break
        found = {name.removeprefix(prefix): value for name, value in found.items()}
    return found
