"""Counts and times of one model, as Triton's statistics and the metrics page report them."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field

from serving.engine.requests import ReplacedError, RequestCancelled
from storage.errors import DeadlineExceeded, EmberlineError, Overloaded, StoreError

STAGES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")

# Why requests failed, in Triton's words: turned away or too late; given up by the caller; a fault in computing; else.
FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

# Upper ends of the buckets of answered requests' times, milliseconds; one more bucket is without an end.
LATENCY_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_BUCKETS_NS = tuple(bound * 1_000_000 for bound in LATENCY_BUCKETS_MS)


@dataclass(slots=True)
class Duration:
    """How often a stage ran, and nanoseconds in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Adds `count` runs that took `ns` together."""
        self.count += count
        self.ns += ns


@dataclass(slots=True)
class BatchTimes:
    """Times of the executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


class ModelStatistics:
    """Thread-safe. inference_count counts rows, execution_count batches, stages["success"] requests.

    failures: by FAILURE_REASONS. rejected: those that met a full queue or a closed one. latencies: answered requests by
    LATENCY_BUCKETS_MS, each in one bucket.
    """

    # Batch sizes kept apart; a client that sends every size must not make this grow without end.
    MAX_BATCH_SIZES = 1024

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        self.unresolved = 0
        self.rejected = 0
        self.stages = {name: Duration() for name in STAGES}
        self.failures = dict.fromkeys(FAILURE_REASONS, 0)
        self.latencies = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self.batches: dict[int, BatchTimes] = {}

    def executed(self, *, rows: int, queue_ns: list[int], input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Notes one batch. queue_ns: of each of its requests. The other times are the batch's, once for all of them."""
        requests = len(queue_ns)
        with self._lock:
            self.inference_count += rows
            self.execution_count += 1
            self.last_inference_ms = time.time_ns() // 1_000_000
            self.stages["queue"].add(sum(queue_ns), requests)
            self.stages["compute_input"].add(input_ns * requests, requests)
            self.stages["compute_infer"].add(infer_ns * requests, requests)
            self.stages["compute_output"].add(output_ns * requests, requests)
            times = self.batches.get(rows)
            if times is None:
                if len(self.batches) >= self.MAX_BATCH_SIZES:
                    return
                times = self.batches[rows] = BatchTimes()
            times.compute_input.add(input_ns)
            times.compute_infer.add(infer_ns)
            times.compute_output.add(output_ns)

    def finished(self, ns: int, error: BaseException | None = None) -> None:
        """Notes the end of one request. error: why it was not answered."""
        with self._lock:
            if error is None:
                self.stages["success"].add(ns)
                self.latencies[bisect_left(_BUCKETS_NS, ns)] += 1
                return
            self.stages["fail"].add(ns)
            self.failures[failure_reason(error)] += 1
            self.rejected += isinstance(error, Overloaded | ReplacedError)


def failure_reason(error: BaseException) -> str:
    """One of FAILURE_REASONS.

    OTHER is what the request brought with it: values too large to compute with, a snapshot that there is not.
    """
    if isinstance(error, asyncio.CancelledError | RequestCancelled):
        return "CANCELED"
    if isinstance(error, Overloaded | DeadlineExceeded | ReplacedError):
        return "REJECTED"
    if isinstance(error, StoreError) or not isinstance(error, EmberlineError):
        return "BACKEND"
    return "OTHER"


class SessionStatistics:
    """What one session did. Written by its thread alone; any thread reads."""

    def __init__(self) -> None:
        self.batches = 0
        self.requests = 0
        self.rows = 0
        self.busy_ns = 0

    def worked(self, *, rows: int, requests: int, ns: int) -> None:
        """Notes one batch."""
        self.batches += 1
        self.requests += requests
        self.rows += rows
        self.busy_ns += ns
