"""What front ends ask of the engine beside inference: a model's signature, HTTP and gRPC control routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serving.engine.repository import ModelRepository
from serving.frontends.signatures import signature_to_wire
from serving.grpc.control import GrpcControl
from serving.http.app import HttpControl
from serving.http.messages import HttpRequest
from storage.errors import Unsupported

if TYPE_CHECKING:
    from serving.frontends.front_door import FrontDoor


class EngineCalls:
    """One event loop."""

    def __init__(
        self,
        repository: ModelRepository,
        http: HttpControl,
        grpc: GrpcControl,
    ) -> None:
        self._repository = repository
        self._http = http
        self._grpc = grpc

    async def answer(self, door: FrontDoor, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Head and body of the answer. Raises EmberlineError."""
        call = head["call"]
        if call == "find":
            return self._find(door, head["name"], head["version"], head["routing_key"]), b""
        if call == "is_current":
            return {"is_current": door.is_current(head["target"], head["routing_key"])}, b""
        if call == "grpc":
            return {}, await self._grpc.call(head["method"], body)
        if call == "http":
            return await self._ask_http(head, body)
        raise Unsupported(f"the engine does not know the call {call!r}")

    def _find(self, door: FrontDoor, name: str, version: str, routing_key: str) -> dict[str, Any]:
        endpoint = self._repository.get(name, version, routing_key)
        content = signature_to_wire(endpoint.signature)
        others = [] if version else self._repository.answering(name)
        return {
            "target": door.add_target(name, version, endpoint.signature),
            "signature": content,
            "for_all_keys": all(signature_to_wire(other.signature) == content for other in others),
        }

    async def _ask_http(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        headers = {name.encode("latin-1"): value.encode("latin-1") for name, value in head["headers"]}
        query = head["query"].encode("latin-1")
        response = await self._http(HttpRequest(head["method"], head["path"], query, headers, body))
        return {
            "status": response.status,
            "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers],
        }, response.content
