"""Answers calls of front ends to the engine beside inference: a model's signature, HTTP and gRPC control routes."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from serving.frontends.signatures import signature_to_wire
from serving.frontends.targets import Targets
from serving.grpc.control import GrpcControl
from serving.http.app import HttpControl
from serving.http.messages import HttpRequest
from serving.protocol.signature import SignatureChanged
from serving.repository.identity_models import IdentityEndpoint
from serving.repository.model_repository import ModelRepository
from storage.errors import Unsupported


class EngineCalls:
    """Answers the calls. Not thread-safe: one event loop uses it."""

    def __init__(
        self,
        repository: ModelRepository,
        http: HttpControl,
        grpc: GrpcControl,
    ) -> None:
        self._repository = repository
        self._http = http
        self._grpc = grpc

    async def answer(self, targets: Targets, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Returns head and body of the answer. Raises EmberlineError."""
        call = head["call"]
        if call == "find":
            return self._find(targets, head["name"], head["version"], head["routing_key"]), b""
        if call == "is_current":
            return {"is_current": targets.is_current(head["target"], head["routing_key"])}, b""
        if call == "identity":
            return self._count(targets, head), b""
        if call == "regions":
            regions = self._repository.regions
            generation = regions.generation  # before the names: a change in between is announced again
            found = [(astuple(said), astuple(place)) for said, place in regions.places]
            return {"generation": generation, "regions": found}, b""
        if call == "grpc":
            return {}, await self._grpc.call(head["method"], body)
        if call == "http":
            return await self._ask_http(head, body)
        raise Unsupported(f"the engine does not know the call {call!r}")

    def _find(self, targets: Targets, name: str, version: str, routing_key: str) -> dict[str, Any]:
        endpoint = self._repository.get(name, version, routing_key)
        content = signature_to_wire(endpoint.signature)
        if isinstance(endpoint, IdentityEndpoint):
            target = targets.add(name, version, endpoint.signature)
            identity = {"version": int(endpoint.version), "delay_s": endpoint.delay_s}
            return {"target": target, "signature": content, "for_all_keys": True, "identity": identity}
        others = [] if version else self._repository.answering(name)
        return {
            "target": targets.add(name, version, endpoint.signature),
            "signature": content,
            "for_all_keys": all(signature_to_wire(other.signature) == content for other in others),
        }

    def _count(self, targets: Targets, head: dict[str, Any]) -> dict[str, Any]:
        """Counts requests of an identity model, which a front end answers itself, where it is still the same model."""
        target = targets.find(head["target"])
        endpoint = None if target is None else self._repository.get(target.name, target.version)
        if target is None or endpoint is None or endpoint.signature is not target.signature:
            raise SignatureChanged("the model takes other inputs now; send the request again")
        assert isinstance(endpoint, IdentityEndpoint)
        endpoint.note(head["rows"], head["took_ns"])
        return {}

    async def _ask_http(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        headers = {name.encode("latin-1"): value.encode("latin-1") for name, value in head["headers"]}
        query = head["query"].encode("latin-1")
        response = await self._http(HttpRequest(head["method"], head["path"], query, headers, body))
        return {
            "status": response.status,
            "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers],
        }, response.content
