"""Collects the times of requests and batches: the latency histogram with its exemplars, and the parts of batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.samples import Exemplar, Sample

from serving.engine.statistics import FINE_BUCKETS_MS, PARTS, ModelStatistics
from serving.http.prometheus import Labels, family
from serving.observing.observation import Observation

_HISTOGRAM = "emberline_request_seconds"
# Bounds in seconds, written as Go writes them.
_BOUNDS = (*(f"{bound / 1e3:.10g}" for bound in FINE_BUCKETS_MS), "+Inf")
_PARTS = "Time that sessions worked on batches, by what they did; ssd_read is a part of lookup"


def request_times(arms: Sequence[tuple[ModelStatistics, Labels]]) -> Iterator[Metric]:
    """Yields the histogram of answered requests, and the parts of batches."""
    # Spelled out for the reference of the metrics, which is read from this source.
    arms = [(arm, {"model": of["model"], "version": of["version"], "arm": of["arm"]}) for arm, of in arms]
    histogram = Metric(_HISTOGRAM, "Seconds from the arrival of answered requests until their answers.", "histogram")
    histogram.samples = [sample for arm, of in arms for sample in _histogram(arm, of)]
    yield histogram
    spent = (({**of, "part": part}, arm.parts[part] / 1e9) for arm, of in arms for part in PARTS)
    yield family("emberline_batch_seconds_total", "counter", _PARTS, spent)


def _histogram(arm: ModelStatistics, of: Labels) -> Iterator[Sample]:
    total = 0
    for bucket, (end, total) in enumerate(zip(_BOUNDS, itertools.accumulate(arm.fine_latencies), strict=True)):
        traced = arm.exemplars.get(bucket)
        exemplar = None if traced is None else Exemplar({"trace_id": traced.trace_id}, traced.ns / 1e9, traced.unix_s)
        yield Sample(f"{_HISTOGRAM}_bucket", {**of, "le": end}, total, exemplar=exemplar)
    yield Sample(f"{_HISTOGRAM}_sum", of, arm.stages["success"].ns / 1e9)
    yield Sample(f"{_HISTOGRAM}_count", of, total)


def observed(observation: Observation) -> Iterable[Metric]:
    """Yields what the access log and traces dropped, and the traces that were sent."""
    counts = observation.counts
    for name, meaning, count in (
        ("access_log_dropped_total", "Lines of the access log that were dropped", counts.dropped_lines),
        ("observed_dropped_total", "Slow or traced requests that were dropped", counts.dropped_requests),
        ("traces_sent_total", "Traced requests that the collector took", counts.exported),
        ("traces_dropped_total", "Traced requests that the collector did not get", counts.dropped_traces),
    ):
        yield family(f"emberline_{name}", "counter", meaning, [({}, count)])
