"""Takes answered requests of a model from its sessions, and passes them on to the log on a thread of its own.

A session appends what it has to a bounded queue and goes on. The thread is not woken up: it would want the
interpreter's lock just when a session goes on after an answer, so it looks for work every few milliseconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from serving.engine.recent import columns_bytes, copied
from serving.engine.requests import InferenceResult, QueuedRequest, Sampled
from serving.feedback.served_batch import ServedBatch, ServedRequest
from serving.protocol.signature import ModelSignature
from storage.features.flat import FlatColumns

logger = logging.getLogger("emberline.serving")

# Bounds of the queue; a batch that is larger alone is dropped.
MAX_WAITING = 4096
MAX_BYTES = 64 << 20
# Seconds between looks for requests.
_LOOK_S = 0.02
# How long the thread may take for what waits when it is to end: a disk may have got stuck.
_END_S = 10.0
# Batches that are worked on between looks at the clock.
_BATCHES_AT_ONCE = 64


class Consumer(Protocol):
    """Takes batches of requests, on one thread."""

    def take(self, batch: ServedBatch) -> None:
        """Takes requests that were answered."""

    def tick(self, now: float) -> None:
        """Does what is due. now: of `time.monotonic`."""

    def close(self) -> None:
        """Finishes what was taken."""


class Tap:
    """Keeps answered requests until a thread has passed them on. Thread-safe. See RequestTap."""

    def __init__(self, model: str, share: float, consumer: Consumer) -> None:
        """Starts its thread."""
        self.share = share
        self._model = model
        self._consumer = consumer
        self._lock = threading.Lock()
        self._waiting: deque[ServedBatch] = deque()
        self._bytes = 0
        #: Requests that were dropped, by the reason.
        self.dropped = {"full": 0, "large": 0, "failed": 0}
        self._closed = threading.Event()
        self._seen = threading.Condition(threading.Lock())
        self._working = False
        self.thread = threading.Thread(target=self._run, name=f"{model}-feedback", daemon=True)
        self.thread.start()

    @property
    def waiting(self) -> int:
        """Returns the number of batches that were not passed on yet."""
        return len(self._waiting) + self._working

    def offer(
        self, call: QueuedRequest, result: InferenceResult, sampled: Sequence[Sampled], signature: ModelSignature
    ) -> None:
        """See RequestTap. The bytes of a batch are counted as a whole, since they stay in memory as a whole."""
        try:
            self._offer(call, result, sampled, signature)
        except Exception:
            logger.exception("%s: a request could not be kept for the log", self._model)
            self._drop("failed", len(sampled))

    def close(self) -> None:
        """Passes on what waits, and ends the thread; one that is stuck is left alone after a while."""
        self._closed.set()
        self.thread.join(_END_S)
        if self.thread.is_alive():
            logger.warning("%s: the log of requests could not be finished within %g s", self._model, _END_S)

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that was offered so far was passed on; returns False when that takes too long."""
        with self._seen:
            return self._seen.wait_for(lambda: not self._waiting and not self._working, timeout_s)

    def _offer(
        self, call: QueuedRequest, result: InferenceResult, sampled: Sequence[Sampled], signature: ModelSignature
    ) -> None:
        columns, size = call.columns, sum(values.nbytes for values in result.outputs)
        size += columns.data.nbytes if isinstance(columns, FlatColumns) else columns_bytes(columns)
        if size > MAX_BYTES:
            self._drop("large", len(sampled))
            return
        if self._bytes + size > MAX_BYTES or len(self._waiting) >= MAX_WAITING or self._closed.is_set():
            self._drop("full", len(sampled))
            return
        if not isinstance(columns, FlatColumns):
            # They lie in the body of the request, or in a buffer for shared memory, which is needed for others.
            columns = copied(columns)
        behind_ns = time.time_ns() - time.monotonic_ns()
        rows, arrivals = call.rows_of_each, call.arrivals_ns
        starts = [0]
        for count in rows:
            starts.append(starts[-1] + count)
        requests = [
            ServedRequest(
                each.id,
                each.point,
                starts[each.place],
                starts[each.place + 1],
                (arrivals[each.place] + behind_ns) // 1000,
            )
            for each in sampled
        ]
        batch = ServedBatch(
            columns,
            result.outputs,
            call.batch,
            requests,
            signature,
            result.snapshot.name,
            "canary" if call.canary else "main",
            size,
        )
        with self._lock:
            self._bytes += size
        self._waiting.append(batch)

    def _drop(self, reason: str, count: int) -> None:
        with self._lock:
            self.dropped[reason] += count

    def _run(self) -> None:
        while True:
            is_last = self._closed.is_set()
            try:
                self._work()
                self._consumer.tick(time.monotonic())
            except Exception:
                logger.exception("%s: answered requests could not be looked at", self._model)
            if is_last and not self._waiting:
                break
            if not self._waiting:
                self._closed.wait(_LOOK_S)
        try:
            self._consumer.close()
        except Exception:
            logger.exception("%s: the log could not be finished", self._model)

    def _work(self) -> None:
        for _ in range(_BATCHES_AT_ONCE):
            with self._seen:
                if not self._waiting:
                    self._seen.notify_all()
                    return
                batch = self._waiting.popleft()
                self._working = True
            try:
                self._consumer.take(batch)
            except Exception:
                logger.exception("%s: answered requests could not be looked at", self._model)
                self._drop("failed", len(batch.requests))
            finally:
                with self._lock:
                    self._bytes -= batch.size_bytes
                with self._seen:
                    self._working = False
