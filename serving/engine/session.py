"""A session: one thread that takes batches from the queue and answers them."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import torch

from serving.engine.batcher import RequestQueue
from serving.engine.pipeline import Pipeline
from serving.engine.requests import Answers, InferenceResult, QueuedRequest
from serving.engine.snapshot import SnapshotLine
from serving.engine.statistics import ModelStatistics
from storage.errors import DeadlineExceeded, InvalidInput
from storage.features import FeatureBatch

logger = logging.getLogger("emberline.serving")


class Session:
    """Runs until the queue is closed and empty; never ends because of a request.

    Each batch is scored on one snapshot, pinned for as long as it takes. statistics: of the main arm, of the canary.
    """

    def __init__(
        self,
        name: str,
        queue: RequestQueue,
        pipeline: Pipeline,
        line: SnapshotLine,
        statistics: tuple[ModelStatistics, ModelStatistics],
        torch_threads: int,
    ) -> None:
        self._queue = queue
        self._pipeline = pipeline
        self._line = line
        self._statistics = statistics
        self._torch_threads = torch_threads
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def join(self, timeout_s: float | None) -> bool:
        """Waits for the end; False when it did not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # OpenMP keeps the number of threads a caller; more than one spins on cores that the other sessions need.
        torch.set_num_threads(self._torch_threads)
        while (batch := self._queue.take()) is not None:
            answers = Answers()
            try:
                self._work(batch, answers)
            except BaseException as error:
                for request in batch:
                    answers.add(request, error)
            answers.send()

    def _work(self, batch: list[QueuedRequest], answers: Answers) -> None:
        taken_ns = time.monotonic_ns()
        requests: list[QueuedRequest] = []
        features: list[FeatureBatch] = []
        for request in batch:
            if request.abandoned:
                continue
            if 0 < request.deadline_ns <= taken_ns:
                answers.add(request, DeadlineExceeded("request timeout expired in the queue"))
                continue
            try:
                request.features = self._pipeline.features(request.columns, request.batch)
            except Exception as error:
                answers.add(request, error)
            else:
                features.append(request.features)
                requests.append(request)
        if not requests:
            return
        input_ns = time.monotonic_ns() - taken_ns
        canary = requests[0].canary  # a batch is of one arm
        snapshot = self._line.acquire(canary)
        try:
            scores = self._pipeline.score(features, snapshot)
        finally:
            self._line.release(snapshot)
        output_ns = time.monotonic_ns()
        start = 0
        for request in requests:
            outputs = [np.ascontiguousarray(values[start : start + request.batch]) for values in scores.outputs]
            result = InferenceResult(outputs, snapshot, scores.counts.unresolved)
            answers.add(request, self._not_finite(outputs) or result)
            start += request.batch
        self._statistics[canary].executed(
            rows=start,
            queue_ns=[taken_ns - request.arrived_ns for request in requests],
            input_ns=input_ns,
            infer_ns=scores.infer_ns,
            output_ns=time.monotonic_ns() - output_ns,
        )

    def _not_finite(self, outputs: list[np.ndarray]) -> InvalidInput | None:
        # The golden requests showed sound weights, so it is the request's values that are too large to compute with.
        for name, values in zip(self._pipeline.output_names, outputs, strict=True):
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                row = int(np.argwhere(~np.isfinite(values))[0][0])
                return InvalidInput(f"output {name!r}, row {row}: not a finite number; the row's inputs are too large")
        return None
