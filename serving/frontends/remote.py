"""Gives a front end access to the engine's models, repository and control routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from serving.control.models import Model
from serving.frontends.engine_connection import EngineConnection, RemoteAnswer
from serving.frontends.signatures import signature_from_wire
from serving.http.messages import LIVE, READY, HttpRequest, HttpResponse, health_response
from serving.protocol.signature import SignatureChanged
from serving.repository.identity import IdentityModel
from serving.repository.regions import OpenRegions, RegionName, SegmentPlace
from storage.errors import EmberlineError, Overloaded, Unavailable
from storage.features import Column

# After a refusal the engine is not asked for this long: a request that would be refused costs nothing then.
_REST_S = 0.001
_LOOK_S = 1.0

logger = logging.getLogger("emberline.serving")


class RemoteModel:
    """Is a model of the engine. See serving.control.models.Model."""

    def __init__(
        self, link: EngineConnection, models: RemoteModels, key: tuple[str, str], content: dict[str, Any]
    ) -> None:
        self._link = link
        self._models = models
        self.key = key
        #: The engine's number for the model.
        self.target = int(content["target"])
        self._resting_until = 0.0
        self._refusal = ""
        self.signature = signature_from_wire(content["signature"])
        #: The indexes of its inputs by name.
        self._places = {entry.name: place for place, entry in enumerate(self.signature.raw)}

    def answers(self, version: str) -> bool:
        """See Model."""
        return self._models.known(*self.key, "") is self

    def check_load(self) -> None:
        """See Model."""
        if self._refusal:
            if time.monotonic() < self._resting_until:
                raise Overloaded(self._refusal)
            self._refusal = ""

    async def infer(
        self,
        columns: Mapping[str, Column],
        batch: int,
        timeout_us: int = 0,
        *,
        min_snapshot: str = "",
        follow: bool = True,
        priority: int = 0,
        routing_key: str = "",
    ) -> RemoteAnswer:
        """See Model. A version that was asked for by number is never followed."""
        try:
            return await self._link.infer(
                self.target,
                self.signature,
                self._places,
                columns,
                batch,
                timeout_us,
                priority,
                routing_key,
                min_snapshot,
            )
        except SignatureChanged:
            self._models.forget(self.key, self)
            raise
        except Overloaded as error:
            self._refusal, self._resting_until = str(error), time.monotonic() + _REST_S
            raise


class RemoteIdentity(IdentityModel):
    """Answers an identity model in the front end; the engine checks that it still is one, and counts its requests."""

    def __init__(
        self, link: EngineConnection, models: RemoteModels, key: tuple[str, str], content: dict[str, Any]
    ) -> None:
        identity = content["identity"]
        signature = signature_from_wire(content["signature"])
        super().__init__(signature, identity["version"], identity["delay_s"], self._tell)
        self._link = link
        self._models = models
        self.key = key
        self.target = int(content["target"])

    def answers(self, version: str) -> bool:
        """See Model."""
        return self._models.known(*self.key, "") is self

    async def _tell(self, rows: int, took_ns: int) -> None:
        try:
            await self._link.call({"call": "identity", "target": self.target, "rows": rows, "took_ns": took_ns})
        except SignatureChanged:
            self._models.forget(self.key, self)
            raise


class RemoteRegions(OpenRegions):
    """Opens in the front end the regions that are registered with the engine. Implements serving.protocol's Regions."""

    def __init__(self, link: EngineConnection, max_read: int, max_held: int = sys.maxsize) -> None:
        super().__init__(max_read, max_held)
        self._link = link
        self._generation = 0
        self._asking: asyncio.Task[bool] | None = None

    @property
    def is_stale(self) -> bool:
        """See Regions."""
        return self._link.announced != self._generation

    async def refresh(self) -> None:
        """See Regions. Concurrent callers wait for the same answer, and for the next where that is too old."""
        while self.is_stale:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            if not await asyncio.shield(self._asking):
                return

    async def keep_current(self) -> None:
        """Closes unregistered regions also while there are no requests. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.is_stale:
                with contextlib.suppress(EmberlineError):
                    await self.refresh()

    async def _ask(self) -> bool:
        """Asks the engine, and returns whether all that is registered is open now."""
        answer, _ = await self._link.call({"call": "regions"})
        wanted = {RegionName(*said): SegmentPlace(*place) for said, place in answer["regions"]}
        opened = set(self.names)
        self.drop(said.name for said in opened if said not in wanted)
        for said, place in wanted.items():
            if said not in opened:
                try:
                    self.put(said, place.open())
                except FileNotFoundError:
                    continue  # closed meanwhile: it is unregistered, which the next request finds out
                except OSError as error:
                    logger.error("a shared memory region cannot be opened: %s", error.strerror)
                    return False  # to be tried again
        self._generation = answer["generation"]
        return True

    def forget_all(self) -> None:
        """Drops everything: the engine is another one, where nothing is registered."""
        self.drop(said.name for said in self.names)
        self._generation = 0


class RemoteModels:
    """Keeps the models of one engine."""

    def __init__(self, link: EngineConnection, max_read: int, max_held: int = sys.maxsize) -> None:
        """Creates an empty set of models. max_read, max_held: as in OpenRegions."""
        self._link = link
        self._regions = RemoteRegions(link, max_read, max_held)
        self._known: dict[tuple[str, str], RemoteModel | RemoteIdentity] = {}

    @property
    def regions(self) -> RemoteRegions:
        """See Models."""
        return self._regions

    def forget_all(self) -> None:
        """Drops all models: the engine is another one."""
        self._known = {}
        self._regions.forget_all()

    def forget(self, key: tuple[str, str], model: RemoteModel | RemoteIdentity) -> None:
        """Drops a model whose signature is not that of its name any more."""
        if self._known.get(key) is model:
            del self._known[key]

    async def is_current(self, model: Model, routing_key: str) -> bool:
        """See Models."""
        assert isinstance(model, RemoteModel | RemoteIdentity)
        head = {"call": "is_current", "target": model.target, "routing_key": routing_key}
        answer, _ = await self._link.call(head)
        if not answer["is_current"]:
            self.forget(model.key, model)
        return bool(answer["is_current"])

    def known(self, name: str, version: str, routing_key: str) -> Model | None:
        """See Models."""
        return self._known.get((name, version))

    async def find(self, name: str, version: str, routing_key: str) -> Model:
        """See Models."""
        key = name, version
        known = self._known.get(key)
        if known is not None:
            return known
        content, _ = await self._link.call(
            {"call": "find", "name": name, "version": version, "routing_key": routing_key}
        )
        kind = RemoteIdentity if "identity" in content else RemoteModel
        model = kind(self._link, self, key, content)
        # While some keys are answered by a version with another signature, each request has to ask.
        if content["for_all_keys"]:
            self._known[key] = model
        return model


# Seconds in which the engine must say whether a restart would help it.
_LIVE_S = 0.25


class RemoteGrpcControl:
    """See serving.grpc.control.GrpcControl."""

    def __init__(self, link: EngineConnection) -> None:
        self._link = link

    async def call(self, method: str, data: bytes) -> bytes:
        """See GrpcControl."""
        return (await self._link.call({"call": "grpc", "method": method}, data))[1]


class RemoteHttpControl:
    """Lets the engine answer everything but inference; answers "live" itself when the engine is away."""

    def __init__(self, link: EngineConnection) -> None:
        self._link = link
        # Pending health requests by path. Concurrent callers share one answer: anyone may ask, as often as it likes.
        self._health: dict[str, asyncio.Task[HttpResponse]] = {}

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method == "GET" and request.path in (LIVE, READY):
            asking = self._health.get(request.path)
            if asking is None or asking.done():
                asking = self._health[request.path] = asyncio.create_task(self._ask_health(request))
            said = await asyncio.shield(asking)
            return HttpResponse(said.status, said.content, list(said.headers))
        return await self._ask(request)

    def at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpControl. Returns None where the engine has to be asked."""
        return None

    async def _ask_health(self, request: HttpRequest) -> HttpResponse:
        if request.path == LIVE:
            try:
                return await asyncio.wait_for(self._ask(request), _LIVE_S)
            except (TimeoutError, Unavailable):
                return health_response("live", True)  # this process works, and the supervisor restarts the engine
        try:
            return await self._ask(request)
        except Unavailable:
            return health_response("ready", False)

    async def _ask(self, request: HttpRequest) -> HttpResponse:
        head = {
            "call": "http",
            "method": request.method,
            "path": request.path,
            "query": request.query.decode("latin-1"),
            "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.items()],
        }
        answer, content = await self._link.call(head, request.body)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer["headers"]]
        return HttpResponse(answer["status"], content, headers)
