"""Requests that were answered are looked at once, and when their answer has been sent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from serving.engine.endpoint import Endpoint
from serving.engine.model import LoadedModel
from serving.engine.requests import LoopSink, QueuedRequest


def call_of(loop: Any, request_id: str = "a") -> QueuedRequest:
    call = QueuedRequest({}, 1, LoopSink(loop), loop.create_future(), 0)
    call.request_id = request_id
    return call


class AnsweringEndpoint(Endpoint):
    """Answers at once, with snapshots whose order a test chooses."""

    def __init__(self, snapshots: list[str]) -> None:
        self._snapshot_timeout_ns = 10**9
        self.seen: list[tuple[str, str]] = []
        left = list(snapshots)

        def put(call: QueuedRequest) -> None:
            call.place.set_result(SimpleNamespace(snapshot=left.pop(0)))

        async def wait_for(*_: Any) -> bool:
            return True

        self.group: Any = SimpleNamespace(put=put)
        self.history: Any = SimpleNamespace(
            canary=None, wait_for=wait_for, covers=lambda snapshot, wanted: snapshot == wanted
        )
        counted: Any = SimpleNamespace(finished=lambda *_: None)
        self.statistics = self.canary_statistics = counted
        self.queue_settings: Any = SimpleNamespace(
            level_of=lambda _: 0, levels=[SimpleNamespace(delays=False, timeout_us=0)]
        )

    def answered(self, call: QueuedRequest, result: Any) -> None:
        self.seen.append((call.request_id, result.snapshot))


def test_an_answer_that_is_not_sent_because_of_a_rollback_is_looked_at_by_nobody() -> None:
    endpoint = AnsweringEndpoint(["1.3", "1.4"])
    result: Any = asyncio.run(endpoint.infer({}, 1, min_snapshot="1.4", request_id="a"))
    assert result.snapshot == "1.4"
    assert endpoint.seen == [("a", "1.4")]
    plain = AnsweringEndpoint(["1.4"])
    asyncio.run(plain.infer({}, 1, request_id="b"))
    assert plain.seen == [("b", "1.4")]


def test_what_looks_at_a_request_waits_until_its_answer_was_sent() -> None:
    order: list[str] = []

    async def run() -> None:
        model: Any = object.__new__(LoadedModel)
        model.tap = SimpleNamespace(share=1.0, offer=lambda *_: order.append("looked at"))
        model.shadow = None
        model.signature = None
        model.recent = SimpleNamespace(wants=lambda _: False)
        result: Any = None
        model.answered(call_of(asyncio.get_running_loop()), result)
        order.append("sent")
        await asyncio.sleep(0)

    asyncio.run(run())
    assert order == ["sent", "looked at"]
