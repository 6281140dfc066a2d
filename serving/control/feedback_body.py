"""Parses feedback: what came of rows that were scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from serving.control.bodies import ControlBody
from serving.feedback.score_window import Label
from storage.errors import InvalidInput

#: Events of one call, and labels of all of them together.
MAX_EVENTS = 10_000
MAX_LABELS = 100_000
_MAX_ROW = 2**31 - 1
# Seconds that a client's clock may be ahead of the server's.
_AHEAD_S = 60.0

Value = Annotated[float, Field(allow_inf_nan=False, strict=False)]


class FeedbackEvent(ControlBody):
    """Says what came of a request: the label of one of its rows, or a list with the labels of all of them.

    id: of the request. label: of the row `row`. labels: one for each row from the first on, null for a row about which
    nothing is known. output: the output that is labelled, where there are several. time: when it happened, in seconds
    since 1970; without one, now.
    """

    id: Annotated[str, Field(min_length=1, max_length=1024)]
    row: Annotated[int, Field(ge=0, le=_MAX_ROW)] = 0
    label: Value | None = None
    labels: Annotated[list[Value | None], Field(max_length=MAX_LABELS)] | None = None
    output: Annotated[str, Field(max_length=256)] = ""
    time: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False, strict=False)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> FeedbackEvent:
        if (self.label is None) == (self.labels is None):
            raise ValueError("expected 'label', of the row 'row', or 'labels', one for each row")
        if self.labels is not None and "row" in self.model_fields_set:
            raise ValueError("'labels' are those of all rows; leave out 'row'")
        return self


def read_feedback(content: Mapping[str, Any], outputs: Sequence[str], now: float) -> tuple[list[Label], int]:
    """Returns the labels of a call, and how many events had a time so far ahead that it counts as now.

    content: an event, or {"events": [...]}. outputs: of the model, those that can be labelled. Raises InvalidInput.
    """
    events = [content]
    if "events" in content:
        if len(content) != 1 or not isinstance(content["events"], list):
            raise InvalidInput("expected one event, or 'events': a list of them, and nothing beside it", field="events")
        events = content["events"]
        if len(events) > MAX_EVENTS:
            raise InvalidInput(f"{len(events)} events in one call, at most {MAX_EVENTS} are allowed", field="events")
    labels: list[Label] = []
    skewed = 0
    for place, each in enumerate(events):
        try:
            event = _event(each)
            output = _output(event.output, outputs)
        except InvalidInput as error:
            if "events" not in content:
                raise
            raise InvalidInput(f"events.{place}: {error}", field=f"events.{place}.{error.field}".rstrip(".")) from None
        at = now if event.time is None else event.time
        if at > now:
            skewed += at > now + _AHEAD_S
            at = now
        given = [(event.row, event.label)] if event.labels is None else list(enumerate(event.labels))
        labels += [Label(event.id, row, output, value, at) for row, value in given if value is not None]
        if len(labels) > MAX_LABELS:
            raise InvalidInput(f"more than {MAX_LABELS} labels in one call; send several calls", field="events")
    assert all(math.isfinite(label.value) for label in labels)
    return labels, skewed


def _event(content: object) -> FeedbackEvent:
    if not isinstance(content, dict):
        raise InvalidInput(f"an event must be an object, got {type(content).__name__}")
    return FeedbackEvent.parse(content)


def _output(name: str, outputs: Sequence[str]) -> str:
    if not outputs:
        raise InvalidInput("the model has no output of one number a row, which labels could be compared with")
    if not name:
        if len(outputs) > 1:
            raise InvalidInput(f"'output': the model has several; expected one of {', '.join(outputs)}", field="output")
        return outputs[0]
    if name not in outputs:
        raise InvalidInput(f"'output': {name[:100]!r} is not one of {', '.join(outputs)}", field="output")
    return name
