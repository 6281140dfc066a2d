"""An operation of the HTTP port: who is allowed to ask for it, what answers it, and what the OpenAPI document says."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from serving.control.calls import ControlCalls
from serving.http.messages import JSON, HttpResponse
from serving.http.openapi_schemas import Shape
from serving.protocol.json_text import dump_json, parse_object
from serving.protocol.proto_json import message_to_json
from serving.security.needs import Need

if TYPE_CHECKING:
    from serving.repository.model_repository import Answerer, ModelRepository

T = TypeVar("T")

INFERENCE = "inference"
_BRACES = re.compile(r"\\{(\w+)\\}(:?)")


@dataclass(frozen=True, slots=True)
class ControlCall:
    """A request to a control route. name, version, region, verb: of its path, "" where the path has none."""

    repository: ModelRepository
    calls: ControlCalls
    body: bytes
    name: str = ""
    version: str = ""
    region: str = ""
    verb: str = ""

    @property
    def model(self) -> Answerer:
        """The model of the path. Raises NotFound, Unavailable."""
        return self.repository.get(self.name, self.version)

    def read_object(self) -> dict[str, Any]:
        """The JSON object of the body, an empty one of an empty body. Raises InvalidInput."""
        return parse_object(self.body, what="the request") if self.body.strip() else {}

    async def run(self, call: Callable[[], T]) -> T:
        """See ControlCalls: for what may take long or waits for a lock."""
        return await self.calls.run(call)


# What a handler returns is sent: a response as it is, a protobuf message or anything else as JSON, None as no content.
Handler = Callable[[ControlCall], Awaitable[Any] | Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. In a path {name} is the model; every name in braces stands for one segment.

    handler: None where no control route answers: inference, and the metrics page on its own port.
    summary: "" leaves the operation out of the OpenAPI document. tag: its section there. body, answer: of the request,
    and of status 200; None where it is empty. errors: statuses beside those that every request may meet.
    is_optional: the body may be left out.
    """

    method: str
    path: str
    need: Need
    handler: Handler | None = None
    summary: str = ""
    tag: str = ""
    answer: Shape = None
    body: Shape = None
    errors: tuple[int, ...] = ()
    is_optional: bool = True

    @property
    def id(self) -> str:
        """Unique in the document."""
        words = [part.strip("{}") for part in self.path.replace(":", "/").split("/")[1:]]
        return "_".join([self.method.lower(), *words]).replace(".", "_")


class OperationTable:
    """Finds the operation of a request. A path with fewer names in braces wins: it comes first in `ranked`."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = tuple(operations)
        self.ranked = sorted(self.operations, key=lambda each: each.path.count("{"))
        # Health is asked most often, and by anybody: a path without braces is found without a look at the others.
        self._literal = {(each.method, each.path): each for each in self.operations if "{" not in each.path}
        self._patterns = [(each, _pattern(each.path)) for each in self.ranked if "{" in each.path]

    def find(self, method: str, path: str) -> tuple[Operation | None, dict[str, str]]:
        """The operation, and what stands in its braces; None for what is not in the table."""
        literal = self._literal.get((method, path))
        if literal is not None:
            return literal, {}
        for operation, pattern in self._patterns:
            if operation.method == method and (found := pattern.fullmatch(path)):
                return operation, found.groupdict()
        return None, {}


def _pattern(path: str) -> re.Pattern[str]:
    """A name in braces is a segment; before a colon it may be empty."""
    segments = _BRACES.sub(lambda found: f"(?P<{found[1]}>[^/]{'*' if found[2] else '+'}){found[2]}", re.escape(path))
    return re.compile(segments)


def response_of(content: Any) -> HttpResponse:
    """See Handler."""
    if isinstance(content, HttpResponse):
        return content
    if content is None:
        return HttpResponse(200)
    return HttpResponse(200, dump_json(message_to_json(content) if isinstance(content, Message) else content), [JSON])
