"""The committed stub is the module's, and the package's public names are what it says."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import storage.features
from storage.features import FeatureSpec, column_from_numpy
from storage.features.program import build_program

# Beside the sources: an installed module may lie elsewhere.
STUB = Path(storage.features.__file__).parents[1] / "_features.pyi"


def test_the_committed_stub_is_the_modules_own(tmp_path: Path) -> None:
    def run(*command: str) -> None:
        subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, cwd=STUB.parent.parent)

    fresh = tmp_path / "_features.pyi"
    run("nanobind.stubgen", "-m", "storage._features", "-o", str(fresh))
    run("ruff", "check", "--fix", "--select", "I", "--quiet", str(fresh))
    run("ruff", "format", "--line-length", "120", str(fresh))
    assert fresh.read_text() == STUB.read_text(), (
        "regenerate: python -m nanobind.stubgen -m storage._features -o storage/_features.pyi, then ruff check --fix "
        "and ruff format on it"
    )


def test_every_public_name_exists() -> None:
    assert sorted(storage.features.__all__) == storage.features.__all__
    for name in storage.features.__all__:
        assert hasattr(storage.features, name)


def test_the_binding_refuses_arrays_of_another_dtype_or_layout() -> None:
    spec = FeatureSpec.parse(
        {
            "inputs": [{"name": "x", "dtype": "INT64"}],
            "features": [{"name": "f", "inputs": ["x"], "output": "ids", "table": "t"}],
        }
    )
    program = build_program(spec)
    good = np.arange(4, dtype=np.int64)
    plain = {"dtype": "INT64", "rows": 4, "width": 1, "values": good, "offsets": None, "valid": None}

    def run(**changes: Any) -> Any:
        # A Column checks its arrays by itself.
        return program.run([([SimpleNamespace(**(plain | changes))], 4)])  # type: ignore[list-item]

    assert run().ids()[0][0].tolist() == [0, 1, 2, 3]
    for values in (good.astype(np.int32), good.reshape(2, 2), np.arange(8)[::2], [0, 1, 2, 3], good.astype(">i8")):
        with pytest.raises(TypeError):
            run(values=values)
    text = SimpleNamespace(data=np.zeros(4, np.uint8), starts=good, ends=good[:2])
    for changes in ({"dtype": "BYTES", "values": text}, {"offsets": good[:0]}, {"valid": good}):
        with pytest.raises(TypeError):
            run(**changes)
    with pytest.raises(ValueError, match="unknown dtype"):
        run(dtype="INT8")
    with pytest.raises(ValueError, match="one column"):
        program.run([([], 4)])
    with pytest.raises(AttributeError):
        program.run([([object()], 4)])  # type: ignore[list-item]


def test_results_live_as_long_as_one_of_their_arrays() -> None:
    spec = FeatureSpec.parse(
        {
            "inputs": [{"name": "x", "dtype": "INT64"}],
            "features": [
                {"name": "f", "inputs": ["x"], "output": "ids", "table": "t"},
                {"name": "g", "inputs": ["x"], "output": "dense"},
            ],
        }
    )
    batch = build_program(spec).run([([column_from_numpy("INT64", np.arange(1000))], 1000)])
    assert batch.rows == 1000
    (values, offsets, weights), (dense,) = batch.ids()[0], batch.dense()
    del batch
    gc.collect()
    assert weights is None
    assert values.tolist() == offsets[:-1].tolist() == dense[:, 0].tolist() == list(range(1000))
    assert values.flags.writeable
    assert offsets.flags.writeable
