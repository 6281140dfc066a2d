"""Decodes requests that are to be explained, of both transports, and asks the repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from serving.protocol.columns import to_columns
from serving.protocol.json_text import dump_json
from serving.protocol.proto_tensors import decode_proto_request, proto_parameters
from serving.protocol.regions import RegionPart
from serving.protocol.routing import ANYWHERE, Routing, routing_of_parameters
from serving.protocol.signature import ModelSignature
from serving.protocol.v1 import decode_predict
from serving.protocol.v2 import decode_request, read_header
from storage.errors import InvalidInput

if TYPE_CHECKING:
    from serving.repository.model_repository import ModelRepository
    from storage.features import Column

ROW = "row"
_Columns = tuple[Mapping[str, "Column"], int]


def explain_json(
    repository: ModelRepository,
    name: str,
    body: bytes,
    header_length: int | None = None,
    beside: Routing = ANYWHERE,
) -> dict[str, JsonValue]:
    """Explains a row of a request of v2 or, with `instances`, v1; the key `row` beside the others says which.

    header_length: bytes of JSON before binary tensors; None when all of it is JSON. beside: what the HTTP headers ask
    for. Raises InvalidInput, NotFound, Unavailable.
    """
    header = read_header(body, header_length)
    row, routing = _row(header.content.get(ROW, 0)), routing_of_parameters(header.parameters, beside)

    def decode(signature: ModelSignature) -> _Columns:
        if "instances" in header.content:
            return decode_predict(
                signature, dump_json({key: value for key, value in header.content.items() if key != ROW})
            )[:2]
        return to_columns(signature, decode_request(signature, header, _NoRegions()).tensors)

    return repository.explain(name, decode, row, routing.min_snapshot)


def explain_message(repository: ModelRepository, message: Any) -> dict[str, JsonValue]:
    """Explains a row of a ModelInferRequest; the parameter `row` says which. Raises as `explain_json` does."""
    given = proto_parameters(message)
    row, routing = _row(given.pop(ROW, 0)), routing_of_parameters(given)

    def decode(signature: ModelSignature) -> _Columns:
        return to_columns(signature, decode_proto_request(signature, message, given, _NoRegions()).tensors)

    return repository.explain(message.model_name, decode, row, routing.min_snapshot)


class _NoRegions:
    """Refuses shared memory: whoever may see a model need not be allowed to read it."""

    is_empty = True
    max_read = 0

    def check(self, part: RegionPart) -> None:
        """Refuses."""
        raise _refused()

    def read(self, part: RegionPart) -> memoryview:
        """Refuses."""
        raise _refused()

    def write(self, part: RegionPart, data: bytes) -> None:
        """Refuses."""
        raise _refused()


def _refused() -> InvalidInput:
    return InvalidInput("a request in shared memory is not explained; send its values", field="inputs")


def _row(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{ROW!r}: expected the number of a row of the request, got {value!r:.60}", field=ROW)
    return value
