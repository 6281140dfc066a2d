"""Writes the audit log: a line of JSON for every call that changes what is served, or was refused the right to."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.errors import ConfigError

logger = logging.getLogger("emberline.audit")

_MAX_TEXT = 200
# Number of refusals logged in a second. Strangers must not fill a disk: beyond it refusals are only counted, and the
# next line says how many there were.
_REFUSALS_A_SECOND = 10


class AuditLog:
    """Writes the log.

    Not thread-safe: one event loop uses it. Several processes may append to one file, a line a write.
    """

    def __init__(self, path: Path | None) -> None:
        """Opens the log.

        path: None for the logger `emberline.audit` alone. Raises ConfigError when it cannot be written.
        """
        self._path = path
        self._second = 0
        self._refused = 0
        self._left_out = 0
        self._is_failing = False
        if path is not None:
            try:
                os.close(_open(path))
            except OSError as error:
                text = f"audit_log: cannot write {path}: {error.strerror or error}"
                raise ConfigError(text, field="audit_log") from None

    def write(
        self,
        *,
        principal: str,
        address: str,
        transport: str,
        call: str,
        model: str,
        arguments: Any,
        outcome: int | str,
        took_ms: float,
        is_refused: bool = False,
    ) -> None:
        """Writes one call. arguments: short, and no secret among them."""
        if is_refused and self._is_flood():
            return
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "principal": principal,
            "address": address,
            "transport": transport,
            "call": call[:_MAX_TEXT],
            "model": model[:_MAX_TEXT],
            "arguments": arguments,
            "outcome": outcome,
            "ms": round(took_ms, 3),
        }
        if self._left_out:
            line["refusals_left_out"], self._left_out = self._left_out, 0
        text = json.dumps(line)
        logger.info("%s", text)
        if self._path is not None:
            self._append(self._path, text.encode() + b"\n")

    def _is_flood(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._refused = second, 0
        self._refused += 1
        if self._refused > _REFUSALS_A_SECOND:
            self._left_out += 1
            return True
        return False

    def _append(self, path: Path, line: bytes) -> None:
        # The file is opened anew each time, so that log rotation may rename it at any time.
        try:
            file = _open(path)
            try:
                os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            if not self._is_failing:
                logger.error("the audit log %s cannot be written: %s", path, error.strerror or error)
            self._is_failing = True
        else:
            self._is_failing = False


def arguments_of_body(body: bytes) -> Any:
    """Returns the arguments of a call as the log shows them."""
    if len(body) <= _MAX_TEXT * 5:
        try:
            return json.loads(body, parse_constant=str, parse_float=_number) if body.strip() else {}
        except (ValueError, RecursionError):
            pass
    return short_text(body[: _MAX_TEXT * 4].decode("utf-8", "replace"))


def _number(text: str) -> float | str:
    """Parses a float in JSON; one that is too large stays text, for JSON has no infinity."""
    value = float(text)
    return value if math.isfinite(value) else text


def short_text(text: str) -> str:
    """Returns the text, cut to the length that the log takes."""
    return " ".join(text[: _MAX_TEXT * 2].split())[:_MAX_TEXT]


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
