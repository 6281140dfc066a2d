"""Sends the spans of traced requests to an OpenTelemetry collector, on a thread of its own."""

from __future__ import annotations

import importlib
import logging
import threading
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from serving._front import KeptRequest
from serving.observing.redaction import redacted
from storage.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger("emberline.serving")

# Requests that wait to be sent; more are dropped and counted.
MAX_WAITING = 4096
# Requests sent at a time, and how long fewer wait for more.
_AT_ONCE, _WAIT_S = 256, 1.0
_TIMEOUT_S = 10.0
# How long the last ones may take when the server stops.
_STOP_S = 3.0
_INSTALL = "trace_otlp: needs OpenTelemetry's packages: pip install 'emberline[tracing]'"
_HTTP_PATH = "/v1/traces"


class TraceExport:
    """Sends requests as spans. Thread-safe."""

    def __init__(self, exporter: SpanExporter, spans: Callable[[KeptRequest], list[Any]]) -> None:
        """exporter: of OpenTelemetry. spans: makes the spans of a request; called on the thread of this object."""
        self._exporter = exporter
        self._spans = spans
        self._changed = threading.Condition()
        self._waiting: list[KeptRequest] = []
        self._is_stopping = self._is_given_up = False
        #: Requests whose spans the collector took, and those that it did not get.
        self.exported = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="emberline-trace-export", daemon=True)
        self._thread.start()

    def offer(self, request: KeptRequest) -> None:
        """Sends a request soon, or counts it as dropped when too many wait."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
                return
            self._waiting.append(request)
            if len(self._waiting) == _AT_ONCE:
                self._changed.notify()

    def stop(self) -> None:
        """Sends what waits, for a short time, and ends; what the collector has not taken by then is dropped."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            return
        with self._changed:
            self._is_given_up = True
            self.dropped += len(self._waiting)
            self._waiting = []
        logger.warning("the last traces could not be sent within %g s", _STOP_S)
        self._exporter.shutdown()  # it would try again what the thread is sending

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or len(self._waiting) >= _AT_ONCE, _WAIT_S)
                requests, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
                is_last = self._is_stopping and not self._waiting
            if requests:
                self._send(requests)
            if is_last:
                if not self._is_given_up:
                    self._exporter.shutdown()
                return

    def _send(self, requests: list[KeptRequest]) -> None:
        try:
            result = self._exporter.export([span for request in requests for span in self._spans(request)])
            is_sent = result.name == "SUCCESS"
        except Exception as error:
            logger.warning("traces could not be sent: %s", redacted(str(error)))
            is_sent = False
        with self._changed:
            if is_sent:
                self.exported += len(requests)
            else:
                self.dropped += len(requests)


def exporter_for(url: str) -> SpanExporter:
    """Returns OpenTelemetry's exporter for a collector.

    url: http:// or https:// for OTLP over HTTP, where /v1/traces is added to a URL without a path; grpc://HOST:PORT or
    grpcs://HOST:PORT for OTLP over gRPC. Raises ConfigError where the packages are missing.
    """
    parts = urllib.parse.urlsplit(url)
    is_grpc = parts.scheme in ("grpc", "grpcs")
    module = f"opentelemetry.exporter.otlp.proto.{'grpc' if is_grpc else 'http'}.trace_exporter"
    try:
        make = importlib.import_module(module).OTLPSpanExporter
    except ImportError:
        raise ConfigError(_INSTALL, field="trace_otlp") from None
    if is_grpc:
        made: SpanExporter = make(endpoint=parts.netloc, insecure=parts.scheme == "grpc", timeout=_TIMEOUT_S)
        return made
    endpoint = url if parts.path.strip("/") else urllib.parse.urlunsplit(parts._replace(path=_HTTP_PATH))
    over_http: SpanExporter = make(endpoint=endpoint, timeout=_TIMEOUT_S)
    return over_http
