"""Observes the requests of a server: what is asked for is noted natively, and one thread does the rest."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serving._front import KeptRequest, Observer
from serving.config import ServerConfig
from serving.observing.line_file import LineFile
from serving.observing.slow_requests import SlowRequests
from serving.observing.timeline import timeline
from serving.observing.trace_export import TraceExport, exporter_for
from serving.observing.watchers import WATCHERS
from serving.version import server_version
from storage.errors import ConfigError, Conflict, Unavailable

logger = logging.getLogger("emberline.serving")

# What waits for the thread at most: lines of the access log, and requests that are kept.
_MAX_LINE_BYTES, _MAX_KEPT = 4 << 20, 4096
# How often the thread takes what was noted.
_EVERY_S = 0.2
# How long the thread may take to write the last lines when the server stops: a disk or a pipe may have got stuck.
_END_S = 5.0
# How long a timeline waits for the thread to pass its last requests on.
_PASS_ON_S = 5.0
# The longest timeline, and the most requests of one; a request takes about a kilobyte in the file.
MAX_TIMELINE_S, MAX_TIMELINE_REQUESTS = 60.0, 20_000


@dataclass(frozen=True, slots=True)
class Sampling:
    """Says which requests are traced."""

    #: Whether any are.
    is_on: bool = False
    #: The share of those whose caller does not decide it.
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class ObservationCounts:
    """Counts what was dropped, and the traced requests that a collector took."""

    dropped_lines: int
    dropped_requests: int
    exported: int
    dropped_traces: int


class Observation:
    """Writes the access log, logs slow requests, and sends traces. Thread-safe.

    It costs nothing while nothing of this is asked for: `native.is_on` is false, and there is no thread.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        #: Takes note of requests that have ended.
        self.native = Observer(_MAX_LINE_BYTES, _MAX_KEPT)
        #: Called with each request that is traced and was answered, on the thread of this object.
        self.on_traced: Callable[[KeptRequest], None] = lambda request: None
        self._lock = threading.Lock()
        self._sampling = Sampling(False, config.trace_sampling)
        self._file: LineFile | None = None
        self._lost_lines = 0
        self._slow = SlowRequests()
        self._traces: TraceExport | None = None
        self._timeline: list[KeptRequest] | None = None
        self._is_whole = True
        self._thread: threading.Thread | None = None
        # How often the thread has passed on what it took.
        self._turned = threading.Condition()
        self._turns = 0
        self._is_watching = False
        # Set when the server stops: no timeline goes on, and after `close` no thread begins.
        self._stopping = threading.Event()
        self._is_closed = False

    @property
    def sampling(self) -> Sampling:
        """Returns which requests are traced."""
        return self._sampling

    @property
    def configured_sampling(self) -> Sampling:
        """Returns which requests are traced as the server was started."""
        return Sampling(self.can_trace, self._config.trace_sampling)

    @property
    def log_format(self) -> str:
        """Returns how lines of the log are written: console or json."""
        return self._config.log_format

    @property
    def can_trace(self) -> bool:
        """Returns whether there is a collector to send traces to."""
        return self._config.trace_otlp is not None

    @property
    def counts(self) -> ObservationCounts:
        """Returns what was dropped and sent so far."""
        traces = self._traces
        return ObservationCounts(
            self.native.dropped_lines + self._lost_lines,
            self.native.dropped_requests,
            0 if traces is None else traces.exported,
            0 if traces is None else traces.dropped,
        )

    def start(self) -> None:
        """Begins with what is configured. Raises ConfigError for a file that cannot be written, a missing package."""
        config = self._config
        if config.access_log is not None:
            self._file = LineFile(config.access_log, "access_log")
        if config.trace_otlp is not None:
            self._traces = _trace_export(config.trace_otlp)
            self._sampling = self.configured_sampling
        self._apply()

    def give_up(self) -> None:
        """Ends a timeline that is being recorded, so that a server which stops does not wait for it."""
        self._stopping.set()

    def close(self) -> None:
        """Writes and sends what was noted, and ends for good."""
        self.give_up()
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
            if self._is_watching:
                WATCHERS.remove()
                self._is_watching = False
        self.native.stop()
        if thread is not None:
            thread.join(_END_S)
            if thread.is_alive():
                logger.warning("the last lines of the access log could not be written within %g s", _END_S)
        if self._traces is not None:
            self._traces.stop()

    def trace(self, sampling: Sampling) -> None:
        """Changes which requests are traced. There has to be a collector."""
        assert self.can_trace
        self._sampling = sampling
        self._apply()

    def record_timeline(self, seconds: float) -> dict[str, Any]:
        """Records every request for a while, and returns the timeline.

        Raises Conflict while one is recorded, Unavailable when the server stops.
        """
        with self._lock:
            if self._timeline is not None:
                raise Conflict("another timeline is being recorded; try again when it has ended")
            self._timeline, self._is_whole = [], True
        began_ns, dropped = time.monotonic_ns(), self.native.dropped_requests
        try:
            self._apply()
            if self._stopping.wait(seconds):
                raise Unavailable("no timeline is recorded: the server is shutting down")
            is_whole = self._wait_for_turns() and self._is_whole and self.native.dropped_requests == dropped
        finally:
            with self._lock:
                requests, self._timeline = self._timeline or [], None
            self._apply()
        until_ns = began_ns + int(seconds * 1e9)
        whole = [request for request in requests if request.arrived_ns <= until_ns]
        return timeline(whole, began_ns, is_whole=is_whole, version=server_version())

    def _wait_for_turns(self) -> bool:
        """Waits until the thread has passed on all that was noted before this call; False where that takes too long."""
        with self._turned:
            # The turn under way may have taken what there was before.
            wanted = self._turns + 2
            return self._turned.wait_for(lambda: self._turns >= wanted, _PASS_ON_S)

    def _apply(self) -> None:
        """Lets requests be noted as it is asked for, and starts the thread where it is needed."""
        config, sampling = self._config, self._sampling
        with self._lock:
            if self._is_closed:
                return
            self.native.set(
                has_lines=self._file is not None,
                is_json=config.log_format == "json",
                slow_ns=int((config.slow_request_ms or 0) * 1e6),
                is_tracing=sampling.is_on,
                sampling=sampling.share,
                keeps_all=self._timeline is not None,
            )
            is_on = self.native.is_on
            if is_on != self._is_watching:
                (WATCHERS.add if is_on else WATCHERS.remove)()
                self._is_watching = is_on
            if not is_on:
                self._thread = None  # it ends with its next turn
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="emberline-observer", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        own = threading.current_thread()
        while True:
            is_last = self._thread is not own
            lines, kept = self.native.take(_EVERY_S)
            if lines and self._file is not None and not self._file.write(lines):
                self._lost_lines += lines.count(b"\n")
            for request in kept:
                try:
                    self._take(request)
                except Exception:
                    logger.exception("an observed request could not be reported")
            with self._turned:
                self._turns += 1
                self._turned.notify_all()
            if is_last:
                return

    def _take(self, request: KeptRequest) -> None:
        if request.is_slow:
            self._slow.write(request)
        if request.is_sampled and self._traces is not None:
            self._traces.offer(request)
            if request.stages is not None:
                self.on_traced(request)
        recorded = self._timeline
        if recorded is not None:
            if len(recorded) < MAX_TIMELINE_REQUESTS:
                recorded.append(request)
            else:
                self._is_whole = False


def _trace_export(url: str) -> TraceExport:
    # Imported here: OpenTelemetry is an optional package, and takes a while to import.
    exporter = exporter_for(url)
    try:
        from serving.observing.spans import SpanMaker
    except ImportError as error:
        raise ConfigError(f"trace_otlp: {error}; pip install 'emberline[tracing]'", field="trace_otlp") from None
    maker = SpanMaker(server_version(), {"host.name": socket.gethostname()})
    return TraceExport(exporter, maker.spans)
