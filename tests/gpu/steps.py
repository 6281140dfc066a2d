"""Runs commands that may fail, hang or crash, one after the other within a time limit; each reports its result at once.

It uses only the standard library. A step's output goes into the log of the part; only lines that begin with "! ",
stacks of a process that hangs or crashes, and findings of a sanitizer are shown.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
# A step that gets less time than this is not begun.
LEAST_S = 10.0
# Bytes of one step in the log, from its beginning and from its end: together below 16 MiB for all steps of a part.
HEAD_BYTES, TAIL_BYTES = 1 << 20, 1 << 18
# Lines of one step that are shown.
MOST_SHOWN = 120
# Seconds after the time limit: for a stack, and for the rows that a benchmark has to write.
_ABORT_S, _TERM_S = 5.0, 15.0
# A stack's first line may follow the marks of tests that passed on the same line.
_TRACE = re.compile(r"Timeout \(\d|Fatal Python error|^(Thread 0x|Current thread|Stack \(|  File \"|~~~)")
_FOUND = re.compile(r"========= (?!COMPUTE-SANITIZER)(?!ERROR SUMMARY: 0 errors)|Traceback|\w*Error: |part .* FAILED")
# A sanitizer's own exit code when it found something.
SANITIZER_FOUND = 97


@dataclass(frozen=True)
class Step:
    """A command of a part."""

    #: Its name in the table.
    name: str
    command: list[str]
    #: Seconds after which it is ended.
    limit_s: float
    #: "tests" write events, "figures" write rows, others neither.
    kind: str = "plain"
    #: The reason why it cannot be run here, in one line; "" when it can.
    why_not: str = ""
    #: Variables added to the usual environment.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: File that events or rows are written to.
    file: Path | None = None


@dataclass(frozen=True)
class Verdict:
    """The result of a step."""

    name: str
    #: passed, FAILED, HANGS, CRASHED, CUT (by the end of the part), NO TIME, or not run; the last alone does not count
    #: against the part.
    word: str
    detail: str
    seconds: float

    @property
    def is_bad(self) -> bool:
        """Returns whether it makes the exit status a failure."""
        return self.word not in ("passed", "not run")

    def __str__(self) -> str:
        return f"{self.name:18} {self.word:8} {self.seconds:4.0f} s  {self.detail}"


class Output:
    """Reads the output of a process: writes it into the log, and shows some of it."""

    def __init__(self, stream: IO[bytes], log: IO[str], show: Callable[[str], None]) -> None:
        self.shown = 0
        self.last = ""
        self._stream, self._log, self._show = stream, log, show
        self._head, self._cut = HEAD_BYTES, 0
        self._tail: deque[str] = deque()
        self._tail_bytes = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops reading when the process is over; does not wait for a child of its own that still holds the pipe."""
        self._thread.join(2.0)
        if not self._thread.is_alive():
            self._stream.close()
        if self._cut:
            self._log.write(f"... {self._cut} bytes are left out ...\n")
        self._log.writelines(self._tail)
        self._log.flush()

    def _run(self) -> None:
        for raw in self._stream:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if line.strip():
                self.last = line.strip()
            self._keep(line + "\n")
            if line.startswith("! ") or _TRACE.search(line) or _FOUND.search(line):
                self.shown += 1
                if self.shown <= MOST_SHOWN:
                    self._show(line)

    def _keep(self, line: str) -> None:
        if self._head > 0:
            self._head -= len(line)
            self._log.write(line)
            self._log.flush()
            return
        self._tail.append(line)
        self._tail_bytes += len(line)
        while self._tail_bytes > TAIL_BYTES:
            gone = self._tail.popleft()
            self._tail_bytes -= len(gone)
            self._cut += len(gone)


