"""Answers ModelInfer, KServe v2 inference over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serving.control.models import (
    Model,
    ModelAnswer,
    Models,
    all_outputs,
    answer_parameters,
    answer_request,
    with_model,
)
from serving.observing.facts import RequestFacts
from serving.protocol.proto_tensors import decode_proto_request, encode_proto_response, proto_parameters
from serving.protocol.routing import ANYWHERE, routing_of_parameters
from serving.protocol.tensors import InferRequest
from serving.security.forwarded import forwarded_metadata, regions_for

_LONGEST_TIMEOUT_S = 86_400.0


class InferenceCalls:
    """Answers ModelInfer."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def infer(
        self,
        request: Any,
        left_s: float | None,
        metadata: Callable[[], Any],
        request_id: str = "",
        facts: RequestFacts | None = None,
    ) -> Any:
        """Returns a ModelInferResponse. Raises EmberlineError.

        left_s: seconds until the caller's deadline, None without one. metadata: returns the metadata of the call.
        request_id: the id of a request without one of its own. facts: what observers want to know is written there.
        """
        if facts is not None:
            facts.model, facts.version, facts.id = request.model_name, request.model_version, request.id
        given = proto_parameters(request)
        routing = routing_of_parameters(given) if given else ANYWHERE
        regions = self._models.regions

        async def ask(model: Model) -> tuple[Model, InferRequest, ModelAnswer]:
            model.check_load()
            named = regions if regions.is_empty else regions_for(regions, forwarded_metadata(metadata()))
            decoded = decode_proto_request(model.signature, request, given, named)
            decoded.id = decoded.id or request_id
            if facts is not None:
                facts.queued(decoded.id)
            timeout_us = decoded.timeout_us
            if left_s is not None and left_s < _LONGEST_TIMEOUT_S:
                left_us = max(1, int(left_s * 1e6))
                timeout_us = min(timeout_us, left_us) if timeout_us else left_us
            result = await answer_request(
                model, decoded, routing, timeout_us=timeout_us, follow=not request.model_version
            )
            return model, decoded, result

        model, decoded, result = await with_model(
            self._models, request.model_name, request.model_version, routing.routing_key, ask
        )
        if facts is not None:
            facts.answered(model.signature.model, result, decoded.id)
        version, parameters = str(result.snapshot.version), answer_parameters(result)
        outputs = all_outputs(model.signature, decoded, result)
        return encode_proto_response(model.signature, version, decoded, outputs, parameters, regions)
