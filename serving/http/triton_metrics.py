"""Builds metrics with Triton's names, for dashboards and clients that were made for Triton.

Times are in microseconds and add up since the start; counts include the main arm and a canary.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.samples import Sample

from serving.engine.model import LoadedModel
from serving.engine.statistics import FAILURE_REASONS, LATENCY_BUCKETS_MS, ModelStatistics
from serving.gpu.gauges import GpuGauges
from serving.http.prometheus import Labels, family, label_value
from serving.repository.model_repository import Answerer
from storage.machine_memory import memory_of_machine


def _time_of(stage: str) -> Callable[[ModelStatistics], int]:
    return lambda arm: arm.stages[stage].ns // 1000


# Labels: model, version.
_COUNTERS: list[tuple[str, str, Callable[[ModelStatistics], int]]] = [
    ("request_success", "Requests answered", lambda a: a.stages["success"].count),
    ("count", "Rows scored", lambda a: a.inference_count),
    ("exec_count", "Batches executed", lambda a: a.execution_count),
    ("request_duration_us", "Time of requests that were answered, from end to end", _time_of("success")),
    ("queue_duration_us", "Time that requests waited for a session", _time_of("queue")),
    ("compute_input_duration_us", "Time that features of requests took", _time_of("compute_input")),
    ("compute_infer_duration_us", "Time that lookups and the dense graph took", _time_of("compute_infer")),
    ("compute_output_duration_us", "Time that taking results apart took", _time_of("compute_output")),
]
_HISTOGRAM = "nv_inference_first_response_histogram_ms"
_BUCKETS = (*map(str, LATENCY_BUCKETS_MS), "+Inf")


class MachineGauges:
    """Reads the use of processors, memory and GPUs; omits what the kernel does not report. Thread-safe."""

    def __init__(self, proc: Path = Path("/proc"), gpus: GpuGauges | None = None) -> None:
        """Creates the gauges. gpus: None for the GPUs that this process may use."""
        self._proc = proc
        self._gpus = gpus or GpuGauges()
        self._lock = threading.Lock()
        # Ticks of all processors since the start: those at work, and the total.
        self._before = (0, 0)

    def metrics(self) -> Iterator[Metric]:
        """Yields the gauges; utilization is measured since the last call, in the first since the machine's start."""
        utilization = self._utilization()
        if utilization is not None:
            meaning = "Share of the processors' time that was used, 0 to 1"
            yield family("nv_cpu_utilization", "gauge", meaning, [({}, utilization)])
        memory = memory_of_machine(self._proc)
        if memory is not None:
            total, free = memory
            yield family("nv_cpu_memory_total_bytes", "gauge", "Memory of the machine", [({}, total)])
            yield family("nv_cpu_memory_used_bytes", "gauge", "Memory that is not available", [({}, total - free)])
        for metric in self._gpus.read():
            values = (({"gpu_uuid": uuid}, float(told)) for uuid, told in metric.values.items())
            yield family(metric.name, metric.kind, metric.meaning, values)

    def _utilization(self) -> float | None:
        try:
            first = (self._proc / "stat").read_text().split("\n", 1)[0].split()
            # user nice system idle iowait irq softirq steal; guests are in user already
            ticks = [int(value) for value in first[1:9]]
        except (OSError, ValueError):
            return None
        if len(ticks) < 5:
            return None
        total = sum(ticks)
        now = (total - ticks[3] - ticks[4], total)
        with self._lock:
            before, self._before = self._before, now
        passed = now[1] - before[1]
        return min(1.0, max(0.0, (now[0] - before[0]) / passed)) if passed > 0 else 0.0


def triton_metrics(models: Iterable[Answerer], machine: MachineGauges) -> Iterator[Metric]:
    """Yields the metrics of models, of their tables that were requested, and of the machine."""
    endpoints: list[Answerer] = []
    for model in models:
        endpoints.append(model)
        if isinstance(model, LoadedModel):
            endpoints += model.open_tables
    known = [(each, {"model": label_value(each.name), "version": str(each.version)}) for each in endpoints]
    arms = [(list(endpoint.arms.values()), of) for endpoint, of in known]
    for name, meaning, value in _COUNTERS:
        yield family(f"nv_inference_{name}", "counter", meaning, ((of, sum(map(value, every))) for every, of in arms))
    failures = (
        ({**of, "reason": reason}, sum(arm.failures[reason] for arm in every))
        for every, of in arms
        for reason in FAILURE_REASONS
    )
    yield family("nv_inference_request_failure", "counter", "Requests not answered", failures)
    queued = ((of, endpoint.queued) for endpoint, of in known)
    yield family("nv_inference_pending_request_count", "gauge", "Requests that wait for a session", queued)
    histogram = Metric(_HISTOGRAM, "Milliseconds that requests took which were answered, from end to end.", "histogram")
    histogram.samples = [sample for every, of in arms for sample in _histogram(every, of)]
    yield histogram
    yield from machine.metrics()


def _histogram(arms: Sequence[ModelStatistics], of: Labels) -> Iterator[Sample]:
    counts = [sum(column) for column in zip(*[arm.latencies for arm in arms], strict=True)]
    total = 0
    for end, total in zip(_BUCKETS, itertools.accumulate(counts), strict=True):
        yield Sample(f"{_HISTOGRAM}_bucket", {**of, "le": end}, total)
    yield Sample(f"{_HISTOGRAM}_sum", of, sum(arm.stages["success"].ns for arm in arms) / 1e6)
    yield Sample(f"{_HISTOGRAM}_count", of, total)