def run(step: Step, limit_s: float, log: IO[str], show: Callable[[str], None]) -> Verdict:
    """Runs a step within its own limit and the given one."""
    if step.why_not:
        return Verdict(step.name, "not run", step.why_not, 0.0)
    if limit_s < LEAST_S:
        return Verdict(step.name, "NO TIME", "the steps before took it", 0.0)
    is_short = limit_s < step.limit_s
    limit_s = min(limit_s, step.limit_s)
    log.write(f"\n==== {step.name}: {' '.join(step.command)}\n")
    log.flush()
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **step.environment}
    try:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Verdict(step.name, "FAILED", f"cannot be started: {error}", 0.0)
    assert process.stdout is not None
    output = Output(process.stdout, log, show)
    try:
        code = _wait(process, limit_s, step.kind)
    finally:
        _kill(process)
        output.end()
    word, detail = judge(step, code, limit_s, output.last)
    if code is None and is_short:
        word = "CUT"
    return Verdict(step.name, word, detail, time.monotonic() - began)


def _wait(process: subprocess.Popen[bytes], limit_s: float, kind: str) -> int | None:
    """Returns the exit code; None for a process that had to be ended, which leaves its stack or its rows."""
    try:
        return process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        gentle, seconds = (signal.SIGTERM, _TERM_S) if kind == "figures" else (signal.SIGABRT, _ABORT_S)
        process.send_signal(gentle)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills it with its children, within ten seconds: a process that hangs in a driver ignores gentler signals."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it is stuck in the kernel for ever: the next step is begun all the same
        process.wait(timeout=10.0)


def judge(step: Step, code: int | None, limit_s: float, last: str) -> tuple[str, str]:
    """Returns the verdict on an exit code, and the findings until then. last: the last line that was printed."""
    if step.kind == "tests":
        return judge_tests(read_events(step.file), code, limit_s, last)
    detail = f"{count_rows(step.file)} rows" if step.kind == "figures" else last[:160]
    if code is None:
        return "HANGS", f"not done after {limit_s:.0f} s; {detail}"
    if code < 0:
        return "CRASHED", f"{signal.Signals(-code).name}; {detail}"
    return ("passed", detail) if code == 0 else ("FAILED", f"{detail}; exit code {code}")


def judge_tests(events: Sequence[tuple[str, Any]], code: int | None, limit_s: float, last: str) -> tuple[str, str]:
    """Returns the same verdict for tests. events: see telling."""
    outcomes = Counter(str(value[1]) for kind, value in events if kind == "outcome")
    open_now = [value for kind, value in events if kind == "begin"]
    for kind, value in events:
        if kind == "end" and value in open_now:
            open_now.remove(value)
    words = [f"{outcomes['passed']} passed"]
    words += [f"{outcomes[name]} {name}" for name in ("failed", "error", "skipped") if outcomes[name]]
    detail = "; ".join([", ".join(words), *(str(value) for kind, value in events if kind == "note")])
    if open_now:
        what = open_now[-1].rpartition("::")[2]
        if code is not None and code < 0:
            return "CRASHED", f"{detail}; {signal.Signals(-code).name} in {what}"
        return "HANGS", f"{detail}; in {what}" + (f", not done after {limit_s:.0f} s" if code is None else "")
    if code == SANITIZER_FOUND:
        return "FAILED", f"{detail}; the sanitizer found something"
    if code is None:
        return "HANGS", f"{detail}; not done after {limit_s:.0f} s"
    if code < 0:
        return "CRASHED", f"{detail}; {signal.Signals(-code).name}"
    if code != 0:
        is_known = outcomes["failed"] or outcomes["error"]
        return "FAILED", detail if is_known else f"{detail}; exit code {code}: {last[:160]}"
    return ("passed", detail) if outcomes["passed"] else ("FAILED", f"{detail}: nothing was tested")


def read_events(path: Path | None) -> list[tuple[str, Any]]:
    """Returns the events that a run of tests wrote; an incomplete last line is left out."""
    if path is None or not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            kind, value = json.loads(line)
        except ValueError:
            continue
        found.append((kind, value))
    return found


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """Returns the rows that a benchmark wrote beside its table."""
    if path is None:
        return []
    try:
        rows = json.loads(path.with_name(path.name + ".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return list(rows)


def count_rows(path: Path | None) -> int:
    """Returns the number of rows in a file."""
    return len(read_rows(path))
