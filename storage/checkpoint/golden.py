"""Golden requests are raw features with the trainer's own scores; a server replays them before it switches versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.checkpoint.manifest import GOLDEN, GoldenEntry, GraphEntry, GraphOutput
from storage.checkpoint.tensors import TensorFile, WrittenFile, write_tensors
from storage.errors import CheckpointError, UnsafeArtifact

if TYPE_CHECKING:
    from storage.features import Column, FeatureSpec

_NUMPY_DTYPES = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32, "BOOL": np.bool_}
_INPUT = "input."
_OUTPUT = "output."


@dataclass(frozen=True)
class Golden:
    """Raw features and the answers of the trainer's model."""

    #: The raw inputs by name.
    columns: Mapping[str, Column]
    #: The number of rows.
    batch: int
    #: Maps each name to an array with the shape of the graph's output, batch filled in.
    outputs: Mapping[str, np.ndarray]
    #: The absolute difference that an answer may have.
    tolerance: float = 1e-6
    #: The same by output; those that are not named have `tolerance`.
    tolerances: Mapping[str, float] = field(default_factory=dict)

    def allowed(self, output: str) -> float:
        """Returns the absolute difference that an output may have."""
        return self.tolerances.get(output, self.tolerance)

    def at_least(self, tolerance: float) -> Golden:
        """Returns the same with no smaller tolerance than this one."""
        raised = {name: max(given, tolerance) for name, given in self.tolerances.items()}
        return replace(self, tolerance=max(self.tolerance, tolerance), tolerances=raised)

    def entry(self) -> GoldenEntry:
        """Returns what the manifest says of them."""
        return GoldenEntry(batch=self.batch, tolerance=self.tolerance, tolerances=dict(self.tolerances))


def write_golden(path: Path, golden: Golden, outputs: tuple[GraphOutput, ...]) -> WrittenFile:
    """Writes the golden requests. Raises CheckpointError when their outputs are not the graph's."""
    from storage.features import pack_columns

    _check_outputs(golden.outputs, golden.batch, outputs, CheckpointError("golden"))
    arrays = {_INPUT + name: array for name, array in pack_columns(golden.columns).items()}
    arrays.update({_OUTPUT + name: array for name, array in golden.outputs.items()})
    return write_tensors(path, arrays)


def read_golden(data: np.ndarray, spec: FeatureSpec, entry: GoldenEntry, graph: GraphEntry) -> Golden:
    """Reads the bytes of golden.safetensors.

    Raises UnsafeArtifact when dtypes, shapes or names are not what the manifest says.
    """
    from storage.features import unpack_columns

    file = TensorFile.from_bytes(GOLDEN, data)
    inputs: dict[str, np.ndarray] = {}
    outputs: dict[str, np.ndarray] = {}
    for name, array in file.arrays.items():
        if name.startswith(_INPUT):
            inputs[name.removeprefix(_INPUT)] = array
        elif name.startswith(_OUTPUT):
            outputs[name.removeprefix(_OUTPUT)] = array
        else:
            raise UnsafeArtifact(f"{GOLDEN}: the tensor {name!r} is neither an input nor an output")
    _check_outputs(outputs, entry.batch, graph.outputs, UnsafeArtifact(GOLDEN))
    for name, tolerance in entry.tolerances.items():
        if name not in outputs or not tolerance <= max(1.0, float(np.abs(outputs[name]).max(initial=0.0))):
            raise UnsafeArtifact(
                f"{GOLDEN}: {tolerance:g} is no tolerance of an output {name!r}: it would check nothing"
            )
    try:
        columns = unpack_columns(inputs, spec)
    except (MemoryError, OSError):
        raise  # the file is not at fault
    except Exception as error:
        raise UnsafeArtifact(f"{GOLDEN}: the inputs do not fit features.json: {error}") from error
    for name, column in columns.items():
        if column.rows not in (1, entry.batch):
            raise UnsafeArtifact(f"{GOLDEN}: the input {name!r} has {column.rows} rows, expected {entry.batch}")
    return Golden(columns, entry.batch, outputs, entry.tolerance, entry.tolerances)


def _check_outputs(
    outputs: Mapping[str, np.ndarray], batch: int, expected: tuple[GraphOutput, ...], error: CheckpointError
) -> None:
    kind, where = type(error), str(error)
    if sorted(outputs) != sorted(entry.name for entry in expected):
        raise kind(f"{where}: outputs {sorted(outputs)}, the graph gives {sorted(entry.name for entry in expected)}")
    for entry in expected:
        array = outputs[entry.name]
        shape = (batch, *entry.shape[1:])
        if array.dtype != _NUMPY_DTYPES[entry.dtype] or array.shape != shape:
            raise kind(
                f"{where}: output {entry.name!r} is {array.dtype} {list(array.shape)}, "
                f"expected {entry.dtype} {list(shape)}"
            )
        if not np.all(np.isfinite(array)):
            raise kind(f"{where}: output {entry.name!r} holds values that are not finite")
