"""Runs parts of a benchmark in processes that may hang, crash or lose their GPU; rows found until then count.

A worker process measures some parts and writes its findings to a file, one line of JSON each: "begin" and a part's
name, "row" and its values, "remark" and a text, "end" and a part's name with its error or "", "refused" and the reason
why nothing can be measured at all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Report, Row
from storage.errors import ConfigError

ROOT = Path(__file__).parent.parent
# The exit code of a worker that cannot go on measuring: the remaining parts need a new process.
LOST = 86
# Seconds until the first part begins, after the last part ended, and for a part that is running when the time is over.
_START_S, _END_S, _GRACE_S = 90.0, 20.0, 15.0
_POLL_S = 0.05

# Returns a worker's command line from the parts to measure, the file to write to and the seconds that are left.
Command = Callable[[Sequence[str], Path, float], list[str]]


@dataclass(frozen=True)
class Part:
    """A part of a benchmark."""

    #: The module of the function.
    module: str
    #: The function that measures it; its argument is a bench.
    function: str
    #: Seconds after which the part counts as hung.
    limit_s: float
    #: Parts with the same name share a process.
    process: str
    #: What it measures, in words.
    says: str


def append_event(path: Path, kind: str, value: Any) -> None:
    """Appends a worker's line and flushes it, because the next call may end the process."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps([kind, value]) + "\n")


def supervise(
    report: Report, parts: Mapping[str, Part], names: Sequence[str], command: Command, events: Path, ends: float
) -> list[str]:
    """Runs parts in workers; puts their rows into the report. Returns the names of those that failed.

    events: where workers write. ends: on the monotonic clock, when nothing new is begun. Raises ConfigError when
    nothing can be measured here.
    """
    failed: list[str] = []
    left = list(names)
    while left:
        group = [name for name in left if parts[name].process == parts[left[0]].process]
        worker = _Worker(report, parts, group, events)
        worker.run(command(group, events, max(1.0, ends - time.monotonic())), ends)
        for name, error in worker.ended:
            if error:
                failed.append(name)
                report.remark(f"part {name} FAILED: {error}")
        over = [name for name, _ in worker.ended]
        rest = [name for name in group if name not in over]
        if worker.why and rest:  # it died and could not report that itself
            # Where not even the first part began, the others would not either.
            dead = rest[:1] if worker.is_begun else rest
            failed += dead
            over += dead
            report.remark(f"part {', '.join(dead)} FAILED: {worker.why}")
        left = [name for name in left if name not in over]
        if left and (time.monotonic() >= ends or not over):
            report.remark(f"left out, for want of time: {', '.join(left)}")
            break
    report.pairs(
        "parts that failed", [float(len(failed))], [0.0], "none", unit="parts", target=1.0, less_is_better=True
    )
    return failed


class _Worker:
    """Runs one worker process.

    ended: parts that ended, with their error or "". why: the reason why it ended early, "" when it did not.
    """

    def __init__(self, report: Report, parts: Mapping[str, Part], names: Sequence[str], events: Path) -> None:
        self.ended: list[tuple[str, str]] = []
        self.why = ""
        self.is_begun = False
        self._report, self._parts, self._names, self._events = report, parts, names, events
        self._current = ""
        self._since = 0.0
        self._seen = 0

    def run(self, command: Sequence[str], ends: float) -> None:
        """Runs until the worker ends or hangs. Raises ConfigError when it refused to measure."""
        self._events.unlink(missing_ok=True)
        self._since = time.monotonic()
        with _child(command) as process:
            while True:
                code = process.poll()
                self._read()
                if code is not None:
                    break
                self.why = self._hangs(ends)
                if self.why:
                    return
                time.sleep(_POLL_S)
        if len(self.ended) < len(self._names) and code not in (0, LOST):
            self.why = f"its process ended with {code}"

    def _hangs(self, ends: float) -> str:
        now = time.monotonic()
        limit_s = self._parts[self._current].limit_s if self._current else _START_S
        if len(self.ended) == len(self._names):
            limit_s = _END_S
        if now - self._since > limit_s:
            return f"not done after {limit_s:.0f} s"
        return "not done when the time was over" if now > ends + _GRACE_S else ""

    def _read(self) -> None:
        for kind, value in _events(self._events, self._seen):
            self._seen += 1
            if kind == "row":
                self._report.rows.append(Row(**{**value, "spread": tuple(value["spread"])}))
            elif kind == "remark":
                self._report.remark(value)
            elif kind == "refused":
                raise ConfigError(value)
            elif kind == "begin":
                self._current, self._since, self.is_begun = value, time.monotonic(), True
            elif kind == "end":
                self.ended.append((value[0], value[1]))
                self._current, self._since = "", time.monotonic()


@contextmanager
def _child(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process group that is killed on exit, however that happens, together with its own children."""
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _events(path: Path, seen: int) -> list[tuple[str, Any]]:
    """Returns the events after the first `seen`; an incomplete last line is read the next time."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [tuple(json.loads(line)) for line in lines[seen:]]
