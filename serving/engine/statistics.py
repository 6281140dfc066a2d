"""Counts and times the requests of one model, as Triton's statistics and the metrics page report them."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.engine.requests import ReplacedError, RequestCancelled
from storage.errors import DeadlineExceeded, EmberlineError, Overloaded, StoreError

STAGES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")

# Reasons of failure, as Triton names them: refused or too late; cancelled by the caller; a fault in computing; others.
FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

# What sessions do with a batch. The graph is what is left of compute_infer after the lookups, where these are known;
# ssd_read is a part of the lookups.
PARTS = ("features", "lookup", "ssd_read", "graph", "output")

# Upper bounds, in milliseconds, of the buckets of Triton's latency histogram; one more bucket has no upper bound.
LATENCY_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
# The same with ten buckets a decade, for percentiles; they divide the buckets above.
_PREFERRED = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
FINE_BUCKETS_MS = tuple(
    bound for decade in (0.1, 1, 10, 100, 1000) for each in _PREFERRED if (bound := round(each * decade, 4)) <= 5000
)
_BUCKETS_NS = tuple(round(bound * 1e6) for bound in FINE_BUCKETS_MS)
# The bucket of LATENCY_BUCKETS_MS that each fine one lies in.
_COARSE = tuple(bisect_left(LATENCY_BUCKETS_MS, bound) for bound in (*FINE_BUCKETS_MS, float("inf")))


@dataclass(slots=True)
class Duration:
    """Counts how often a stage ran, and its nanoseconds in total."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Adds `count` runs that took `ns` nanoseconds together."""
        self.count += count
        self.ns += ns


@dataclass(frozen=True, slots=True)
class Exemplar:
    """Names the trace of one request that is counted in a bucket."""

    trace_id: str
    ns: int
    unix_s: float


@dataclass(slots=True)
class BatchTimes:
    """Sums the times of the executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


class ModelStatistics:
    """Counts the requests, rows and batches of one arm of a model, and their times. Thread-safe."""

    # The most batch sizes that are counted apart; a client that sends every size must not make this grow without bound.
    MAX_BATCH_SIZES = 1024

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Rows that were scored.
        self.inference_count = 0
        #: Batches that were scored.
        self.execution_count = 0
        self.last_inference_ms = 0
        self.unresolved = 0
        #: Requests that met a full queue or a closed one.
        self.rejected = 0
        #: Times by stage; stages["success"] counts requests.
        self.stages = {name: Duration() for name in STAGES}
        #: Failed requests by FAILURE_REASONS.
        self.failures = dict.fromkeys(FAILURE_REASONS, 0)
        #: Answered requests by FINE_BUCKETS_MS, each in one bucket.
        self.fine_latencies = [0] * (len(FINE_BUCKETS_MS) + 1)
        #: The last request of each bucket that was traced.
        self.exemplars: dict[int, Exemplar] = {}
        #: Nanoseconds that sessions worked on batches, by PARTS.
        self.parts = dict.fromkeys(PARTS, 0)
        self.batches: dict[int, BatchTimes] = {}

    @property
    def latencies(self) -> list[int]:
        """Returns answered requests by LATENCY_BUCKETS_MS, each in one bucket."""
        counts = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        for place, count in zip(_COARSE, self.fine_latencies, strict=True):
            counts[place] += count
        return counts

    def executed(
        self,
        *,
        rows: int,
        queue_ns: list[int],
        input_ns: int,
        infer_ns: int,
        output_ns: int,
        lookup_ns: int = 0,
        read_ns: int = 0,
    ) -> None:
        """Records one batch.

        queue_ns: the wait of each of its requests. The other times are the whole batch's; lookup_ns is a part of
        infer_ns, read_ns one of lookup_ns.
        """
        requests, parts = len(queue_ns), self.parts
        with self._lock:
            self.inference_count += rows
            self.execution_count += 1
            self.last_inference_ms = time.time_ns() // 1_000_000
            self.stages["queue"].add(sum(queue_ns), requests)
            self.stages["compute_input"].add(input_ns * requests, requests)
            self.stages["compute_infer"].add(infer_ns * requests, requests)
            self.stages["compute_output"].add(output_ns * requests, requests)
            parts["features"] += input_ns
            parts["lookup"] += lookup_ns
            parts["ssd_read"] += read_ns
            parts["graph"] += infer_ns - lookup_ns
            parts["output"] += output_ns
            times = self.batches.get(rows)
            if times is None:
                if len(self.batches) >= self.MAX_BATCH_SIZES:
                    return
                times = self.batches[rows] = BatchTimes()
            times.compute_input.add(input_ns)
            times.compute_infer.add(infer_ns)
            times.compute_output.add(output_ns)

    def succeeded(self, took_ns: Sequence[int]) -> None:
        """Records that several requests were answered. took_ns: the time of each."""
        with self._lock:
            self.stages["success"].add(sum(took_ns), len(took_ns))
            for ns in took_ns:
                self.fine_latencies[bisect_left(_BUCKETS_NS, ns)] += 1

    def traced(self, ns: int, trace_id: str, unix_s: float) -> None:
        """Records that an answered request, which took so long, has a trace."""
        self.exemplars[bisect_left(_BUCKETS_NS, ns)] = Exemplar(trace_id, ns, unix_s)

    def finished(self, ns: int, error: BaseException | None = None) -> None:
        """Records the end of one request. error: why it was not answered."""
        with self._lock:
            if error is None:
                self.stages["success"].add(ns)
                self.fine_latencies[bisect_left(_BUCKETS_NS, ns)] += 1
                return
            self.stages["fail"].add(ns)
            self.failures[failure_reason(error)] += 1
            self.rejected += isinstance(error, Overloaded | ReplacedError)


def failure_reason(error: BaseException) -> str:
    """Returns which of FAILURE_REASONS an error belongs to.

    OTHER is for faults of the request itself: values too large to compute with, a snapshot that does not exist.
    """
    if isinstance(error, asyncio.CancelledError | RequestCancelled):
        return "CANCELED"
    if isinstance(error, Overloaded | DeadlineExceeded | ReplacedError):
        return "REJECTED"
    if isinstance(error, StoreError) or not isinstance(error, EmberlineError):
        return "BACKEND"
    return "OTHER"


class SessionStatistics:
    """Counts the work of one session. Only the session's thread writes it; any thread may read it."""

    def __init__(self) -> None:
        self.batches = 0
        self.requests = 0
        self.rows = 0
        self.busy_ns = 0

    def worked(self, *, rows: int, requests: int, ns: int) -> None:
        """Records one batch."""
        self.batches += 1
        self.requests += requests
        self.rows += rows
        self.busy_ns += ns
