"""The committed stub is the module's, and the package's public names are what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import storage.features
from storage import _features

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
    good = np.arange(4, dtype=np.int64)
    _features.BoundColumn(0, 4, 1, good, None, None, None, None)
    for values in (good.astype(np.int32), good.reshape(2, 2), good[::2]):
        with pytest.raises(TypeError):
            _features.BoundColumn(0, 4, 1, values, None, None, None, None)
    with pytest.raises(TypeError):
        _features.BoundColumn(3, 4, 1, np.zeros(4, np.uint8), good, good[:2], None, None)
    with pytest.raises(TypeError):
        _features.BoundColumn(0, 0, 1, good, None, None, good[:0], None)
    with pytest.raises(ValueError, match="out of range"):
        _features.BoundColumn(7, 4, 1, good, None, None, None, None)
