"""Names that code finds at run time, most of them on a GPU alone: each is looked for in the library that has it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmarks.gpu.device import Gpu, find_gpu
from benchmarks.gpu.limits import NAMES, PlainKernels
from benchmarks.gpu.lookup_parts import WIDE
from benchmarks.gpu.replica import GpuRows, Lookups

ROOT = Path(__file__).parents[3]
PACKAGES = ("benchmarks", "emberline", "serving", "storage", "trainer")
# Libraries of a GPU whose functions are called through a name without a type: what the name stands for there.
STANDS_FOR = {
    "serving/gpu/torch_driver.py": {"self._runtime": "cupy.cuda:runtime", "runtime": "cupy.cuda:runtime"},
    "storage/hbm/kernels.py": {
        "_driver()": "cupy.cuda:driver",
        "driver": "cupy.cuda:driver",
        "nvrtc": "cupy.cuda:nvrtc",
        "cupy.cuda": "cupy.cuda",
        "cupy.cuda.runtime": "cupy.cuda:runtime",
    },
    "benchmarks/gpu/limits.py": {"driver": "cupy.cuda:driver"},
}


def imported_names() -> Iterator[tuple[str, str]]:
    """Yields each file, and the module that it imports by a name in quotes."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
                    and isinstance(node.args[0], ast.Constant)
                ):
                    yield path.relative_to(ROOT).as_posix(), str(node.args[0].value)


def test_every_module_that_is_imported_by_name_is_there() -> None:
    found = list(imported_names())
    assert ("serving/gpu/torch_driver.py", "cupy.cuda.runtime") in found
    for path, name in found:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            assert importlib.import_module(name), path


@pytest.mark.parametrize("path", STANDS_FOR)
def test_every_function_of_cupy_that_is_called_is_there(path: str) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    used = 0
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Attribute) or ast.unparse(node.value) not in STANDS_FOR[path]:
            continue
        module, _, attribute = STANDS_FOR[path][ast.unparse(node.value)].partition(":")
        library = importlib.import_module(module)
        assert hasattr(getattr(library, attribute) if attribute else library, node.attr), f"{path}:{node.lineno}"
        used += 1
    assert used


def test_what_is_used_of_torch_below_its_documentation_is_there() -> None:
    if torch.version.cuda is None:
        pytest.skip(f"torch {torch.__version__} is built without CUDA")
    assert hasattr(torch._C, "_cuda_endAllocateToPool")
    assert hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec")
    assert hasattr(torch.cuda, "host_memory_stats")


class Module:
    """Stands in for the CUDA driver, which is not installed here; it receives what a GPU would receive."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.launched: list[tuple[Any, ...]] = []

    def moduleLoadData(self, cubin: bytes) -> str:  # noqa: N802
        self.loaded.append(cubin)
        return "module"

    def moduleGetFunction(self, module: str, name: str) -> int:  # noqa: N802
        assert module == "module"
        assert name.encode() in self.loaded[-1]
        return NAMES.index(name) + 1

    def launchKernel(self, *values: Any) -> None:  # noqa: N802
        self.launched.append(values)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """Replaces the attribute of CuPy that production imports; everything else is CuPy's own."""
    cuda = pytest.importorskip("cupy.cuda", reason="CuPy is not installed")
    made = Module()
    monkeypatch.setattr(cuda, "driver", made)
    return made


def test_plain_kernels_are_loaded_and_started_as_on_a_gpu(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = find_gpu(simulated=True)
    rows = GpuRows.make(gpu, WIDE, 700)
    real = cast(Gpu, SimpleNamespace(is_simulated=False, driver=gpu.driver))
    plain = PlainKernels(real)
    assert len(module.loaded) == 1
    monkeypatch.setattr("storage.hbm.kernels._driver", lambda: module)
    for length, name in ((None, "limit_gather"), (8, "limit_pool")):
        lookups = Lookups(rows, 1, 64, skew="uniform", length=length)
        monkeypatch.setattr(lookups.stream, "raw", 5, raising=False)
        plain.launch(lookups)(0)
        done = gpu.driver.new_event()
        gpu.driver.record(done, lookups.stream)
        gpu.driver.synchronize(done)
        function, *shape = module.launched[-1][:7]
        assert function == NAMES.index(name) + 1
        assert shape == [8 if length is None else 1, 1, 1, 256, 1, 1]


def test_every_function_of_nvml_that_is_called_is_there() -> None:
    nvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    names = set()
    for path in ("serving/gpu/gauges.py", "emberline/cli/gpu_findings.py"):
        names |= set(re.findall(r"\bnvml[A-Z]\w+", (ROOT / path).read_text(encoding="utf-8")))
    assert "nvmlInit" in names
    assert [name for name in sorted(names) if not hasattr(nvml, name)] == []
