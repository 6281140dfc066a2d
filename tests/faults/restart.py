"""One restart in a process of its own: the snapshots that it serves, or why it does not, against what was decided."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from storage.errors import EmberlineError, Unavailable
from tests.faults.injector import Call, Injector
from tests.faults.worlds import Decided, Offline, Prepared, write_all
from tests.integration.serving.planted import ask, check_answer

# A restart that has not ended after RESTART_S, plus RETRY_S for its own retry, counts as hung.
RESTART_S = 40.0
RETRY_S = 8.0
# Fields of the state file that hold an operator's decisions.
DECISIONS = {"held", "abandoned", "paused", "pinned", "canary", "budget", "sessions", "allowed"}
ROUTING_KEYS = tuple(f"user-{key}" for key in range(12))
_LOOK_S = 0.02


@dataclass
class Seen:
    """State of the model at one look."""

    ready: bool = False
    reason: str = ""
    served: str = ""
    mode: str = ""
    canary: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    #: Name of the snapshot that answered, by routing key.
    answers: dict[str, str] = field(default_factory=dict)
    #: The error with which a request ended, by routing key.
    failed: dict[str, str] = field(default_factory=dict)
    #: Describes an answer that is not its snapshot's own; empty when there was none.
    wrong: str = ""


@dataclass
class Restart:
    """Result of one restart."""

    fired: int = 0
    #: The error with which the restart ended at once.
    refused: str = ""
    #: The look at the time when the model reported that it was loaded.
    first: Seen = field(default_factory=Seen)
    #: The look after the model's own retries; None when `first` was as decided.
    last: Seen | None = None
    #: The first look in between that was ready and neither as decided nor on the way to it.
    otherwise: Seen | None = None
    loaded_s: float = 0.0
    healed_s: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)
    #: "", "hung" or how the process died.
    ended: str = ""


def look(live: Offline) -> Seen:
    """Looks at the model as an operator and as a client would."""
    report, facts = live.report(), live.updater.model.facts
    entries = live.repository.index()
    reasons = [entry.reason for entry in entries if entry.reason] + [report["waiting"] or ""]
    seen = Seen(
        ready=live.repository.is_ready(),
        reason="; ".join(filter(None, reasons)),
        served=report["served"]["name"] if report["served"] else "",
        mode=report["mode"],
        canary=f"{report['canary']['name']} {report['canary']['fraction']}" if report["canary"] else "",
        facts=facts.model_dump(mode="json", include=DECISIONS),
    )
    seen.facts["quarantine"] = sorted(facts.quarantine)
    seen.facts["dram_bytes"] = live.updater.model.budget.total
    if not seen.ready:
        return seen
    rows = live.world.rows_of(next(iter(live.snapshots.values())), 12)
    for key in ROUTING_KEYS:
        try:
            result = ask(live.repository, rows, routing_key=key)
            seen.answers[key] = check_answer(result, rows, live.snapshots).name
        except (EmberlineError, OSError) as error:
            seen.failed[key] = f"{type(error).__name__}: {error}"
            if isinstance(error, Unavailable) and not live.repository.is_ready():
                break
        except AssertionError as error:
            seen.wrong = str(error)[:500]
    return seen


def is_on_the_way(seen: Seen, decided: Decided) -> bool:
    """Returns whether the model serves nothing wrong, and only what it may serve on the way to what was decided.

    The one fault may also meet a read that a request makes for its rows: then that request, and no other, ends with an
    error, beside answers of what was decided.
    """
    return (
        seen.ready
        and not seen.wrong
        and len(seen.failed) <= 1
        and (seen.served in decided.on_the_way or (bool(seen.failed) and seen.served == decided.served))
        and all(name in (*decided.on_the_way, decided.served) for name in seen.answers.values())
    )


def is_as(seen: Seen, wanted: Seen) -> bool:
    """Returns whether the model serves exactly the same, and remembers the same."""
    return (
        seen.ready
        and not seen.wrong
        and (seen.served, seen.mode, seen.canary) == (wanted.served, wanted.mode, wanted.canary)
        and seen.facts == wanted.facts
        and seen.answers == wanted.answers
        and not seen.failed
    )


def restart(
    world: Prepared,
    store: Path,
    *,
    call: Call | None = None,
    error: int = 0,
    wanted: Seen | None = None,
    log: int = -1,
    retry_s: float = RETRY_S,
) -> Restart:
    """Restarts the model over a store, with one fault; in the process of the caller, which is to die afterwards.

    wanted: what is waited for, at most `retry_s`; without it, for what the world says.
    """
    logging.basicConfig(level=logging.INFO, force=True)
    injector = Injector()
    injector.forbid_uring()
    injector.watch([store, world.repository])
    live = Offline.of(world, store)
    if call is not None:
        injector.arm(call, error)
    injector.log_to(log)
    found = Restart()
    began = time.monotonic()
    try:
        live.start()
    except (EmberlineError, OSError) as failure:
        found.refused = f"{type(failure).__name__}: {failure}"
        found.fired = injector.fired
        return found
    found.loaded_s = time.monotonic() - began

    def is_right(seen: Seen) -> bool:
        if wanted is not None:
            return is_as(seen, wanted)
        return seen.ready and not seen.wrong and seen.served == world.decided.served

    found.first = look(live)
    injector.log_to(-1)
    found.fired = injector.fired
    if not is_right(found.first):
        deadline = time.monotonic() + retry_s
        found.last = found.first
        while time.monotonic() < deadline and not is_right(found.last):
            time.sleep(_LOOK_S)
            found.last = look(live)
            way = is_right(found.last) or is_on_the_way(found.last, world.decided)
            if found.last.ready and not way and found.otherwise is None:
                found.otherwise = found.last
        found.healed_s = time.monotonic() - began
    found.state = live.updater.model.file.read().model_dump(mode="json")
    for line in found.state.get("lines", []):
        for entry in (line["base"], *line["chain"]):
            entry["visible_ms"] = 0.0
    return found


def in_a_process(work: Callable[[int], None], output: Path, timeout_s: float) -> tuple[bytes, str]:
    """Forks; the child does the work, which writes to the pipe that it is given, and is gone as after `kill -9`.

    Returns what was written and how it ended: "", "hung" or the signal or exit code. output: of the child's log.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            work(writing)
            code = 0
        except BaseException:
            logging.exception("the child failed")
        finally:
            os._exit(code)
    os.close(writing)
    deadline = time.monotonic() + timeout_s
    data, hung = b"", False
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            hung = True
            os.kill(child, signal.SIGKILL)
            break
        piece = os.read(reading, 1 << 20)
        if not piece:
            break
        data += piece
    os.close(reading)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return data, "hung" if hung else "" if code == 0 else f"exit code {code}"


def import_what_a_restart_imports(world: Prepared, store: Path, output: Path) -> None:
    """Imports here what a restart imports late, so that no child has to.

    These imports take most of a restart's time.
    """

    def work(pipe: int) -> None:
        before = set(sys.modules)
        restart(world, store)
        write_all(pipe, json.dumps(sorted(set(sys.modules) - before)).encode())

    data, _ = in_a_process(work, output, RESTART_S + RETRY_S)
    for name in json.loads(data):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def restart_in_a_process(world: Prepared, store: Path, output: Path, **options: Any) -> Restart:
    """Runs `restart` in a child of this process."""

    def work(pipe: int) -> None:
        found = restart(world, store, **options)
        write_all(pipe, json.dumps(asdict(found)).encode())

    data, ended = in_a_process(work, output, RESTART_S + RETRY_S)
    if ended or not data:
        return Restart(ended=ended or "said nothing")
    content = json.loads(data)
    for name in ("first", "last", "otherwise"):
        content[name] = None if content[name] is None else Seen(**content[name])
    return Restart(**content)
