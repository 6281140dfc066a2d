"""Tests which GPUs are used, and the sentence that explains why none is."""

from __future__ import annotations

import re
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from serving.gpu import gpus as found
from serving.gpu.driver import GpuInfo
from serving.gpu.gpus import CudaGpus, Surroundings, covers, find_gpus, judge, known_gpus, look_around, version_text
from storage.errors import ConfigError, DeviceError, DeviceLost

H100 = GpuInfo(0, "NVIDIA H100 80GB HBM3", (9, 0), 80 * 2**30, "GPU-1")
P100 = GpuInfo(1, "Tesla P100", (6, 0), 16 * 2**30, "GPU-2")
V100 = GpuInfo(2, "Tesla V100", (7, 0), 16 * 2**30, "GPU-3")
T4 = GpuInfo(2, "Tesla T4", (7, 5), 16 * 2**30, "GPU-3")
GOOD = Surroundings("2.11.0+cu130", "13.0", None, 13000, "", (H100,), ("sm_75", "sm_80", "sm_90", "sm_100"))


def test_a_good_gpu_is_used() -> None:
    assert judge(GOOD) == ((H100,), "")


def test_gpus_that_are_too_old_are_left_out_and_named_when_there_are_no_others() -> None:
    assert judge(replace(GOOD, infos=(P100, H100, V100))) == ((H100,), "")
    infos, why = judge(replace(GOOD, infos=(P100,)))
    assert infos == (P100,)
    assert why == "GPU 1 (Tesla P100) has compute capability 6.0; 7.5 (Turing) is the oldest"
    assert "compute capability 7.0; 7.5 (Turing) is the oldest" in judge(replace(GOOD, infos=(V100,)))[1]
    assert (
        "has no kernels for GPU 2 (Tesla T4), sm_75: sm_80"
        in judge(replace(GOOD, infos=(T4,), built_for=("sm_80",)))[1]
    )


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Surroundings("2.13.0+cpu", None), r"torch 2\.13\.0\+cpu is built without CUDA; `pip install"),
        (
            Surroundings("2.13.0+cpu", None, has_gpu=False),
            r"^this machine shows no NVIDIA GPU \(and torch 2\.13\.0\+cpu is built without CUDA\)$",
        ),
        (replace(GOOD, driver=None, infos=(), has_gpu=False), r"no NVIDIA GPU and no NVIDIA driver .* `docker run"),
        (Surroundings("2.13.0+rocm7", None, "7.0"), "is built for ROCm"),
        (replace(GOOD, driver=None, infos=()), r"no NVIDIA driver .* `docker run --gpus all`"),
        (
            replace(GOOD, driver=12040, infos=()),
            r"driver goes up to CUDA 12\.4, torch 2\.11\.0\+cu130 needs 13\.0: install a newer driver, or torch built "
            r"for CUDA 12",
        ),
        (replace(GOOD, infos=()), r"^CUDA sees no GPU; look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES$"),
        (replace(GOOD, infos=(), failure="CUDA unknown error"), "CUDA sees no GPU: CUDA unknown error; look at"),
        (replace(GOOD, cupy="CuPy is not installed"), r"^CuPy is not installed; `pip install 'emberline\[gpu13\]'`"),
        (replace(GOOD, cuda="12.8", cupy="CuPy is not installed"), r"`pip install 'emberline\[gpu\]'` is for CUDA 12"),
    ],
)
def test_what_stands_in_the_way_is_said(found: Surroundings, why: str) -> None:
    infos, said = judge(found)
    assert infos == found.infos
    assert re.search(why, said), said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("built_for", "capability", "runs"),
    [
        (["sm_80", "sm_90"], (9, 0), True),
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["sm_80", "compute_80"], (12, 0), True),
        (["sm_90a"], (9, 0), True),
        (["sm_120"], (12, 1), True),
        (["sm_100"], (12, 0), False),
        ([], (9, 0), True),
    ],
)
def test_code_for_some_gpus_runs_on_others(built_for: list[str], capability: tuple[int, int], runs: bool) -> None:
    assert covers(built_for, capability) is runs


