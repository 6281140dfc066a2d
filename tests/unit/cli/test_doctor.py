"""`emberline doctor` reports what the native module reports, and what to do about what is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from emberline.cli import gpu_findings
from emberline.cli.doctor import command, examine, huge_pages
from emberline.cli.gpu_findings import Rates, findings_of
from serving.gpu.driver import GpuInfo
from serving.gpu.gpus import Surroundings
from storage._table import isa, isas, numa_nodes, set_isa
from storage.errors import ConfigError, DeviceError

NAMES = ["emberline", "machine", "cores", "memory", "NUMA nodes", "huge pages", "instruction set", "cold reads"]
GPU_NAMES = ["torch", "GPU driver", "GPU", "CuPy", "kernels", "sessions"]
H100 = GpuInfo(0, "NVIDIA H100", (9, 0), 80 * 2**30, "GPU-1")
P100 = GpuInfo(1, "Tesla P100", (6, 0), 16 * 2**30, "GPU-2")
GOOD = Surroundings("2.11.0+cu130", "13.0", None, 13000, "", (H100,), ("sm_80", "sm_90"))


def test_the_report_names_what_the_store_depends_on() -> None:
    done = CliRunner().invoke(command, ["--json"])
    assert done.exit_code == 0
    report = json.loads(done.output)
    assert [*NAMES, "RocksDB"] == list(report)[: len(NAMES) + 1]
    if not torch.cuda.is_available():
        assert list(report)[len(NAMES) + 1 :] == GPU_NAMES
    assert report["torch"]["value"].startswith(f"{torch.__version__}, built ")
    assert report["sessions"]["value"].startswith("KIND_AUTO and no instance_group: sessions on ")
    assert report["instruction set"]["value"].split()[0] == isa()
    assert report["NUMA nodes"]["value"].startswith(str(len(numa_nodes())))
    lines = CliRunner().invoke(command).output.splitlines()
    assert sum(not line.startswith("!") for line in lines) == len(report)


def test_it_follows_the_instruction_set_in_use() -> None:
    best = isa()
    try:
        set_isa("portable")
        finding = next(finding for finding in examine() if finding.name == "instruction set")
        assert finding.value.startswith("portable")
        assert all(name in finding.value for name in isas())
    finally:
        set_isa(best)


@pytest.mark.parametrize(
    ("modes", "value", "advice"),
    [
        ("always [madvise] never\n", "madvise: tables", ""),
        ("[always] madvise never\n", "always: tables", ""),
        ("always madvise [never]\n", "never", "echo madvise >"),
        ("", "unknown", ""),
    ],
)
def test_huge_pages_that_are_switched_off_are_reported(modes: str, value: str, advice: str) -> None:
    finding = huge_pages(modes)
    assert finding.value.startswith(value)
    assert finding.advice.startswith(advice)
    assert bool(finding.advice) == bool(advice)


class LoadedKernels:
    """Stands in for kernels on a GPU."""

    def __init__(self, device: int, capability: tuple[int, int], cache: None) -> None:
        assert cache is None  # nothing is written

    def load(self) -> None:
        pass

    def load_lookups(self) -> None:
        pass


def rates(index: int) -> Rates:
    return 1.4e12, 5.5e10


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (79 * 2**30, 80 * 2**30))
    monkeypatch.setattr(gpu_findings, "Kernels", LoadedKernels)
    monkeypatch.setattr(gpu_findings, "gpu_arch", lambda capability: "sm_{}{}".format(*capability))


@pytest.mark.usefixtures("gpu")
def test_a_machine_with_a_gpu() -> None:
    report = {finding.name: finding.value for finding in findings_of(GOOD, "580.95.05", rates)}
    threads = torch.get_num_threads()
    assert report.pop("CuPy")
    assert report == {
        "torch": f"2.11.0+cu130, built for CUDA 13.0, {threads} threads",
        "GPU driver": "580.95.05, goes up to CUDA 13.0",
        "GPU 0": "NVIDIA H100, sm_90, 80.0 GiB, 79.0 GiB free",
        "kernels": "compiled and loaded: sm_90 on GPU 0",
        "GPU 0 copies": "1400 GB/s within it, 55.0 GB/s to it from pinned memory",
        "sessions": "KIND_AUTO and no instance_group: sessions on GPU 0",
    }


@pytest.mark.usefixtures("gpu")
def test_gpus_that_could_share_rows_and_those_that_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(GOOD, infos=tuple(replace(H100, index=index) for index in range(3)))

    def peers(reach: Callable[[int, int], bool]) -> str:
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", reach)
        return {finding.name: finding.value for finding in findings_of(found, "", rates)}["GPU peers"]

    assert peers(lambda one, other: True).startswith("all read each other's memory")
    assert peers(lambda one, other: (one, other) != (2, 0)).startswith(
        "do not read each other's memory: 0 and 2; hbm_p"
    )

    def lost(one: int, other: int) -> bool:
        raise RuntimeError("CUDA error: out of GPUs")

    assert peers(lost) == "not known: CUDA error: out of GPUs"


@pytest.mark.usefixtures("gpu")
def test_gpus_that_cannot_be_used_are_shown_and_not_measured() -> None:
    def measure(index: int) -> Rates:
        pytest.fail("a GPU that cannot be used was measured")

    found = replace(GOOD, infos=(P100,))
    report = {finding.name: finding.value for finding in findings_of(found, "", measure)}
    assert report["GPU 1"].startswith("Tesla P100, sm_60, 16.0 GiB")
    assert report["sessions"].startswith("KIND_AUTO and no instance_group: sessions on the CPU: GPU 1 (Tesla P100) has")
    both = findings_of(replace(GOOD, infos=(H100, P100)), "", rates)
    assert [finding.name for finding in both if finding.name.startswith("GPU ")] == [
        "GPU driver",
        "GPU 0",
        "GPU 1",
        "GPU 0 copies",
    ]


@pytest.mark.usefixtures("gpu")
def test_what_fails_on_a_gpu_is_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LoadedKernels) -> None:
        raise DeviceError("cuda/assemble.cu does not compile for sm_90: an error\nand where")

    def lost(index: int) -> Rates:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(LoadedKernels, "load", refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lost)
    findings = {finding.name: finding for finding in findings_of(GOOD, "", lost)}
    assert findings["kernels"].value == "none: cuda/assemble.cu does not compile for sm_90: an error"
    assert findings["GPU 0"].advice == "it does not answer: CUDA error: an illegal memory access was encountered"
    assert findings["GPU 0 copies"].value.startswith("not measured: CUDA error")


def test_without_a_gpu_the_kernels_are_compiled_all_the_same() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    found = Surroundings("2.13.0+cpu", None)
    report = {finding.name: finding.value for finding in findings_of(found, "", rates)}
    assert report["kernels"] == "compile for sm_90; without a GPU nothing is loaded"
    assert report["GPU"] == "none"


def test_without_cupy_that_is_what_the_report_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(capability: tuple[int, int]) -> str:
        raise ConfigError("kernels for a GPU need CuPy")

    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(gpu_findings, "gpu_arch", absent)
    report = {finding.name: finding.value for finding in findings_of(Surroundings("2.13.0+cpu", None), "", rates)}
    assert report["CuPy"] == "not installed"
    assert report["kernels"] == "none: kernels for a GPU need CuPy"
