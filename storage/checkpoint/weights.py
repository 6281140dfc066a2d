"""Reads dense weights as torch tensors from a safetensors file that was checked."""

from __future__ import annotations

import numpy as np
import torch

from storage.checkpoint.finite import weight_fault
from storage.checkpoint.manifest import WEIGHTS
from storage.checkpoint.tensors import TensorFile
from storage.errors import IntegrityError


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
        if file.dtypes[name] == "BF16":
            result[name] = torch.from_numpy(array.copy().view("<i2")).view(torch.bfloat16)
        else:
            result[name] = torch.from_numpy(array.copy())
    return result