def test_versions_read_as_people_write_them() -> None:
    assert [version_text(version) for version in (12040, 13000, 13010, 11080)] == ["12.4", "13.0", "13.1", "11.8"]


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({}, False),
        ({"dev/nvidiactl": "", "dev/nvidia-uvm": "", "dev/null": ""}, False),
        ({"dev/nvidia0": ""}, True),
        ({"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x030200\n"}, True),
        # An audio device of NVIDIA's, a display of another vendor's, and a device without a name.
        ({"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x040300\n"}, False),
        ({"sys/bus/pci/devices/0/vendor": "0x1002\n", "sys/bus/pci/devices/0/class": "0x030000\n"}, False),
        ({"sys/bus/pci/devices/0/vendor": "0x10de\n"}, False),
    ],
)
def test_a_machine_shows_a_gpu_by_its_devices(files: dict[str, str], shown: bool, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert found.shows_gpu(tmp_path) is shown


def test_without_a_gpu_nobody_is_advised_to_install_torch_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(found, "driver_version", lambda: None)
    monkeypatch.setattr(found, "shows_gpu", lambda: False)
    assert "pip install" not in judge(look_around())[1]
    monkeypatch.setattr(found, "shows_gpu", lambda: True)
    assert "`pip install --force-reinstall torch`" in judge(look_around())[1]
    monkeypatch.setattr(found, "driver_version", lambda: 13000)
    monkeypatch.setattr(found, "shows_gpu", lambda: False)
    assert "`pip install --force-reinstall torch`" in judge(look_around())[1]


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
def test_without_cuda_the_answer_comes_at_once_and_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    began = time.process_time()
    why = judge(look_around())[1]
    assert time.process_time() - began < 0.5
    assert "cupy" not in sys.modules
    assert "without CUDA" in why
    assert find_gpus().why_none == why
    assert find_gpus() is find_gpus() is known_gpus()
    assert not find_gpus().infos


def test_a_build_for_cuda_without_a_driver_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(found, "driver_version", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("CUDA was started"))
    assert "no NVIDIA driver" in judge(look_around())[1]


def test_what_torch_says_of_the_gpus_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, total_memory=5, uuid="4a-b")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(found, "driver_version", lambda: 13000)
    monkeypatch.setattr(found, "cupy_trouble", lambda: "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    assert judge(look_around()) == ((GpuInfo(0, "NVIDIA H100", (9, 0), 5, "GPU-4a-b"),), "")

    def broken(index: int) -> None:
        raise RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment")

    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    assert "CUDA unknown error - this may be" in judge(look_around())[1]


def test_a_driver_that_is_too_old_is_torchs_own_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn() -> bool:
        warnings.warn("CUDA initialization: Unexpected error from cudaGetDeviceCount()", stacklevel=2)
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(found, "driver_version", lambda: 13000)
    monkeypatch.setattr(torch.cuda, "is_available", warn)
    assert "CUDA sees no GPU: CUDA initialization: Unexpected error" in judge(look_around())[1]


def test_looking_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Surroundings:
        raise OSError("a surprise")

    found._find_gpus.cache_clear()
    try:
        monkeypatch.setattr(found, "look_around", broken)
        assert find_gpus().why_none == "looking for GPUs failed: a surprise"
    finally:
        found._find_gpus.cache_clear()


def test_a_driver_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def start(info: GpuInfo) -> object:
        started.append(info.index)
        if len(started) == 1:
            raise DeviceLost("not this time")
        return object()

    monkeypatch.setattr(found, "_start", start)
    gpus = CudaGpus((H100,), "")
    with pytest.raises(DeviceLost):
        gpus.driver(0)
    assert gpus.driver(0) is gpus.driver(0)
    assert started == [0, 0]
    with pytest.raises(ConfigError, match="GPU 3 cannot be used: there are 0"):
        gpus.driver(3)
    with pytest.raises(ConfigError, match="GPU 0 cannot be used: CuPy is not installed"):
        CudaGpus((H100,), "CuPy is not installed").driver(0)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
def test_what_a_gpu_cannot_start_with_is_an_error_of_the_device() -> None:
    with pytest.raises(DeviceError, match=r"GPU 0 \(NVIDIA H100 80GB HBM3\) cannot be used: "):
        CudaGpus((H100,), "").driver(0)
