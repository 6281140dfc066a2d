"""Triton's metrics of GPUs from an NVML that counts as NVIDIA's does."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from serving.gpu import gauges
from serving.gpu.driver import GpuInfo
from serving.gpu.gauges import GpuGauges
from serving.http.prometheus import encode
from serving.http.triton_metrics import MachineGauges

GPUS = [
    GpuInfo(0, "NVIDIA H100", (9, 0), 80 * 2**30, "GPU-aa"),
    GpuInfo(1, "NVIDIA H100", (9, 0), 80 * 2**30, "GPU-bb"),
]


class Nvml:
    """Stands in for pynvml's functions.

    energy_mj: the energy of each GPU.
    refused: functions that a GPU does not have.
    """

    def __init__(self) -> None:
        self.energy_mj = {"GPU-aa": 1_000_000, "GPU-bb": 5_000}
        self.refused: set[str] = set()
        self.calls = 0

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def __getattr__(self, function: str) -> object:
        if function in self.refused:
            raise AttributeError(function)
        answers = {
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=37, memory=5),
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=80 * 2**30, used=2**30, free=79 * 2**30),
            "nvmlDeviceGetPowerUsage": lambda gpu: 123_456,
            "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: self.energy_mj[gpu],
        }
        answer = answers[function]

        def call(*arguments: object) -> object:
            self.calls += 1
            return answer(*arguments)

        return call


def read(machine: MachineGauges) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("gpu_uuid", "")): sample.value
        for metric in machine.metrics()
        for sample in metric.samples
    }


@pytest.mark.slow
def test_the_page_has_tritons_names_and_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    machine = MachineGauges(tmp_path, GpuGauges(lambda: GPUS, nvml))
    expected = {
        "nv_gpu_utilization": 0.37,
        "nv_gpu_memory_total_bytes": 80 * 2**30,
        "nv_gpu_memory_used_bytes": 2**30,
        "nv_gpu_power_usage": 123.456,
        "nv_gpu_power_limit": 700,
        "nv_energy_consumption": 0,
    }
    assert read(machine) == {(name, gpu.uuid): value for name, value in expected.items() for gpu in GPUS}
    lines = encode(machine.metrics, "")[0].decode().splitlines()
    assert "# TYPE nv_energy_consumption counter" in lines
    assert "# TYPE nv_gpu_power_usage gauge" in lines
    # Within a second the page repeats itself.
    nvml.energy_mj["GPU-aa"] += 2_500
    calls = nvml.calls
    assert read(machine)["nv_energy_consumption", "GPU-aa"] == 0
    assert nvml.calls == calls
    monkeypatch.setattr(gauges, "_GOOD_FOR_S", -1.0)
    assert read(machine)["nv_energy_consumption", "GPU-aa"] == 2.5


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    nvml = Nvml()
    nvml.refused = {"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"}
    names = [metric.name for metric in GpuGauges(lambda: GPUS, nvml).read()]
    assert names == [
        "nv_gpu_memory_total_bytes",
        "nv_gpu_memory_used_bytes",
        "nv_gpu_power_usage",
        "nv_gpu_power_limit",
    ]


def test_without_nvml_torch_reports_memory_once_cuda_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gauges, "_GOOD_FOR_S", -1.0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (60, 100))
    metrics = GpuGauges(lambda: GPUS)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert metrics.read() == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    told = {metric.name: metric.values for metric in metrics.read()}
    assert told == {
        "nv_gpu_memory_total_bytes": {"GPU-aa": "100", "GPU-bb": "100"},
        "nv_gpu_memory_used_bytes": {"GPU-aa": "40", "GPU-bb": "40"},
    }


def test_nothing_is_said_without_a_gpu_or_before_anyone_looked_for_one() -> None:
    found: list[GpuInfo] | None = None
    metrics = GpuGauges(lambda: found, Nvml())
    assert metrics.read() == []
    found = GPUS
    assert metrics.read()
    assert GpuGauges(list, Nvml()).read() == []
    assert GpuGauges(lambda: [GpuInfo(0, "without a UUID", (9, 0), 1)], Nvml()).read() == []


def test_it_never_raises_and_takes_no_time() -> None:
    def broken() -> list[GpuInfo]:
        raise RuntimeError("a surprise")

    assert GpuGauges(broken, Nvml()).read() == []
    metrics = GpuGauges(lambda: GPUS, Nvml())
    metrics.read()
    began = time.process_time()
    for _ in range(100):
        metrics.read()
    assert (time.process_time() - began) / 100 < 0.005
