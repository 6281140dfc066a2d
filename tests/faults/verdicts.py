"""Judges a restart with one fault, and the restart after it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.injector import Call
from tests.faults.restart import DECISIONS, Restart, Seen, is_as, is_on_the_way
from tests.faults.worlds import Decided, Prepared

# Kinds that change nothing on the disk: after one of these, a restart that is right needs no second one as proof.
HARMLESS = frozenset({"open", "read", "stat", "list", "map", "lock"})


WRONG = "wrong answers"
OTHERWISE = "served otherwise than decided"
LASTING = "the next restart is not as decided"
FORGOTTEN = "the state file is another"
DIED = "the server died"
HUNG = "the server hung"
NOT_HEALED = "did not heal by itself"
SILENT = "not ready, without a reason"
WORST_FIRST = (WRONG, OTHERWISE, LASTING, FORGOTTEN, DIED, HUNG, NOT_HEALED, SILENT)


@dataclass(frozen=True)
class Found:
    """One fault and its outcome.

    good: the outcome that was observed.
    bad: the violated requirement, "" when all was right.
    """

    world: str
    call: Call
    error: int
    good: str = ""
    bad: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Wanted:
    """State that a restart without faults finds."""

    seen: Seen
    state: dict[str, Any]
    decided: Decided

    def state_differs(self, state: dict[str, Any]) -> str:
        """Names the fields in which the state file differs; only the decisions count where deltas are taken."""
        names = sorted(DECISIONS | {"quarantine"}) if self.decided.on_the_way else list(self.state)
        return ", ".join(name for name in names if state.get(name) != self.state.get(name))


def judge(wanted: Wanted, faulty: Restart, after: Restart | None) -> tuple[str, str, str]:
    """Returns the outcome, the worst violated requirement ("" for none), and the detail.

    after: the next restart, without a fault.
    """
    wrongs = dict([*_faulty(wanted, faulty), *_after(wanted, after)])
    worst = next((each for each in WORST_FIRST if each in wrongs), "")
    detail = "; ".join([wrongs.pop(worst, ""), *(f"{what}: {why}" for what, why in wrongs.items())])
    if faulty.refused:
        return "ended with an error", worst, detail
    if is_as(faulty.first, wanted.seen):
        return "as decided at once", worst, detail
    return "on the way" if faulty.first.ready else "not ready, with the reason", worst, detail


def _faulty(wanted: Wanted, faulty: Restart) -> Iterator[tuple[str, str]]:
    if faulty.ended:
        yield HUNG if faulty.ended == "hung" else DIED, faulty.ended
    if faulty.ended or faulty.refused:
        return
    for seen in (faulty.first, faulty.otherwise, faulty.last):
        if seen is None:
            continue
        if seen.wrong:
            yield WRONG, seen.wrong
        elif seen.ready and not is_as(seen, wanted.seen) and not is_on_the_way(seen, wanted.decided):
            yield OTHERWISE, differences(seen, wanted.seen)
        elif not seen.ready and not seen.reason:
            yield SILENT, ""
    if faulty.last is not None and not is_as(faulty.last, wanted.seen):
        yield NOT_HEALED, differences(faulty.last, wanted.seen)


def _after(wanted: Wanted, after: Restart | None) -> Iterator[tuple[str, str]]:
    if after is None:
        return
    seen = after.last or after.first
    if after.ended or after.refused:
        yield LASTING, after.ended or after.refused
    elif not is_as(seen, wanted.seen):
        yield LASTING, differences(seen, wanted.seen)
    elif differs := wanted.state_differs(after.state):
        yield FORGOTTEN, differs


def differences(seen: Seen, wanted: Seen) -> str:
    """Describes how one look differs from what was wanted."""
    if not seen.ready:
        return f"not ready: {seen.reason}"
    parts = [seen.wrong] if seen.wrong else []
    parts += [
        f"{name} {getattr(seen, name)!r} for {getattr(wanted, name)!r}"
        for name in ("served", "mode", "canary")
        if getattr(seen, name) != getattr(wanted, name)
    ]
    parts += [f"{name} differs" for name, value in wanted.facts.items() if seen.facts.get(name) != value]
    if seen.answers != wanted.answers:
        parts.append(f"answers: {sorted(set(seen.answers.values()))}")
    parts += [f"a request failed: {why}" for why in seen.failed.values()]
    return "; ".join(parts) + (f" ({seen.reason})" if seen.reason else "")


def path_class(world: Prepared, store: Path, path: str) -> str:
    """Removes from a path what differs in every run: roots, ids and numbers."""
    for root, name in ((store, "store"), (world.repository, "repository")):
        if path.startswith(f"{root}"):
            path = name + path[len(str(root)) :]
    path = re.sub(r"[0-9a-f]{32}", "<id>", path)
    return re.sub(r"\d{6}", "<n>", path)
