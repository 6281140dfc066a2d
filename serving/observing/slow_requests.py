"""Logs requests that took long, with the times of their stages."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from serving._front import KeptRequest
from serving.observing.logs import FIELDS
from serving.observing.stage_times import STAGE_ORDER, stage_ns

logger = logging.getLogger("emberline.slow")

# Lines of one second. When all requests are slow, some of them tell why.
MOST_A_SECOND = 10


class SlowRequests:
    """Writes the log. One thread uses it."""

    def __init__(self) -> None:
        self._second = 0
        self._count = 0
        self._left_out = 0

    def write(self, request: KeptRequest) -> None:
        """Logs a request, unless there were many in this second."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > MOST_A_SECOND:
            self._left_out += 1
            return
        fields = fields_of(request)
        if self._left_out:
            fields["slow_left_out"], self._left_out = self._left_out, 0
        shown = " ".join(f"{name}={_shown(value)}" for name, value in fields.items() if name != "ms")
        logger.warning("a request took %.3f ms: %s", fields["ms"], shown, extra={FIELDS: fields})


def fields_of(request: KeptRequest) -> dict[str, Any]:
    """Returns what is known of a request, by the names of the access log."""
    fields: dict[str, Any] = {
        "transport": "grpc" if request.is_grpc else "http",
        "call": request.call,
        "model": request.model,
        "version": request.version,
        "snapshot": request.snapshot,
        "id": request.id,
        "trace_id": request.trace_id,
        "status": request.status,
        "rows": request.rows,
        "address": request.address,
        "principal": request.principal,
        "error": request.error,
        "ms": _ms(request.ended_ns - request.arrived_ns),
    }
    times = stage_ns(request)
    fields |= {f"{stage}_ms": _ms(times[stage]) for stage in STAGE_ORDER if stage in times}
    if request.stages is not None:
        fields["batch_rows"] = request.stages.rows
        fields["session"] = request.stages.session
    return {name: value for name, value in fields.items() if value != ""}


def _shown(value: Any) -> str:
    """Returns a value for a line of text: clients choose ids and names, and may not begin lines of their own."""
    text = str(value)
    is_word = text.isprintable() and not any(letter in ' "=\\' for letter in text)
    return text if is_word else json.dumps(text, ensure_ascii=not text.isprintable())


def _ms(ns: int) -> float:
    return round(max(0, ns) / 1e6, 3)
