"""A session: one thread that takes batches from its queue and answers them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from serving._front import BatchStages
from serving.engine.batcher import RequestQueue
from serving.engine.core_shares import CoreAccount, CoreShares
from serving.engine.requests import Answers, InferenceResult, QueuedRequest, RequestCancelled
from serving.engine.statistics import ModelStatistics, SessionStatistics
from serving.engine.warm_up import WarmUp, failed
from serving.model_config.instance_groups import Place
from serving.observing.watchers import WATCHERS
from serving.pipeline.host import Scores, ScoringPipeline
from serving.pipeline.levels import BatchLevels
from serving.pipeline.snapshot import SnapshotHistory
from serving.pipeline.user_side import SidedFeatures
from storage.errors import (
    ConfigError,
    CorruptStoreError,
    DeviceError,
    DeviceLost,
    EmberlineError,
    InvalidInput,
    StoreError,
)
from storage.features import FeatureBatch

logger = logging.getLogger("emberline.serving")


@dataclass(frozen=True)
class SessionParts:
    """Holds what the sessions of a version share."""

    history: SnapshotHistory
    #: The statistics of the main arm, then those of the canary.
    statistics: tuple[ModelStatistics, ModelStatistics]
    cores: CoreShares
    account: CoreAccount
    torch_threads: int
    #: The processors that the sessions may run on; None for all.
    cpus: frozenset[int] | None = None
    #: Requests that each session computes before its first real one.
    warm_ups: tuple[WarmUp, ...] = ()


class Session:
    """Answers batches on one thread until its queue ends it; an error in a request does not end it.

    Each batch is scored on one snapshot, which stays pinned until the scores are there.
    """

    def __init__(
        self,
        name: str,
        queue: RequestQueue,
        pipeline: ScoringPipeline,
        parts: SessionParts,
        place: Place = None,
        on_lost: Callable[[Place], None] | None = None,
    ) -> None:
        """Creates the session; `start` starts its thread.

        place: where the dense graph is computed; the thread itself runs on the processor in any case.
        on_lost: called on the session's thread when the place is lost; it must return quickly.
        """
        self.name = name
        self._on_lost = on_lost
        self.place = place
        self.queue = queue
        self.pipeline = pipeline
        self.statistics = SessionStatistics()
        self._parts = parts
        self._ended_ns = 0
        self._prepared = threading.Event()
        self._prepare_error: BaseException | None = None
        self._warm = threading.Event()
        self._warm_error: EmberlineError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_over(self) -> bool:
        """Returns whether the thread has ended, so that the session takes no more batches."""
        return not self._thread.is_alive()

    @property
    def counted(self) -> np.ndarray:
        """Returns the lookups counted for requests so far, as in Pipeline.counted; zeros until it is warm."""
        return self._counted_of(self.pipeline.counted)

    @property
    def levels_counted(self) -> np.ndarray:
        """Returns the levels counted for requests so far, as in LevelCounts.counted; zeros until it is warm."""
        return self._counted_of(self.pipeline.levels.counted)

    def _counted_of(self, counted: np.ndarray) -> np.ndarray:
        return counted if self._warm.is_set() else np.zeros_like(counted)

    def start(self) -> None:
        """Starts the thread, and waits until its pipeline is prepared. After a DeviceError the thread has ended."""
        self._thread.start()
        self._prepared.wait()
        if self._prepare_error is not None:
            self._thread.join()
            error, self._prepare_error = self._prepare_error, None  # a cycle would keep the session's memory
            raise error

    def wait_warm(self) -> None:
        """Waits until the session takes requests. Raises the error of a failed warm-up, after which it still serves."""
        self._warm.wait()
        if self._warm_error is not None:
            raise self._warm_error

    def join(self, timeout_s: float | None) -> bool:
        """Waits for the thread to end; returns False when it did not end in time."""
        self._thread.join(timeout_s)
        return self.is_over

    def _run(self) -> None:
        if self._parts.cpus is not None:
            try:
                os.sched_setaffinity(0, self._parts.cpus)  # 0 means this thread
            except OSError as error:
                logger.warning("%s: runs on any processor: %s", self.name, error)
        # OpenMP keeps the number of threads per calling thread; more than one takes cores that other sessions need.
        torch.set_num_threads(self._parts.torch_threads)
        try:
            self.pipeline.prepare()
        except BaseException as error:  # `start` raises it
            self._prepare_error = error
            self.pipeline.close()
            return
        finally:
            self._prepared.set()
        self._warm_up()
        try:
            self._work_off()
        finally:
            self.pipeline.close()

    def _work_off(self) -> None:
        while (batch := self.queue.take()) is not None:
            answers = Answers()
            lost = False
            try:
                with self._parts.cores.turn(self._parts.account):
                    self._work(batch, answers)
            except BaseException as error:
                for request in batch:
                    answers.add(request, error)
                lost = isinstance(error, DeviceLost)
            answers.send()
            if lost:
                if self._on_lost is not None:
                    self._on_lost(self.place)
                if self.queue.retire():
                    logger.error("%s: ends, for its GPU is lost; other sessions go on", self.name)
                    return

    def _warm_up(self) -> None:
        try:
            for warm_up in self._parts.warm_ups:
                self._compute(warm_up)
        except (ConfigError, StoreError, DeviceError) as error:
            logger.warning("%s: %s", self.name, error)
            self._warm_error = error
        finally:
            self.pipeline.begin_requests()
            self._warm.set()

    def _compute(self, warm_up: WarmUp) -> None:
        """Computes one warm-up request `count` times. Raises ConfigError naming the request that fails."""
        history = self._parts.history
        for _ in range(warm_up.count):
            snapshot = history.acquire()
            try:
                made = self.pipeline.features([(warm_up.columns, warm_up.batch)])
                self.pipeline.score([features for features, _ in made], snapshot)
            except (StoreError, DeviceError):
                raise  # nothing is wrong with the request
            except Exception as error:
                raise failed(warm_up, error) from error
            finally:
                history.release(snapshot)

    def _work(self, batch: list[QueuedRequest], answers: Answers) -> None:
        taken_ns = time.monotonic_ns()
        waiting: list[QueuedRequest] = []
        for request in batch:
            if request.abandoned:
                # Nobody waits, but its sink may hold memory for it.
                answers.add(request, RequestCancelled())
            else:
                waiting.append(request)
        requests, features = self._features(waiting, answers)
        if not requests:
            return
        input_ns = time.monotonic_ns() - taken_ns
        canary = requests[0].canary  # all requests of a batch belong to one arm
        snapshot = self._parts.history.acquire(canary)
        scores = None
        try:
            scores = self.pipeline.score(features, snapshot)
        except CorruptStoreError:
            if len(requests) == 1:
                raise
        finally:
            self._parts.history.release(snapshot)
        if scores is None:
            self._work_each(requests, answers)
            return
        output_ns = time.monotonic_ns()
        arrivals = [at_ns for request in requests for at_ns in request.arrivals_ns]
        stages = None
        if WATCHERS.is_on:
            stages = self._stages(requests, len(arrivals), scores, taken_ns, taken_ns + input_ns, output_ns)
        start = 0
        for request in requests:
            outputs = [np.ascontiguousarray(values[start : start + request.batch]) for values in scores.outputs]
            asked = None if scores.levels is None else partial(self._asked, scores.levels, start, request.batch)
            result = InferenceResult(outputs, snapshot, scores.counts.unresolved, asked, stages)
            answers.add(request, self._not_finite(outputs) or result)
            start += request.batch
        ended_ns = time.monotonic_ns()
        self._parts.statistics[canary].executed(
            rows=start,
            queue_ns=[taken_ns - at_ns for at_ns in arrivals],
            input_ns=input_ns,
            infer_ns=scores.infer_ns,
            output_ns=ended_ns - output_ns,
            lookup_ns=scores.lookup_ns,
            read_ns=scores.counts.read_ns,
        )
        self.statistics.worked(rows=start, requests=len(arrivals), ns=ended_ns - taken_ns)
        # Counted from the end of the previous batch if this one waited for it: the time between batches counts too.
        self.queue.worked(start, ended_ns - max(self._ended_ns, requests[0].arrived_ns))
        self._ended_ns = ended_ns

    def _stages(
        self,
        requests: list[QueuedRequest],
        count: int,
        scores: Scores,
        begun_ns: int,
        features_ns: int,
        graph_ns: int,
    ) -> BatchStages:
        """Returns when the stages of a batch ended. count: of the requests that clients have sent."""
        counts, lookup_ns = scores.counts, scores.lookup_ns
        return BatchStages(
            self.name,
            requests[0].taken_ns or begun_ns,
            begun_ns,
            features_ns,
            graph_ns - scores.infer_ns + lookup_ns if lookup_ns else 0,
            graph_ns,
            counts.read_ns,
            sum([request.batch for request in requests]),
            count,
            counts.hbm,
            counts.overlay,
            counts.dram,
            counts.ssd,
            counts.absent,
            counts.unresolved,
        )

    def _work_each(self, requests: list[QueuedRequest], answers: Answers) -> None:
        """Answers each request by itself, so that only those that need the damaged part of the store fail."""
        for request in requests:
            try:
                self._work([request], answers)
            except StoreError as error:
                answers.add(request, error)

    def _features(
        self, waiting: list[QueuedRequest], answers: Answers
    ) -> tuple[list[QueuedRequest], list[FeatureBatch | SidedFeatures]]:
        """Returns the requests whose features could be made, and the features; answers the others with their error."""
        try:
            made = self.pipeline.features([(request.columns, request.batch) for request in waiting])
        except Exception as error:
            if len(waiting) == 1:
                answers.add(waiting[0], error)
                return [], []
        else:
            # Each request notes its features and its first row in them.
            first = 0
            for features, count in made:
                row = 0
                for request in waiting[first : first + count]:
                    request.features, request.first_row = features, row
                    row += request.batch
                first += count
            return waiting, [features for features, _ in made]
        # At least one request is wrong; run alone, each shows whether it is the one.
        requests: list[QueuedRequest] = []
        whole: list[FeatureBatch | SidedFeatures] = []
        for request in waiting:
            good, own = self._features([request], answers)
            requests += good
            whole += own
        return requests, whole

    def _asked(self, levels: BatchLevels, first: int, rows: int, name: str) -> np.ndarray:
        """Returns the levels that ids of some rows of a batch read. name: of the output."""
        return levels.of_rows(self.pipeline.levels.by_output[name], first, rows)

    def _not_finite(self, outputs: list[np.ndarray]) -> InvalidInput | None:
        # The golden requests showed that the weights are sound, so the request's values are too large to compute with.
        for name, values in zip(self.pipeline.output_names, outputs, strict=True):
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                row = int(np.argwhere(~np.isfinite(values))[0][0])
                return InvalidInput(f"output {name!r}, row {row}: not a finite number; the row's inputs are too large")
        return None
