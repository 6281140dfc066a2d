"""Draws observed requests as a timeline of the server's threads, in the format of Chrome's and Perfetto's viewers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from serving._front import BatchStages, KeptRequest
from serving.observing.stage_times import stage_spans

_PID = 1
_OF_BATCH = ("join", "features", "lookup", "ssd", "graph", "infer")
_FRONT_ENDS = ("front end http", "front end grpc")


def timeline(requests: Sequence[KeptRequest], began_ns: int, *, is_whole: bool, version: str) -> dict[str, Any]:
    """Returns the content of the file.

    Sessions and front ends are threads, with a slice for each stage of a batch or request. The requests themselves are
    asynchronous slices, and the number of those that wait is a counter for each model. began_ns: the begin of the
    timeline on the clock of the requests. is_whole: whether no request was left out. version: of the server.
    """
    sessions = sorted({request.stages.session for request in requests if request.stages is not None})
    threads = {name: number for number, name in enumerate((*_FRONT_ENDS, *sessions), 1)}
    events = list(_names(threads))
    for number, request in enumerate(requests):
        events += _of_request(request, number, threads, began_ns)
    for batch in _batches(requests):
        events += _of_batch(batch, threads, began_ns)
    events += _waiting(requests, began_ns)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"server": f"emberline {version}", "requests": len(requests), "is_whole": is_whole},
    }


def _names(threads: dict[str, int]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": _PID, "name": "process_name", "args": {"name": "emberline"}}
    for name, number in threads.items():
        yield {"ph": "M", "pid": _PID, "tid": number, "name": "thread_name", "args": {"name": name}}


def _of_request(request: KeptRequest, number: int, threads: dict[str, int], began_ns: int) -> Iterator[dict[str, Any]]:
    front_end = threads[_FRONT_ENDS[request.is_grpc]]
    told = {"model": request.model, "id": request.id, "rows": request.rows, "status": request.status}
    args = {key: value for key, value in told.items() if value != ""}
    shared = {"pid": _PID, "tid": front_end, "cat": "request", "id": number, "name": request.call}
    yield {"ph": "b", "ts": _us(request.arrived_ns - began_ns), "args": args, **shared}
    yield {"ph": "e", "ts": _us(request.ended_ns - began_ns), **shared}
    for name, begin, end in stage_spans(request):
        if name == "read" and request.is_native:
            yield _slice(name, front_end, begin, end, began_ns, args)
        elif name in ("read", "queue") or (name == "encode" and not request.is_native):
            yield {"ph": "b", "ts": _us(begin - began_ns), **shared, "name": name}
            yield {"ph": "e", "ts": _us(end - began_ns), **shared, "name": name}


def _batches(requests: Sequence[KeptRequest]) -> Iterator[list[KeptRequest]]:
    """Yields the requests of each batch."""

    def key(request: KeptRequest) -> tuple[str, int]:
        stages = _stages(request)
        return stages.session, stages.begun_ns

    with_stages = sorted((request for request in requests if request.stages is not None), key=key)
    for _, batch in itertools.groupby(with_stages, key):
        yield list(batch)


def _of_batch(batch: Sequence[KeptRequest], threads: dict[str, int], began_ns: int) -> Iterator[dict[str, Any]]:
    stages = _stages(batch[0])
    thread = threads[stages.session]
    # Native code writes answers on the thread of the session, Python on its event loop.
    ended_ns = max(stages.graph_ns, *(request.ended_ns for request in batch if request.is_native), 0)
    args = {"model": batch[0].model, "snapshot": batch[0].snapshot, "rows": stages.rows, "requests": stages.requests}
    yield _slice("batch", thread, stages.taken_ns, ended_ns, began_ns, args)
    for name, begin, end in stage_spans(batch[0]):
        if name in _OF_BATCH:
            ids = {"dram": stages.dram, "ssd": stages.ssd, "overlay": stages.overlay, "hbm": stages.hbm}
            yield _slice(name, thread, begin, end, began_ns, ids if name in ("lookup", "infer") else {})
    if ended_ns > stages.graph_ns:
        yield _slice("encode", thread, stages.graph_ns, ended_ns, began_ns, {})


def _waiting(requests: Sequence[KeptRequest], began_ns: int) -> Iterator[dict[str, Any]]:
    """Yields how many requests of a model wait, whenever that changes."""
    changes: list[tuple[int, int, str]] = []
    for request in requests:
        for name, begin, end in stage_spans(request):
            if name == "queue":
                changes += [(begin, 1, request.model), (end, -1, request.model)]
    counts: dict[str, int] = {}
    for at_ns, change, model in sorted(changes):
        counts[model] = counts.get(model, 0) + change
        name = f"waiting for {model}"
        yield {"ph": "C", "pid": _PID, "ts": _us(at_ns - began_ns), "name": name, "args": {"requests": counts[model]}}


def _stages(request: KeptRequest) -> BatchStages:
    stages = request.stages
    assert stages is not None
    return stages


def _slice(name: str, thread: int, begin: int, end: int, began_ns: int, args: dict[str, Any]) -> dict[str, Any]:
    made = {"ph": "X", "pid": _PID, "tid": thread, "name": name, "ts": _us(begin - began_ns), "dur": _us(end - begin)}
    return {**made, "args": args} if args else made


def _us(ns: int) -> float:
    return round(ns / 1000, 3)
