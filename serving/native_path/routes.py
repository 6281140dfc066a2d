"""Publishes the models of a repository to the native servers, and counts what these could not answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from serving._front import Model, Server
from serving._front import Routes as Paths
from serving.engine.endpoint import Endpoint
from serving.engine.requests import RequestCancelled, request_expired
from serving.native_path.models import connect_queues, native_model
from serving.repository.model_repository import ModelRepository
from serving.updates.routes import Routes
from storage.errors import Overloaded

AnyServer = TypeVar("AnyServer", bound=Server)

_DRAIN_LOOK_S = 0.01
# Why a request was not answered, by the native servers' numbers.
_REASONS: tuple[Callable[[], Exception], ...] = (
    request_expired,
    RequestCancelled,
    lambda: Overloaded("refused"),
)


class NativeRoutes:
    """The paths that native servers answer. Thread-safe."""

    def __init__(self, repository: ModelRepository) -> None:
        """Follows the repository's models from now on, as they come and go."""
        self._native: Paths | None = Paths()
        self._keys = itertools.count()
        self._endpoints: weakref.WeakValueDictionary[int, Endpoint] = weakref.WeakValueDictionary()
        self._models: weakref.WeakKeyDictionary[Endpoint, Model | None] = weakref.WeakKeyDictionary()
        self._paths: dict[str, frozenset[str]] = {}
        self._publishing = threading.Lock()
        repository.watch_routes(self._publish)

    @property
    def native(self) -> Paths:
        """Returns the paths, for the servers. It must not be closed."""
        assert self._native is not None
        return self._native

    def serve(self, name: str) -> bool:
        """Returns whether native servers answer requests for a model of this name."""
        return bool(self._paths.get(name))

    def close(self) -> None:
        """Follows the models no more, and lets go of what native code has of them. The servers must have ended."""
        with self._publishing:
            self._native = None
            self._models.clear()

    def record_missed(self, server: Server) -> None:
        """Counts the requests that a server could not answer."""
        for key, is_canary, took_ns, reason in server.take_missed():
            endpoint = self._endpoints.get(key)
            if endpoint is not None:
                statistics = endpoint.canary_statistics if is_canary else endpoint.statistics
                statistics.finished(took_ns, _REASONS[reason]())

    def _publish(self, name: str, routes: Routes) -> None:
        """Replaces the paths of a model. Called on the threads of updates."""
        base = f"/v2/models/{name}"
        with self._publishing:
            if self._native is None:
                return
            paths: dict[str, tuple[Model, Model | None, float]] = {}
            for version, endpoint in routes.by_version.items():
                model = self._model(endpoint)
                if model is not None:
                    paths[f"{base}/versions/{version}/infer"] = (model, None, 0.0)
            served = None if routes.served is None else self._model(routes.served)
            if served is not None and routes.canary is None:
                paths[f"{base}/infer"] = (served, None, 0.0)
            elif served is not None and routes.canary is not None:
                endpoint, share = routes.canary
                canary = self._model(endpoint)
                if canary is not None:
                    paths[f"{base}/infer"] = (served, canary, share)
            for path in self._paths.get(name, frozenset()) - paths.keys():
                self.native.set(path, None)
            for path, route in paths.items():
                self.native.set(path, *route)
            self._paths[name] = frozenset(paths)

    def _model(self, endpoint: Endpoint) -> Model | None:
        """Returns the native model of an endpoint, with its present canary; None where Python answers all requests."""
        if endpoint not in self._models:
            key = next(self._keys)
            self._models[endpoint] = model = native_model(endpoint, key)
            if model is not None:
                self._endpoints[key] = endpoint
                connect_queues(endpoint, model)
        model = self._models[endpoint]
        canary = endpoint.history.canary
        if model is not None:
            model.canary_share = 0.0 if canary is None else canary[1]
        return model


class NativeServer(Generic[AnyServer]):
    """Runs a native server beside an event loop, which it wakes for requests that are for Python."""

    def __init__(self, routes: NativeRoutes, start: Callable[[int], AnyServer]) -> None:
        """start: makes the server; it takes the descriptor by which the server wakes the loop."""
        #: Whether it takes no further connections.
        self.is_draining = False
        self._routes = routes
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._native: AnyServer | None = start(self._wake)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._wake, self._on_wake)

    @property
    def native(self) -> AnyServer:
        """Returns the native server. It must not have ended."""
        assert self._native is not None
        return self._native

    @property
    def counts(self) -> tuple[int, int] | None:
        """Returns the requests answered, and what was passed to the Python path so far; None once it has ended."""
        native = self._native
        return None if native is None else (native.answered, native.passed_on)

    @property
    def connections(self) -> tuple[int, dict[str, int]] | None:
        """Returns the open connections, and those with a stuck client by its address; None once it has ended."""
        native = self._native
        return None if native is None else (native.connections, dict(native.stuck()))

    def retire(self) -> None:
        """Goes on as before, but ends each connection with its next answer (GOAWAY over gRPC)."""
        self.native.retire()

    async def drain(self, timeout_s: float) -> None:
        """Accepts no further connections, answers the requests that were begun, and ends."""
        self.is_draining = True
        self.native.drain()
        deadline = time.monotonic() + timeout_s
        while self.native.connections and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_LOOK_S)
        self._loop.remove_reader(self._wake)
        await asyncio.get_running_loop().run_in_executor(None, self.native.stop)
        self._ended(self.native)
        os.close(self._wake)
        self._native = None

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._routes.record_missed(self.native)
        self._take(self.native)

    def _take(self, server: AnyServer) -> None:
        """Takes what the server has for the Python path, on the event loop."""

    def _ended(self, server: AnyServer) -> None:
        """Lets go of what the server had for the Python path when it ended."""
