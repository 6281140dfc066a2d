"""Bodies of feedback: an error names the event and the key at fault, and is found beside the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.control.feedback_body import read_feedback
from serving.http.feedback_routes import FEEDBACK_OPERATIONS
from storage.errors import InvalidInput

EVENT = {"id": "a", "label": 1}


@pytest.mark.parametrize(
    ("content", "field", "text"),
    [
        ({"events": [EVENT, {"id": "b"}]}, "events.1.id", "events.1: expected 'label'"),
        ({"events": [EVENT, EVENT, {**EVENT, "row": -1}]}, "events.2.row", "events.2: 'row'"),
        ({"events": [{**EVENT, "output": "other"}]}, "events.0.output", "events.0: 'output': 'other' is not one of"),
        ({"events": [EVENT, 7]}, "events.1", "events.1: an event must be an object, got int"),
        ({**EVENT, "row": -1}, "row", "'row'"),
    ],
)
def test_an_error_names_the_event_and_its_key(content: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_feedback(content, ["click"], 1000.0)
    assert caught.value.field == field
    assert str(caught.value).startswith(text)


def test_a_body_is_read_on_a_thread_and_not_on_the_event_loop() -> None:
    order: list[str] = []

    class Call:
        name = "m"

        def read_object(self) -> dict[str, Any]:
            order.append("read")
            raise InvalidInput("no JSON", field="body")

        async def run(self, call: Any) -> Any:
            order.append("run")
            return call()

    (take,) = [operation.handler for operation in FEEDBACK_OPERATIONS if operation.method == "POST"]
    taken: Any = take
    call: Any = Call()
    with pytest.raises(InvalidInput):
        asyncio.run(taken(call))
    assert order == ["run", "read"]
