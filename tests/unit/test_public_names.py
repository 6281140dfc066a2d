"""The public surface of each package: every name that it offers is there, and looking at the package loads no torch."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

HEAVY = ("torch", "fastapi", "rocksdict")
PACKAGES = ("emberline", "serving", "storage", "storage.checkpoint", "trainer")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None, name


@pytest.mark.parametrize("package", PACKAGES)
def test_another_name_is_an_attribute_error(package: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Tabel'"):
        _ = module.Tabel


def test_looking_at_the_packages_loads_no_torch() -> None:
    code = f"import sys, {', '.join(PACKAGES)}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_supervisor_loads_torch_after_it_has_taken_the_ports() -> None:
    # A port that is in use is an error at once then, not after two seconds.
    code = f"import sys, serving.supervisor; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
