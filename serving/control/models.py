"""Defines what the transports ask for answers: models, and how a request is answered by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from serving.engine.tap import new_request_id
from serving.protocol.columns import to_columns
from serving.protocol.regions import Regions
from serving.protocol.routing import Routing
from serving.protocol.signature import SignatureChanged
from serving.protocol.tensors import InferRequest
from serving.repository.identity import IdentityModel

if TYPE_CHECKING:
    from serving._front import BatchStages
    from serving.engine.tap import RequestTap
    from serving.protocol.signature import ModelSignature
    from serving.repository.model_repository import ModelRepository
    from storage.features import Column

T = TypeVar("T")

# Number of times that a request is decoded when the version that it was decoded for is replaced meanwhile.
MAX_DECODES = 3


class SnapshotName(Protocol):
    """The name of the snapshot that an answer comes from."""

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
    """The answer of a model to a request."""

    @property
    def outputs(self) -> list[np.ndarray]:
        """All outputs of the model, in its signature's order; one array an output, the batch first."""

    def asked(self, name: str) -> np.ndarray:
        """Returns an output that only requests that name it get."""

    @property
    def snapshot(self) -> SnapshotName:
        """The snapshot that every value comes from."""

    @property
    def unresolved(self) -> int:
        """Number of ids that were not looked up in time, in its whole batch."""

    @property
    def stages(self) -> BatchStages | None:
        """The stages of its batch, where somebody observes requests and they are known."""


class Model(Protocol):
    """A model that answers the requests of one name."""

    @property
    def signature(self) -> ModelSignature:
        """The signature that requests are decoded for."""

    @property
    def tap(self) -> RequestTap | None:
        """Looks at its requests, which all need an id then; None for nobody."""

    def answers(self, version: str) -> bool:
        """Returns whether it still answers requests for this version; "" means the one that is served."""

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
        request_id: str = "",
    ) -> ModelAnswer:
        """Answers a request like `Endpoint.infer`. Raises SignatureChanged when it has to be decoded again."""


class Models(Protocol):
    """The models that requests may name."""

    @property
    def regions(self) -> Regions:
        """Regions of shared memory that requests may name."""

    def find(self, name: str, version: str, routing_key: str) -> Model:
        """Returns a model. Raises NotFound, or Unavailable with the reason. version: "" for the one that is served."""


class LocalModels:
    """The models of this process's repository."""

    def __init__(self, repository: ModelRepository) -> None:
        self.regions: Regions = repository.regions
        # Every request uses it: bound here, it is one call instead of two.
        self.find: Callable[[str, str, str], Model] = repository.get


def all_outputs(signature: ModelSignature, request: InferRequest, answer: ModelAnswer) -> list[np.ndarray]:
    """Returns the outputs of an answer by place, with those that the request alone asked for; others are empty."""
    own = len(signature.outputs)
    wanted = {output.index - own for output in request.outputs if output.index >= own}
    if not wanted:
        return answer.outputs
    empty = np.empty(0, np.uint8)
    rest = [answer.asked(entry.name) if place in wanted else empty for place, entry in enumerate(signature.asked)]
    return [*answer.outputs, *rest]


async def answer_request(
    model: Model, request: InferRequest, routing: Routing, *, timeout_us: int, follow: bool
) -> ModelAnswer:
    """Answers a v2 request, which gets an id if somebody looks at requests and it has none.

    timeout_us: of the request, or of the call that it came by. follow: see `infer`. Raises what `Model.infer` raises.
    """
    if isinstance(model, IdentityModel):
        return await model.answer(request.tensors)
    request_id = ""
    if model.tap is not None:
        request.id = request.id or new_request_id()
        # One whose missing inputs have values that stand in for them is not what a model should learn from.
        is_whole = all(name in request.tensors for name in model.signature.stand_ins)
        request_id = request.id if is_whole else ""
    names = [model.signature.output_at(output.index).name for output in request.outputs]
    columns, batch = to_columns(model.signature, request.tensors, names)
    return await model.infer(
        columns,
        batch,
        timeout_us,
        min_snapshot=routing.min_snapshot,
        follow=follow,
        priority=request.priority,
        routing_key=routing.routing_key,
        request_id=request_id,
    )


def answer_parameters(answer: ModelAnswer) -> dict[str, Any]:
    """Returns the parameters of a response that say where it comes from."""
    snapshot = answer.snapshot
    parameters: dict[str, Any] = {"snapshot": snapshot.id, "sequence": snapshot.sequence} if snapshot.id else {}
    if answer.unresolved:
        parameters["unresolved"] = answer.unresolved
    return parameters


async def with_model(
    models: Models,
    name: str,
    version: str,
    routing_key: str,
    ask: Callable[[Model], Awaitable[T]],
    admitted: Model | None = None,
) -> T:
    """Returns the result of `ask` for a model: it decodes a request for the model's signature, and has it answered.

    `ask` is called again when the signature has changed meanwhile. admitted: the model that was found when the request
    was admitted; models change while a body is read, so another one is found where that one does not answer any more.
    """
    for attempt in range(1, MAX_DECODES + 1):
        if admitted is not None and admitted.answers(version):
            model, admitted = admitted, None
        else:
            model = models.find(name, version, routing_key)
        try:
            return await ask(model)
        except SignatureChanged:
            if attempt == MAX_DECODES:
                raise
    raise AssertionError
