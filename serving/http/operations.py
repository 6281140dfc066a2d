"""Defines an operation of the HTTP port: who is allowed to call it, its handler, and its entry in OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
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
    """Is a request to a control route. name, version, region and verb come from its path, "" where it has none."""

    repository: ModelRepository
    calls: ControlCalls
    body: bytes
    #: By name in small letters.
    headers: Mapping[str, str]
    name: str = ""
    version: str = ""
    region: str = ""
    verb: str = ""

    @property
    def model(self) -> Answerer:
        """Returns the model of the path. Raises NotFound, Unavailable."""
        return self.repository.get(self.name, self.version)

    def read_object(self) -> dict[str, Any]:
        """Returns the JSON object of the body, or an empty one for an empty body. Raises InvalidInput."""
        return parse_object(self.body, what="the request") if self.body.strip() else {}

    async def run(self, call: Callable[[], T]) -> T:
        """Runs a call that may take long or waits for a lock; see ControlCalls."""
        return await self.calls.run(call)


# Returns the content to send: a response is sent unchanged, None as no content, a protobuf message or all else as JSON.
Handler = Callable[[ControlCall], Awaitable[Any] | Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """Describes one method of one path."""

    method: str
    #: {name} is the model; every name in braces stands for one segment.
    path: str
    need: Need
    #: None where no control route answers: inference, and the metrics page on its own port.
    handler: Handler | None = None
    #: "" omits the operation from the OpenAPI document.
    summary: str = ""
    #: Its section in the OpenAPI document.
    tag: str = ""
    #: The content of a response with status 200; None where it is empty.
    answer: Shape = None
    #: The content of the request; None where it is empty.
    body: Shape = None
    #: The error statuses beside those that every request may get.
    errors: tuple[int, ...] = ()
    #: Whether the body may be omitted.
    is_optional: bool = True

    @property
    def id(self) -> str:
        """Returns a name that is unique in the OpenAPI document."""
        words = [part.strip("{}") for part in self.path.replace(":", "/").split("/")[1:]]
        return "_".join([self.method.lower(), *words]).replace(".", "_")


class OperationTable:
    """Finds the operation of a request. A path with fewer names in braces wins: it comes first in `ranked`."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = tuple(operations)
        self.ranked = sorted(self.operations, key=lambda each: each.path.count("{"))
        # Health is requested most often, and by anyone: a path without braces is found without trying the patterns.
        self._literal = {(each.method, each.path): each for each in self.operations if "{" not in each.path}
        self._patterns = [(each, _pattern(each.path)) for each in self.ranked if "{" in each.path]

    def find(self, method: str, path: str) -> tuple[Operation | None, dict[str, str]]:
        """Returns the operation and the values of its names in braces; None if it is not in the table."""
        literal = self._literal.get((method, path))
        if literal is not None:
            return literal, {}
        for operation, pattern in self._patterns:
            if operation.method == method and (found := pattern.fullmatch(path)):
                return operation, found.groupdict()
        return None, {}


def _pattern(path: str) -> re.Pattern[str]:
    """Compiles a path, where a name in braces matches a segment; before a colon the segment may be empty."""
    segments = _BRACES.sub(lambda found: f"(?P<{found[1]}>[^/]{'*' if found[2] else '+'}){found[2]}", re.escape(path))
    return re.compile(segments)


def response_of(content: Any) -> HttpResponse:
    """Returns the response for what a handler returned; see Handler."""
    if isinstance(content, HttpResponse):
        return content
    if content is None:
        return HttpResponse(200)
    return HttpResponse(200, dump_json(message_to_json(content) if isinstance(content, Message) else content), [JSON])
