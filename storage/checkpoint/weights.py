"""Reads dense weights as torch tensors from a safetensors file that was checked."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from storage.checkpoint.finite import weight_fault
from storage.checkpoint.manifest import WEIGHTS
from storage.checkpoint.tensors import TensorFile
from storage.checkpoint.weight_difference import DIFFERENCE, read_difference
from storage.errors import IntegrityError
from storage.parallel import Pace, map_paced


def read_weights(data: np.ndarray | bytes, *, finite: str | None = None) -> dict[str, torch.Tensor]:
    """Returns the tensors of dense.safetensors' bytes, copied out of them.

    finite: weights whose names start so may not hold infinity. Raises UnsafeArtifact for a file that is no safetensors
    file, IntegrityError naming the weight that holds NaN or such an infinity.
    """
    file = TensorFile.from_bytes(WEIGHTS, data)
    result: dict[str, torch.Tensor] = {}
    for name, array in file.arrays.items():
        fault = weight_fault(array, file.dtypes[name], infinity=finite is None or not name.startswith(finite))
        if fault is not None:
            raise IntegrityError(f"{WEIGHTS}: the weight {name!r} {fault}")
        result[name] = _tensor(array.copy(), file.dtypes[name] == "BF16")
    return result


def with_difference(
    data: np.ndarray | bytes,
    before: Mapping[str, torch.Tensor],
    *,
    finite: str | None = None,
    pace: Pace | None = None,
) -> dict[str, torch.Tensor]:
    """Returns weights with a difference in dense.xor.safetensors' bytes, as new tensors; the others are shared.

    finite: as for `read_weights`, of the weights that change. pace: as for `map_paced`. Raises what it and
    `read_difference` raise.
    """
    found = read_difference(data, {name: bits(value) for name, value in before.items()}, pace)
    rounded = {name for name in found if before[name].dtype == torch.bfloat16}

    def check(name: str) -> None:
        dtype, infinity = "BF16" if name in rounded else "", finite is None or not name.startswith(finite)
        fault = weight_fault(found[name], dtype, infinity=infinity)
        if fault is not None:
            raise IntegrityError(f"{DIFFERENCE}: the weight {name!r} {fault}")

    for _ in map_paced(check, found, pace):
        pass
    return {**before, **{name: _tensor(array, name in rounded) for name, array in found.items()}}


def bits(value: torch.Tensor) -> np.ndarray:
    """Returns a tensor as an array, which shares its memory where it lies in host memory; bfloat16 as uint16."""
    tensor = value.detach().cpu().contiguous()
    array: np.ndarray = (
        tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )
    return array


def _tensor(array: np.ndarray, rounded: bool) -> torch.Tensor:
    return torch.from_numpy(array.view("<i2")).view(torch.bfloat16) if rounded else torch.from_numpy(array)
