"""Traces what a GPU does under load, operation by operation: idle gaps, the parts of a batch's time, a picture.

The trace comes from torch's profiler on a GPU, and from the simulation otherwise.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.dense import dense_runs
from benchmarks.gpu.world import DenseRuns
from benchmarks.timeline import Span, between, idle_share, svg

IDLE_PERCENT = 10.0
_SESSIONS, _WINDOW_S, _PICTURE_US = 4, 2.0, 3000.0
_LONGEST_WAIT_S = 30.0
# The names of kernels and copies on the GPU in a trace.
_CATEGORIES = {"kernel": "kernel", "gpu_memcpy": "copy in", "gpu_memset": "other"}


def trace(bench: Bench) -> None:
    """Measures the GPU's idle share of a window under load, and the parts of a batch; draws a picture."""
    precision, batch = "bf16", bench.sizes.batch
    if not bench.is_simulated:
        _prepare_profiler()
    with dense_runs(bench, precision, [batch], count=_SESSIONS) as (sessions,):
        sessions[0].check(precision)
        one = recorded(bench, lambda: _repeat(sessions[0].whole, bench.times(200, 100, 5)))
        bench.remark(f"{precision}, batch {batch}, one idle session, by the trace: {parts_of(one)}")
        shares: list[float] = []
        spans: list[Span] = []
        counted = 0
        seconds = bench.seconds(_WINDOW_S, 1.0)
        for _ in range(bench.times(3, 1, 1)):
            with Load(sessions) as done:
                time.sleep(bench.seconds(0.5, 0.2))
                before = sum(done)
                # The sessions end before the trace is read: reading holds the interpreter for seconds.
                spans = recorded(bench, lambda: _wait(done, seconds), then=done.stop)
                counted = sum(done) - before
            shares.append(100.0 * idle_share(middle(spans)))
        window_s = (max(span.end for span in spans) - min(span.start for span in spans)) / 1e6
        bench.remark(
            f"{len(spans):,} operations in {window_s:.2f} s under {_SESSIONS} sessions, {counted} batches; "
            "the profiler itself slows launches down"
        )
        bench.pairs(
            f"idle gaps of the GPU, {_SESSIONS} sessions, {precision}, batch {batch}",
            shares,
            [IDLE_PERCENT] * len(shares),
            "bound",
            unit="%",
            target=1.0,
            less_is_better=True,
        )
        _draw(bench, spans)


def recorded(bench: Bench, work: Callable[[], object], then: Callable[[], object] = lambda: None) -> list[Span]:
    """Runs `work` and returns what ran on the GPU meanwhile.

    then: called before the trace is read. Raises RuntimeError when nothing was seen.
    """
    if bench.is_simulated:
        return _simulated_spans(bench, work)
    path = bench.run.work / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
    then()
    profiler.export_chrome_trace(str(path))
    spans = spans_of(path)
    path.unlink()
    if not spans:
        raise RuntimeError("the profiler saw nothing on the GPU: CUPTI may not be allowed here")
    return spans


def spans_of(path: Path) -> list[Span]:
    """Returns the kernels and copies of a trace that torch's profiler wrote."""
    found: list[Span] = []
    for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
        kind = _CATEGORIES.get(event.get("cat", ""))
        if kind is None or event.get("ph") != "X":
            continue
        name = str(event.get("name", ""))
        if kind == "copy in" and "DtoH" in name:
            kind = "copy out"
        elif kind == "copy in" and "HtoD" not in name:
            kind = "other"
        stream = event.get("args", {}).get("stream", event.get("tid", "?"))
        start = float(event["ts"])
        found.append(Span(f"stream {stream}", name, kind, start, start + float(event.get("dur", 0.0))))
    return sorted(found, key=lambda span: span.start)


def middle(spans: Sequence[Span]) -> list[Span]:
    """Returns the middle nine tenths of a window: at its ends the profiler itself delays the GPU."""
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    edge = 0.05 * (end - start)
    return between(spans, start + edge, end - edge)


