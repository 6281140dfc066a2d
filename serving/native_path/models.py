"""Describes models to the native servers of HTTP and gRPC, and answers what these have read of their requests."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Sequence

import numpy as np

from serving._front import AnswerHead, Model, ModelInput, ModelOutput, RequestBatch, number_text
from serving.control.models import answer_parameters
from serving.engine.batcher import RequestQueue
from serving.engine.endpoint import Endpoint
from serving.engine.requests import Answer, InferenceResult, JoinedRequest, QueuedRequest
from serving.engine.tap import sample_batch
from serving.protocol.dtypes import WIRE_TYPES, accepts
from serving.protocol.json_text import dump_json
from serving.protocol.proto_tensors import parameter_fields
from storage.features import InputSpec
from storage.features.dtypes import DTYPES, FLOATS
from storage.features.flat import FlatColumns, Layout

logger = logging.getLogger("emberline.serving")

_MAX_LAYOUTS = 256
# More than a month, so that it can be counted in nanoseconds.
_MAX_TIMEOUT_US = 1 << 42


class NativeSink:
    """Makes one request of those that the native server has read together, and passes their answers on."""

    def __init__(self, endpoint: Endpoint) -> None:
        # Weak: the endpoint's queues refer to this.
        self._endpoint = weakref.ref(endpoint)
        self._inputs = endpoint.signature.raw
        # Layouts by the native server's description.
        self._layouts: dict[bytes, Layout] = {}
        # The head of the last answer, and the snapshot that it names. Sessions of several threads may replace it.
        self._last_head: tuple[str, AnswerHead] | None = None

    def join(self, batch: RequestBatch) -> QueuedRequest:
        """See RequestQueue.join."""
        rows, described = batch.rows, batch.layout
        layout = self._layouts.get(described)
        if layout is None:
            # As many as there are ways to choose dtypes and inputs; a client that tries all must not fill the memory.
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[described] = Layout.parse(described, self._inputs)
        columns = FlatColumns(layout, batch.block(), rows)
        return JoinedRequest(columns, rows, self, batch, min(batch.arrivals_ns), canary=batch.canary)

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
        head = self._head(answer)
        endpoint = self._endpoint()
        if endpoint is not None:
            # Before the clients have their answers, so that one of them finds its request counted.
            now_ns = time.monotonic_ns()
            endpoint.statistics_of(request).succeeded([now_ns - at_ns for at_ns in batch.arrivals_ns])
            if endpoint.tap is not None:
                # Before, too: the answers name the ids.
                request.sampled = sample_batch(batch, endpoint.tap.share)
        batch.respond(answer.outputs, head, answer.stages)
        if endpoint is not None:
            endpoint.answered(request, answer)

    def _head(self, answer: InferenceResult) -> AnswerHead:
        """Returns what the answers of a batch have in common; mostly it is that of the batch before."""
        snapshot, last = answer.snapshot, self._last_head
        if last is not None and last[0] == snapshot.id and not answer.unresolved:
            return last[1]
        version, parameters = str(snapshot.version), answer_parameters(answer)
        head = AnswerHead(
            dump_json(version).decode(),
            dump_json(parameters).decode(),
            version,
            parameter_fields(parameters),
            f"{version}.{snapshot.sequence}",
        )
        if not answer.unresolved:
            self._last_head = (snapshot.id, head)
        return head


def native_model(endpoint: Endpoint, key: int) -> Model | None:
    """Describes an endpoint for the native server; returns None where requests to it are never plain ones."""
    signature = endpoint.signature
    inputs = []
    for place, entry in enumerate(signature.raw):
        is_required = entry.missing == "error"
        if entry.dtype != "BYTES":
            inputs.append(_native_input(place, entry, is_required))
        elif is_required:
            return None
    if any(WIRE_TYPES[output.dtype].item_bytes == 0 for output in signature.outputs):
        return None
    writes_floats = writes_floats_alike()
    outputs = []
    for output, row_bytes in zip(signature.outputs, signature.output_row_bytes, strict=True):
        begin = dump_json({"name": output.name, "datatype": output.dtype, "shape": []}).decode()
        dims = "".join(f",{size}" for size in output.dims)
        json_dtype = "" if output.dtype in FLOATS and not writes_floats else output.dtype
        outputs.append(
            ModelOutput(output.name, begin[:-2], f"{dims}]", row_bytes, json_dtype, output.dtype, list(output.dims))
        )
    settings = endpoint.queue_settings
    return Model(
        key,
        inputs,
        outputs,
        signature.max_batch_size,
        signature.model,
        dump_json(signature.model).decode(),
        [(min(level.timeout_us, _MAX_TIMEOUT_US) * 1000, level.delays) for level in settings.levels],
        settings.level_of(0),
    )


def _native_input(place: int, entry: InputSpec, is_required: bool) -> ModelInput:
    is_list = entry.kind == "list"
    return ModelInput(
        entry.name,
        place,
        [dtype for dtype in DTYPES if accepts(entry.dtype, dtype)],
        entry.max_length if is_list else entry.width,
        is_required,
        is_list,
        entry.side == "user",
        entry.nulls == "allow",
    )


@functools.cache
def writes_floats_alike() -> bool:
    """Returns whether native code writes floats into JSON as orjson does, whose versions differ in their exponents."""
    for dtype in (np.float32, np.float64):
        limits = np.finfo(dtype)
        exponents = range(int(np.log10(limits.smallest_subnormal)), int(np.log10(limits.max)) + 1)
        values = np.array([float(f"{digits}e{each}") for each in exponents for digits in ("1", "-1.25")], dtype)
        if f"[{number_text(values)}]" != dump_json(values).decode():
            logger.warning("this version of orjson writes floats in another form; Python answers requests for JSON")
            return False
    return True


def connect_queues(endpoint: Endpoint, model: Model) -> None:
    """Lets the native server add requests to the queues of an endpoint, also to those that replace them."""
    sink = NativeSink(endpoint)

    def on_queues(queues: tuple[RequestQueue, ...]) -> None:
        for queue in queues:
            queue.join = sink.join
        model.set_queues([queue.native for queue in queues])

    endpoint.group.watch_queues(on_queues)
