"""Notes of requests, and settings of an observer, with usual values for what a test does not care about."""

from __future__ import annotations

import time
from typing import Any

from serving._front import Observer


def settings(**changed: Any) -> dict[str, Any]:
    usual = {
        "has_lines": False,
        "is_json": True,
        "slow_ns": 0,
        "is_tracing": False,
        "sampling": 0.0,
        "keeps_all": False,
    }
    return {**usual, **changed}


def note(observer: Observer, **changed: Any) -> None:
    texts = ("model", "version", "snapshot", "id", "header_id", "traceparent", "address", "principal", "error")
    usual: dict[str, Any] = dict.fromkeys(texts, "") | {
        "is_grpc": False,
        "call": "infer",
        "status": 200,
        "rows": 0,
        "request_bytes": 10,
        "response_bytes": 20,
        "arrived_ns": time.monotonic_ns(),
        "queued_ns": 0,
        "stages": None,
        "is_traceable": True,
    }
    observer.note(**{**usual, **changed})
