"""Describes models to the native servers of HTTP and gRPC, and answers what these have read of their requests."""

from __future__ import annotations

import logging
import struct
import time
import weakref
from collections.abc import Sequence

from serving._front import AnswerHead, Model, RequestBatch
from serving.control.models import answer_parameters
from serving.engine.batcher import RequestQueue
from serving.engine.endpoint import Endpoint
from serving.engine.requests import Answer, InferenceResult, JoinedRequest, QueuedRequest
from serving.protocol.dtypes import WIRE_TYPES, accepts
from serving.protocol.json_text import dump_json
from serving.protocol.proto_tensors import parameter_fields
from storage.features.flat import FlatColumn, FlatColumns, Layout

logger = logging.getLogger("emberline.serving")

# dtypes that the native server reads; their positions are its numbers.
WIRES = ("INT64", "INT32", "UINT64", "FP32", "FP64")
_MAX_LAYOUTS = 256


class NativeSink:
    """Makes one request of those that the native server has read together, and passes their answers on."""

    def __init__(self, endpoint: Endpoint) -> None:
        # Weak: the endpoint's queues refer to this.
        self._endpoint = weakref.ref(endpoint)
        self._inputs = endpoint.signature.raw
        # Layouts by the native server's description.
        self._layouts: dict[bytes, Layout] = {}

    def join(self, batch: RequestBatch) -> QueuedRequest:
        """See RequestQueue.join."""
        rows, described = batch.rows, batch.layout
        layout = self._layouts.get(described)
        if layout is None:
            # As many as there are ways to choose dtypes and inputs; a client that tries all must not fill the memory.
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[described] = self._layout(described)
        columns = FlatColumns(layout, batch.block(), rows)
        return JoinedRequest(columns, rows, self, batch, min(batch.arrivals_ns), canary=batch.canary)

    def _layout(self, described: bytes) -> Layout:
        """Returns the layout of columns. described: see RequestBatch.layout."""
        columns = []
        for place, wire in struct.iter_unpack("<HB", described):
            spec = self._inputs[place]
            columns.append(FlatColumn(spec.name, WIRES[wire], spec.width, False, False, False))
        return Layout(columns)

    def deliver(self, answers: Sequence[tuple[QueuedRequest, Answer]]) -> None:
        """See ResponseSink. Requests without an answer are answered from their beginning by the Python path."""
        for request, answer in answers:
            batch: RequestBatch = request.place
            try:
                if isinstance(answer, InferenceResult):
                    self._respond(request, batch, answer)
                    continue
            except Exception:
                logger.exception("a batch could not be answered")
            batch.hand_over()

    def _respond(self, request: QueuedRequest, batch: RequestBatch, answer: InferenceResult) -> None:
        version, parameters = str(answer.snapshot.version), answer_parameters(answer)
        head = AnswerHead(
            dump_json(version).decode(), dump_json(parameters).decode(), version, parameter_fields(parameters)
        )
        batch.respond(answer.outputs, head)
        endpoint = self._endpoint()
        if endpoint is not None:
            now_ns = time.monotonic_ns()
            endpoint.statistics_of(request).succeeded([now_ns - at_ns for at_ns in batch.arrivals_ns])
            endpoint.answered(request)


def native_model(endpoint: Endpoint, key: int) -> Model | None:
    """Describes an endpoint for the native server; returns None where requests to it are never plain ones."""
    signature = endpoint.signature
    inputs = []
    for place, entry in enumerate(signature.raw):
        is_required = entry.missing == "error"
        if entry.kind == "fixed" and entry.dtype in WIRES:
            takes = sum(1 << number for number, dtype in enumerate(WIRES) if accepts(entry.dtype, dtype))
            inputs.append((entry.name, place, takes, entry.width, is_required))
        elif is_required:
            return None
    if any(WIRE_TYPES[output.dtype].item_bytes == 0 for output in signature.outputs):
        return None
    outputs = []
    for output, row_bytes in zip(signature.outputs, signature.output_row_bytes, strict=True):
        begin = dump_json({"name": output.name, "datatype": output.dtype, "shape": []}).decode()
        dims = "".join(f",{size}" for size in output.dims)
        after = f'{dims}],"parameters":{{"binary_data_size":'
        outputs.append((output.name, begin[:-2], after, row_bytes, output.dtype, list(output.dims)))
    settings = endpoint.queue_settings
    level = settings.level_of(0)
    return Model(
        key,
        inputs,
        outputs,
        signature.max_batch_size,
        signature.model,
        dump_json(signature.model).decode(),
        level,
        settings.levels[level].timeout_us * 1000,
        settings.levels[level].delays,
    )


def connect_queues(endpoint: Endpoint, model: Model) -> None:
    """Lets the native server add requests to the queues of an endpoint, also to those that replace them."""
    sink = NativeSink(endpoint)

    def on_queues(queues: tuple[RequestQueue, ...]) -> None:
        for queue in queues:
            queue.join = sink.join
        model.set_queues([queue.native for queue in queues])

    endpoint.group.watch_queues(on_queues)