def parts_of(spans: Sequence[Span]) -> str:
    """Describes the median batch; each begins with the copy of its inputs."""
    starts = [span.start for span in spans if span.kind == "copy in"]
    if not starts:
        return "no copy to the GPU was seen"
    parts: dict[str, list[float]] = {"copy in": [], "kernels": [], "copy out": [], "gaps": []}
    counts: list[int] = []
    for start, following in zip(starts, [*starts[1:], float("inf")], strict=True):
        batch = [span for span in spans if start <= span.start < following]
        long = max(span.end for span in batch) - start
        for name, kinds in (("copy in", ("copy in",)), ("kernels", ("kernel", "graph")), ("copy out", ("copy out",))):
            parts[name].append(sum(span.end - span.start for span in batch if span.kind in kinds))
        parts["gaps"].append(long * idle_share(batch))
        counts.append(sum(span.kind in ("kernel", "graph") for span in batch))
    words = [f"{name} {float(np.median(each)):.1f} us" for name, each in parts.items()]
    return f"{', '.join(words)}; {int(np.median(counts))} kernels"


class Load(list[int]):
    """The number of batches that each session did.

    A context manager: every session runs on a thread of its own meanwhile.
    """

    def __init__(self, sessions: Sequence[DenseRuns]) -> None:
        super().__init__([0] * len(sessions))
        self._sessions = sessions
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(len(sessions))]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the threads. Raises what they raised."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures.pop()

    def _run(self, number: int) -> None:
        try:
            self._sessions[number].enter_thread()
            while not self._stop.is_set():
                self._sessions[number].whole()
                self[number] += 1
        except BaseException as error:
            self._failures.append(error)


def _wait(done: Load, seconds: float) -> None:
    """Waits for `seconds`, and until every session has done at least three batches."""
    before = list(done)
    time.sleep(seconds)
    ends = time.monotonic() + _LONGEST_WAIT_S
    while any(now - then < 3 for now, then in zip(done, before, strict=True)) and time.monotonic() < ends:
        time.sleep(0.001)


def _repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def _prepare_profiler() -> None:
    """Initialises CUPTI, which must happen before the first graph exists."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        pass


def _simulated_spans(bench: Bench, work: Callable[[], object]) -> list[Span]:
    """Runs work on the simulated GPU; a step for each operation, beside whatever could run at the same time."""
    driver: Any = bench.gpu.driver.inner
    known = len(driver.trace)
    work()
    if len(driver.trace) == known:
        raise RuntimeError("nothing ran on the simulated GPU")
    kinds = {"launch": "graph", "compute": "kernel", "assemble": "kernel"}
    fresh = driver.trace[known:]
    numbers = {number: place for place, number in enumerate(sorted({ran.stream_number for ran in fresh}))}
    return [
        Span(
            f"session {numbers[ran.stream_number]}",
            ran.name,
            kinds.get(ran.kind, "copy in"),
            float(ran.start),
            float(ran.end),
        )
        for ran in fresh
    ]


def _draw(bench: Bench, spans: Sequence[Span]) -> None:
    path = bench.settings.svg
    if path is None:
        return
    half = (spans[0].start + spans[-1].start) / 2
    if bench.is_simulated:
        first = min(span.start for span in spans)
        part, unit = between(spans, first, first + 12), "steps"
        title = f"{_SESSIONS} sessions on a simulated GPU, in steps of one operation each: an order, no times"
    else:
        part, unit = between(spans, half, half + _PICTURE_US), "us"
        title = (
            f"{bench.gpu.driver.info.name}: {_SESSIONS} sessions, batch {bench.sizes.batch}, bf16, copies and graphs"
        )
    path.write_text(svg(part, title, unit=unit), encoding="utf-8")
    bench.remark(f"the picture is in {path}")
