"""What a front end asks for answers: the models of this process, or those of an engine in another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from serving.protocol.columns import to_columns
from serving.protocol.regions import Regions
from serving.protocol.routing import Routing
from serving.protocol.signature import SignatureChanged
from serving.protocol.tensors import InferRequest
from serving.repository.identity import IdentityModel
from storage.errors import InvalidInput

if TYPE_CHECKING:
    from serving.protocol.signature import ModelSignature
    from serving.repository.model_repository import ModelRepository
    from storage.features import Column

T = TypeVar("T")

# A request is decoded anew so many times when the version that it was decoded for is replaced meanwhile.
MAX_DECODES = 3


class SnapshotName(Protocol):
    """What an answer says of the snapshot that it comes from."""

    @property
    def id(self) -> str:
        """32 hex digits."""

    @property
    def version(self) -> int:
        """The model version."""

    @property
    def sequence(self) -> int:
        """The number of its delta, 0 for the version itself."""


class ModelAnswer(Protocol):
    """outputs: all of the model's, in its signature's order. unresolved: ids not answered, in its whole batch."""

    @property
    def outputs(self) -> list[np.ndarray]:
        """One array an output, the batch first."""

    @property
    def snapshot(self) -> SnapshotName:
        """The one that every value comes from."""

    @property
    def unresolved(self) -> int:
        """Ids that were not looked up in time."""


class Model(Protocol):
    """Who answers the requests of one name."""

    @property
    def signature(self) -> ModelSignature:
        """What requests are decoded for."""

    def answers(self, version: str) -> bool:
        """Whether a request for this version, "" for the one that is served, is its to answer still."""

    def check_load(self) -> None:
        """Raises Overloaded when a request would be turned away now."""

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
    ) -> ModelAnswer:
        """As `Endpoint.infer`. Raises SignatureChanged when the request has to be decoded again."""


class Models(Protocol):
    """One event loop. regions: of shared memory, that requests may name."""

    @property
    def regions(self) -> Regions:
        """Stale ones are refreshed before a request is decoded."""

    async def find(self, name: str, version: str, routing_key: str) -> Model:
        """Raises NotFound, or Unavailable with the reason. version: "" for the one that is served."""

    def known(self, name: str, version: str, routing_key: str) -> Model | None:
        """As `find`, where that takes no time; else None."""

    async def is_current(self, model: Model, routing_key: str) -> bool:
        """Whether requests are decoded for its signature still. Raises as `find`."""


class LocalModels:
    """The models of this process's repository."""

    def __init__(self, repository: ModelRepository) -> None:
        self.regions: Regions = repository.regions
        # Every request asks it: bound here, it is one call and no two.
        self.known: Callable[[str, str, str], Model | None] = repository.get
        self._get = repository.get

    async def find(self, name: str, version: str, routing_key: str) -> Model:
        """See Models."""
        return self._get(name, version, routing_key)

    async def is_current(self, model: Model, routing_key: str) -> bool:
        """See Models. It was found just now."""
        return True


async def answer_request(
    model: Model, request: InferRequest, routing: Routing, *, timeout_us: int, follow: bool
) -> ModelAnswer:
    """The answer to a v2 request. timeout_us: of the request, or of the call that it came by. follow: as `infer` says.

    Raises what `Model.infer` raises.
    """
    if isinstance(model, IdentityModel):
        return await model.answer(request.tensors)
    columns, batch = to_columns(model.signature, request.tensors)
    return await model.infer(
        columns,
        batch,
        timeout_us,
        min_snapshot=routing.min_snapshot,
        follow=follow,
        priority=request.priority,
        routing_key=routing.routing_key,
    )


def answer_parameters(answer: ModelAnswer) -> dict[str, Any]:
    """What a response says of where it comes from."""
    snapshot = answer.snapshot
    parameters: dict[str, Any] = {"snapshot": snapshot.id, "sequence": snapshot.sequence} if snapshot.id else {}
    if answer.unresolved:
        parameters["unresolved"] = answer.unresolved
    return parameters


async def refresh_for_outputs(regions: Regions, request: InferRequest) -> None:
    """Before outputs go to shared memory: a region may have been unregistered while they were computed."""
    if regions.is_stale and any(wanted.part is not None for wanted in request.outputs):
        await regions.refresh()


async def with_model(
    models: Models,
    name: str,
    version: str,
    routing_key: str,
    ask: Callable[[Model], Awaitable[T]],
    admitted: Model | None = None,
) -> T:
    """What `ask` makes of a model: it decodes a request for the model's signature, and has it answered.

    It is called again when the signature has changed meanwhile. admitted: the model that was found when the request
    was admitted; models change while a body is read, so another one is found where it is not that one's any more.
    """
    if models.regions.is_stale:
        await models.regions.refresh()
    for attempt in range(1, MAX_DECODES + 1):
        if admitted is not None and admitted.answers(version):
            model, admitted = admitted, None
        else:
            model = await models.find(name, version, routing_key)
        try:
            return await ask(model)
        except SignatureChanged:
            if attempt == MAX_DECODES:
                raise
        except InvalidInput:
            # The version after it may take what this one does not.
            if attempt == MAX_DECODES or await models.is_current(model, routing_key):
                raise
    raise AssertionError
