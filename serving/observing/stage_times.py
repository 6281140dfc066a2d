"""Divides the time of an observed request among the stages that it went through."""

from __future__ import annotations

from collections.abc import Iterator

from serving._front import KeptRequest

#: The stages in their order. A request has `infer` in place of `lookup` and `graph` where a session does not know when
#: its lookups ended, because one graph of a GPU looked up and computed; `ssd` is a part of `lookup`.
STAGE_ORDER = ("read", "queue", "join", "features", "lookup", "ssd", "graph", "infer", "encode")


def stage_spans(request: KeptRequest) -> Iterator[tuple[str, int, int]]:
    """Yields the stages of a request that are known: name, begin and end on the clock of `time.monotonic_ns`.

    The SSD is read somewhere within the lookup; its stage ends when that does.
    """
    begun = request.queued_ns or request.arrived_ns
    if request.queued_ns:
        yield "read", request.arrived_ns, begun
    stages = request.stages
    if stages is None:
        return
    yield "queue", begun, max(begun, stages.taken_ns)
    yield "join", stages.taken_ns, stages.begun_ns
    yield "features", stages.begun_ns, stages.features_ns
    if stages.lookup_ns:
        yield "lookup", stages.features_ns, stages.lookup_ns
        if stages.read_ns:
            yield "ssd", max(stages.features_ns, stages.lookup_ns - stages.read_ns), stages.lookup_ns
        yield "graph", stages.lookup_ns, stages.graph_ns
    else:
        yield "infer", stages.features_ns, stages.graph_ns
    yield "encode", stages.graph_ns, max(stages.graph_ns, request.ended_ns)


def stage_ns(request: KeptRequest) -> dict[str, int]:
    """Returns the nanoseconds that a request spent in each stage that is known."""
    return {name: end - begin for name, begin, end in stage_spans(request)}
