"""Reads metrics of this process's GPUs as NVIDIA's management library (NVML) counts them: Triton's GPU metrics."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from serving.gpu.driver import GpuInfo
from serving.gpu.gpus import known_gpus

logger = logging.getLogger("emberline.serving")

# Values are kept for as long as Triton keeps them: a page that is read more often repeats itself.
_GOOD_FOR_S = 1.0


@dataclass
class GpuMetric:
    """One metric."""

    name: str
    #: Type of the metric in Prometheus.
    kind: str
    meaning: str
    #: Values by the GPU's UUID; GPUs that do not report are absent.
    values: dict[str, str] = field(default_factory=dict)


class GpuGauges:
    """Reads the metrics. Thread-safe; never raises. Returns none in a process that uses no GPU: it does not
    start CUDA.
    """

    def __init__(self, find: Callable[[], Sequence[GpuInfo] | None] | None = None, nvml: Any = None) -> None:
        """Prepares reading.

        find: returns the GPUs, None as long as they are not known. nvml: has the functions of pynvml; None: pynvml
        itself, if it is installed.
        """
        self._find = find or _gpus
        self._given = nvml
        self._lock = threading.Lock()
        self._gpus: list[_Gpu] | None = None
        self._read_at = 0.0
        self._last: list[GpuMetric] = []

    def read(self) -> list[GpuMetric]:
        """Returns the metrics that any GPU reports, as they were within the last second."""
        with self._lock:
            try:
                if self._gpus is None and (infos := self._find()) is not None:
                    self._gpus = self._look([info for info in infos if info.uuid])
                if not self._gpus:
                    return []
                now = time.monotonic()
                if not self._last or now - self._read_at > _GOOD_FOR_S:
                    self._read_at = now
                    self._last = _metrics(self._gpus)
            except Exception:
                logger.debug("no metrics of GPUs", exc_info=True)
                self._last = []
            return self._last

    def _look(self, infos: list[GpuInfo]) -> list[_Gpu]:
        if not infos:
            return []
        nvml = self._given
        try:
            if nvml is None:
                nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception as error:
            logger.info("metrics of GPUs: memory alone, for NVML is not there: %s", error)
            nvml = None
        return [_Gpu(info, nvml) for info in infos]


class _Gpu:
    def __init__(self, info: GpuInfo, nvml: Any) -> None:
        self.uuid = info.uuid
        self._info = info
        self._nvml = nvml
        self._handle = self._ask(lambda: nvml.nvmlDeviceGetHandleByUUID(info.uuid)) if nvml is not None else None
        self._energy_mj = self._number("nvmlDeviceGetTotalEnergyConsumption")

    def utilization(self) -> str | None:
        rates = self._asked("nvmlDeviceGetUtilizationRates")
        return None if rates is None else f"{rates.gpu / 100:.2f}"

    def memory(self) -> tuple[int, int] | None:
        """Returns total bytes and bytes in use."""
        info = self._asked("nvmlDeviceGetMemoryInfo")
        if info is not None:
            return int(info.total), int(info.used)
        # Without NVML: torch knows it too, but would start CUDA for it.
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return None
        told: tuple[int, int] | None = self._ask(lambda: torch.cuda.mem_get_info(self._info.index))
        return None if told is None else (told[1], told[1] - told[0])

    def watts(self, function: str) -> str | None:
        milliwatts = self._number(function)
        return None if milliwatts is None else f"{milliwatts / 1000:.3f}"

    def joules(self) -> str | None:
        now = self._number("nvmlDeviceGetTotalEnergyConsumption")
        if now is None or self._energy_mj is None:
            return None
        return f"{(now - self._energy_mj) / 1000:.3f}"

    def _number(self, function: str) -> int | None:
        told = self._asked(function)
        return None if told is None else int(told)

    def _asked(self, function: str) -> Any:
        if self._handle is None:
            return None
        return self._ask(lambda: getattr(self._nvml, function)(self._handle))

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception:  # not every GPU reports everything
            return None


def _metrics(gpus: list[_Gpu]) -> list[GpuMetric]:
    metrics = [
        GpuMetric("nv_gpu_utilization", "gauge", "Share of the time that the GPU computed, 0 to 1"),
        GpuMetric("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU"),
        GpuMetric("nv_gpu_memory_used_bytes", "gauge", "Memory of the GPU in use, by anyone"),
        GpuMetric("nv_gpu_power_usage", "gauge", "Watts that the GPU takes"),
        GpuMetric("nv_gpu_power_limit", "gauge", "Watts that the GPU may take"),
        GpuMetric("nv_energy_consumption", "counter", "Joules that the GPU took since the page was read first"),
    ]
    for gpu in gpus:
        memory = gpu.memory()
        told = (
            gpu.utilization(),
            None if memory is None else str(memory[0]),
            None if memory is None else str(memory[1]),
            gpu.watts("nvmlDeviceGetPowerUsage"),
            gpu.watts("nvmlDeviceGetEnforcedPowerLimit"),
            gpu.joules(),
        )
        for metric, value in zip(metrics, told, strict=True):
            if value is not None:
                metric.values[gpu.uuid] = value
    return [metric for metric in metrics if metric.values]


def _gpus() -> Sequence[GpuInfo] | None:
    gpus = known_gpus()
    if gpus is None:
        return None
    return () if gpus.why_none else gpus.infos
