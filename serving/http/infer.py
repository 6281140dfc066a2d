"""Answers POST .../infer and v1 :predict without a routing table or a validation layer in between."""

from __future__ import annotations

import asyncio
from functools import partial

from serving.control.models import (
    Model,
    ModelAnswer,
    Models,
    all_outputs,
    answer_parameters,
    answer_request,
    with_model,
)
from serving.engine.tap import new_request_id
from serving.http.messages import JSON, HttpRequest, HttpResponse
from serving.http.route import InferenceRoute
from serving.protocol.json_text import SHORT_JSON_BYTES
from serving.protocol.request_ids import REQUEST_ID_HEADER, request_id_of_header
from serving.protocol.routing import routing_of_parameters
from serving.protocol.tensors import InferRequest
from serving.protocol.v1 import decode_predict, encode_predict
from serving.protocol.v2 import decode_request, encode_response, parse_header_length, read_header
from serving.security.forwarded import forwarded_headers, regions_for

_BINARY = (b"content-type", b"application/octet-stream")
_HEADER_LENGTH = b"inference-header-content-length"
# Outputs of more bytes are encoded by a thread.
_LONG_BYTES = 1 << 20


class InferenceRoutes:
    """Answers inference requests."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def infer(self, route: InferenceRoute, request: HttpRequest) -> HttpResponse:
        """Returns the response to a v2 request. Raises EmberlineError."""
        body, header_length = request.body, parse_header_length(request.headers.get(_HEADER_LENGTH))
        json_bytes = len(body) if header_length is None else header_length
        if json_bytes > SHORT_JSON_BYTES:
            header = await asyncio.to_thread(read_header, body, header_length)
        else:
            header = read_header(body, header_length)
        routing = routing_of_parameters(header.parameters, route.routing)
        regions = self._models.regions

        async def ask(model: Model) -> tuple[Model, InferRequest, ModelAnswer]:
            named = regions if regions.is_empty else regions_for(regions, forwarded_headers(request.headers))
            if json_bytes > SHORT_JSON_BYTES:
                decoded = await asyncio.to_thread(decode_request, model.signature, header, named)
            else:
                decoded = decode_request(model.signature, header, named)
            decoded.id = decoded.id or request_id_of_header(request.headers.get(REQUEST_ID_HEADER))
            request.facts.queued(decoded.id)
            result = await answer_request(
                model, decoded, routing, timeout_us=decoded.timeout_us, follow=not route.version
            )
            return model, decoded, result

        # The model that admitted the request answers it, unless the body has another routing key.
        admitted = route.model if routing.routing_key == route.routing.routing_key else None
        model, decoded, result = await with_model(
            self._models, route.name, route.version, routing.routing_key, ask, admitted
        )
        request.facts.answered(model.signature.model, result, decoded.id)
        version, parameters = str(result.snapshot.version), answer_parameters(result)
        outputs = all_outputs(model.signature, decoded, result)
        encode = partial(encode_response, model.signature, version, decoded, outputs, parameters, regions)
        is_long = sum([values.nbytes for values in result.outputs]) > _LONG_BYTES
        content, json_length = await asyncio.to_thread(encode) if is_long else encode()
        if json_length is None:
            return HttpResponse(200, content, [JSON])
        return HttpResponse(200, content, [_BINARY, (_HEADER_LENGTH, str(json_length).encode())])

    async def predict(self, route: InferenceRoute, request: HttpRequest) -> HttpResponse:
        """Returns the response to a v1 request. Raises EmberlineError."""
        body, routing = request.body, route.routing

        async def ask(model: Model) -> tuple[Model, bool, str, ModelAnswer]:
            if len(body) > SHORT_JSON_BYTES:
                columns, batch, by_rows = await asyncio.to_thread(decode_predict, model.signature, body)
            else:
                columns, batch, by_rows = decode_predict(model.signature, body)
            request.facts.queued("")
            request_id = ""
            if model.tap is not None:
                request_id = request_id_of_header(request.headers.get(REQUEST_ID_HEADER)) or new_request_id()
            result = await model.infer(
                columns,
                batch,
                min_snapshot=routing.min_snapshot,
                follow=not route.version,
                routing_key=routing.routing_key,
                request_id=request_id,
            )
            return model, by_rows, request_id, result

        model, by_rows, request_id, result = await with_model(
            self._models, route.name, route.version, routing.routing_key, ask, route.model
        )
        request.facts.answered(model.signature.model, result, request_id)
        # The body of v1 has no fields for these, so they are sent as headers.
        snapshot = result.snapshot
        headers = [
            JSON,
            (b"emberline-snapshot", snapshot.id.encode()),
            (b"emberline-sequence", str(snapshot.sequence).encode()),
            (b"emberline-model-version", str(snapshot.version).encode()),
        ]
        if request_id:
            headers.append((b"emberline-request-id", request_id.encode()))
        if result.unresolved:
            headers.append((b"emberline-unresolved", str(result.unresolved).encode()))
        return HttpResponse(200, encode_predict(model.signature, result.outputs, by_rows), headers)
