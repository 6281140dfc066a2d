"""The metrics page under Triton's names, for dashboards and clients that were made for Triton.

Times are microseconds since the start, counts are of the main arm and a canary together.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from serving.engine.model import LoadedModel
from serving.engine.statistics import FAILURE_REASONS, LATENCY_BUCKETS_MS, ModelStatistics
from serving.gpu.gauges import GpuGauges
from serving.http.prometheus import head, label_text
from serving.repository.model_repository import Answerer


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


class MachineGauges:
    """Processor and memory of the machine, from the kernel, and its GPUs; nothing where they do not say. Any thread."""

    def __init__(self, proc: Path = Path("/proc"), gpus: GpuGauges | None = None) -> None:
        """gpus: None for those that this process may use."""
        self._proc = proc
        self._gpus = gpus or GpuGauges()
        self._lock = threading.Lock()
        # Of all processors since the start, in ticks: at work, and altogether.
        self._before = (0, 0)

    def lines(self) -> list[str]:
        """The metrics. The utilization is that since the last call; since the machine's start in the first."""
        found: list[tuple[str, str, str]] = []
        utilization = self._utilization()
        if utilization is not None:
            found.append(("utilization", "Share of the processors' time that was used, 0 to 1", f"{utilization:.6f}"))
        memory = self._memory()
        if memory is not None:
            found.append(("memory_total_bytes", "Memory of the machine", str(memory[0])))
            found.append(("memory_used_bytes", "Memory that is not available", str(memory[0] - memory[1])))
        lines: list[str] = []
        for name, meaning, value in found:
            head(lines, f"nv_cpu_{name}", "gauge", meaning)
            lines.append(f"nv_cpu_{name} {value}")
        for metric in self._gpus.read():
            head(lines, metric.name, metric.kind, metric.meaning)
            lines.extend(f"{metric.name}{{{label_text(gpu_uuid=uuid)}}} {told}" for uuid, told in metric.values.items())
        return lines

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

    def _memory(self) -> tuple[int, int] | None:
        """Bytes that there are, and bytes that could be had."""
        kib: dict[str, int] = {}
        try:
            for line in (self._proc / "meminfo").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    kib[name] = int(rest.split()[0])
        except (OSError, ValueError, IndexError):
            return None
        if len(kib) < 2:
            return None
        return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024


def triton_lines(models: Iterable[Answerer], machine: MachineGauges) -> list[str]:
    """The metrics of models, their tables that were asked for, and the machine."""
    lines: list[str] = []
    endpoints: list[Answerer] = []
    for model in models:
        endpoints.append(model)
        if isinstance(model, LoadedModel):
            endpoints += model.open_tables
    known = [(endpoint, label_text(model=endpoint.name, version=endpoint.version)) for endpoint in endpoints]
    arms = [(list(endpoint.arms.values()), of) for endpoint, of in known]
    for name, meaning, value in _COUNTERS:
        head(lines, f"nv_inference_{name}", "counter", meaning)
        lines.extend(f"nv_inference_{name}{{{of}}} {sum(map(value, every))}" for every, of in arms)
    head(lines, "nv_inference_request_failure", "counter", "Requests not answered")
    for every, of in arms:
        for reason in FAILURE_REASONS:
            count = sum(arm.failures[reason] for arm in every)
            lines.append(f'nv_inference_request_failure{{{of},reason="{reason}"}} {count}')
    head(lines, "nv_inference_pending_request_count", "gauge", "Requests that wait for a session")
    lines.extend(f"nv_inference_pending_request_count{{{of}}} {endpoint.queued}" for endpoint, of in known)
    head(lines, _HISTOGRAM, "histogram", "Milliseconds that requests took which were answered, from end to end")
    for every, of in arms:
        _histogram(lines, every, of)
    lines += machine.lines()
    return lines


def _histogram(lines: list[str], arms: Sequence[ModelStatistics], of: str) -> None:
    counts = [sum(column) for column in zip(*[arm.latencies for arm in arms], strict=True)]
    ends = [*map(str, LATENCY_BUCKETS_MS), "+Inf"]
    total = 0
    for end, total in zip(ends, itertools.accumulate(counts), strict=True):
        lines.append(f'{_HISTOGRAM}_bucket{{{of},le="{end}"}} {total}')
    spent_ms = sum(arm.stages["success"].ns for arm in arms) / 1e6
    lines.append(f"{_HISTOGRAM}_sum{{{of}}} {spent_ms:.6f}")
    lines.append(f"{_HISTOGRAM}_count{{{of}}} {total}")
