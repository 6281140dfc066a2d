"""Sets up the log of a server: its format, its levels by logger, and how often equal warnings are repeated."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from serving.observing.redaction import redacted
from storage.errors import InvalidInput

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
#: The name by which the root logger is set and shown.
ROOT = "root"
#: Where records keep what JSON shows as keys of their own.
FIELDS = "fields"

# An equal warning is logged so often within so long; then it is counted until the time is over.
REPEATS, WITHIN_S = 5, 60.0
# Different warnings that are remembered.
_MAX_REMEMBERED = 1000


class ConsoleFormatter(logging.Formatter):
    """Formats a record as a line of text, without secrets."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        return redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        fields = getattr(record, FIELDS, None)
        if fields:
            line |= {key: redacted(value) if isinstance(value, str) else value for key, value in fields.items()}
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = redacted(record.stack_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class RepeatFilter(logging.Filter):
    """Lets equal warnings and errors pass a few times a minute, and says how many were left out. Thread-safe.

    Records below warnings pass always.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        # By logger, level and text: since when it is counted, and how often it came.
        self._seen: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        key = (record.name, record.levelno, text)
        now = time.monotonic()
        with self._lock:
            since, count = self._seen.pop(key, (now, 0))
            left_out = 0
            if now - since >= WITHIN_S:
                left_out, since, count = max(0, count - REPEATS), now, 0
            self._seen[key] = (since, count + 1)
            if len(self._seen) > _MAX_REMEMBERED:
                self._seen.popitem(last=False)
        if count >= REPEATS:
            return False
        if left_out:
            record.msg, record.args = "%s (left out since: %d equal ones)", (text, left_out)
        elif count == REPEATS - 1:
            record.msg, record.args = "%s (equal ones are left out for %.0f s)", (text, WITHIN_S - (now - since))
        return True


def set_up_logs(
    levels: Mapping[str, str], log_format: str = "console", stream: TextIO | None = None
) -> logging.Handler:
    """Makes the root logger write to standard error, or to another stream; returns its handler.

    levels: by the name of a logger, ROOT for all others. log_format: console or json.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    handler.addFilter(RepeatFilter())
    logging.getLogger().addHandler(handler)
    for name, level in levels.items():
        logger_named(name).setLevel(LEVELS[level])
    return handler


def levels_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Reads levels: LEVEL for all loggers, NAME=LEVEL for one and those below it. Raises InvalidInput."""
    found = {ROOT: "info"}
    for text in texts:
        name, is_named, level = text.rpartition("=")
        if level not in LEVELS or (is_named and not name):
            raise InvalidInput(
                f"log_level: expected {', '.join(LEVELS)}, or NAME=LEVEL such as emberline.storage=debug, got {text!r}",
                field="log_level",
            )
        found[name or ROOT] = level
    return found


def logger_named(name: str) -> logging.Logger:
    """Returns a logger by its name; ROOT for the one above all."""
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def is_known(name: str) -> bool:
    """Returns whether there is a logger of this name. Asking for one that is not there would make it."""
    return name == ROOT or name in logging.Logger.manager.loggerDict


def set_levels() -> dict[str, str]:
    """Returns the levels that are set, by the name of the logger; those of others are inherited."""
    # A copy, because other threads make loggers.
    known = {ROOT: logging.getLogger(), **logging.Logger.manager.loggerDict}
    return {
        name: logging.getLevelName(logger.level).lower()
        for name, logger in sorted(known.items())
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    }
