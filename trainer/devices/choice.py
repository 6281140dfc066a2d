"""Chooses the device of a training, or says in one sentence why it cannot be used."""

from __future__ import annotations

import torch

from storage.errors import ConfigError

_FIELD = "training.device"
_HOST = torch.device("cpu")


def choose_device(wanted: str, local_rank: int = 0, local_size: int = 1) -> torch.device:
    """Returns the device that `training.device` names. Starts CUDA for any other than cpu.

    local_rank, local_size: which one this process is of those of the training on this machine. `cuda` is the GPU of
    that number; one that is named by its number is used by all of them. auto: the same GPU if it can be used, or else
    the processor. Raises ConfigError that says what is missing.
    """
    if wanted == "cpu":
        return _HOST
    why = why_no_gpu()
    count = 0 if why else torch.cuda.device_count()
    index = int(wanted.partition(":")[2] or local_rank)
    if not why and index >= count:
        numbered = wanted.startswith("cuda:")
        why = f"there is no GPU {index}: torch sees {count}, {_names(count)}" + (
            "" if numbered else f", for {local_size} ranks on this machine; start one rank for each GPU"
        )
    if not why:
        return torch.device("cuda", index)
    if wanted == "auto":
        return _HOST
    raise ConfigError(f"{_FIELD} is {wanted!r}, but {why}; or train with cpu (--device cpu)", field=_FIELD)


def why_no_gpu() -> str:
    """Returns why torch cannot use any GPU in this process, "" if it can."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is built for the processor only; install its build for CUDA "
            "(`pip install --force-reinstall torch`, unless pip is advised to take another index)"
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        said = str(error).strip().splitlines()[0][:300]
        return f"CUDA cannot be used: {said} (`emberline doctor` and `nvidia-smi` say more)"
    if torch.cuda.device_count() == 0:
        return "CUDA sees no GPU; look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES"
    return ""


def _names(count: int) -> str:
    return "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
