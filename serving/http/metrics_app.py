"""Answers the requests of the metrics port."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from serving.control.calls import ControlCalls
from serving.http.encoding import compress
from serving.http.messages import HttpRequest, HttpResponse
from serving.repository.model_repository import ModelRepository
from storage.errors import Overloaded

if TYPE_CHECKING:
    from serving.http.metrics import NativeCounts, ServerMetrics
    from serving.http.port_connections import ConnectionCounts


PAGE = "/metrics"


class MetricsApp:
    """Implements HttpApplication with one page, /metrics."""

    def __init__(
        self,
        repository: ModelRepository,
        native_counts: NativeCounts = dict,
        restarts: int = 0,
        connections: ConnectionCounts = tuple,
    ) -> None:
        """native_counts, restarts, connections: see ServerMetrics."""
        self._repository = repository
        self._native_counts = native_counts
        self._restarts = restarts
        self._connections = connections
        self._calls = ControlCalls(limit=4)
        self._lock = threading.Lock()
        self._metrics: ServerMetrics | None = None

    def admit(self, request: HttpRequest) -> None:
        """Admits every request."""

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        """Returns None: `answer` handles every request."""

    def ended(self, request: HttpRequest, response: HttpResponse, *, is_sent: bool) -> None:
        """Does nothing: pages of metrics are not observed."""

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """See HttpApplication."""
        status, body, content_type = 404, b"only GET /metrics and GET /console are here\n", "text/plain; version=0.0.4"
        if request.path == PAGE and request.method == "GET":
            accept = request.headers.get(b"accept", b"").decode("latin-1")
            # Not on the event loop, because the counters wait while an update writes its state.
            try:
                status = 200
                body, content_type = await self._calls.run(lambda: self._page(accept))
            except Overloaded as error:
                status, body = 503, str(error).encode()
        headers = [(b"content-type", content_type.encode())]
        accepts = request.headers.get(b"accept-encoding")
        if accepts is not None:
            body = await compress(body, accepts, headers)
        return HttpResponse(status, body, headers)

    def _page(self, accept: str) -> tuple[bytes, str]:
        with self._lock:
            if self._metrics is None:
                # Imported here, because prometheus_client takes 10 ms to import, which would delay the start.
                from serving.http.metrics import ServerMetrics

                self._metrics = ServerMetrics(self._repository, self._native_counts, self._restarts, self._connections)
        return self._metrics.page(accept)
