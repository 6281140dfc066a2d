"""Says where a snapshot stands among the replicas: whether it may be taken, must wait for them, or may be shown."""

from __future__ import annotations

import time
from typing import Literal

from storage.objects.head import Head, leads_to
from storage.objects.served import Served

#: "show": at once, or when all switch. "wait": once the other replicas have it. "no": not now. "refused": by a replica.
Standing = Literal["show", "wait", "no", "refused"]

# A snapshot that is named as the next one is waited for so long, by the clocks of those that wait.
_NEXT_MS = 60_000


def standing(head: Head, snapshot: str, own: str) -> Standing:
    """Returns where a published snapshot stands. own: what this replica serves; "" for nothing."""
    served = head.served
    trial = trial_of(served)
    if snapshot in (served.snapshot, trial):
        return "show"
    if served.snapshot and own != served.snapshot:
        return "show" if leads_to(head, snapshot, served.snapshot) else "no"
    if snapshot in served.refused:
        return "refused"
    named = next_of(head)
    if served.paused or served.pinned or trial or not head.find(snapshot) or named not in ("", snapshot):
        return "no"
    return "wait"


def trial_of(served: Served) -> str:
    """Returns the snapshot of the canary that all replicas have; "" for none."""
    return "" if served.canary is None else served.canary.snapshot


def next_of(head: Head) -> str:
    """Returns the snapshot that all replicas are to take next; "" where they choose by themselves."""
    served = head.served
    age_ms = time.time_ns() // 1_000_000 - served.written_unix_ms
    return served.next if served.next and age_ms < _NEXT_MS and head.find(served.next) else ""


def snapshot_names(head: Head) -> dict[str, str]:
    """Returns the names, such as 3.17, of the snapshots that are published, by id."""
    found = {}
    for version in head.versions:
        found[version.snapshot] = f"{version.version}.0"
        found |= {delta.snapshot: f"{version.version}.{delta.sequence}" for delta in version.deltas}
    return found


def newer_than_served(head: Head) -> list[str]:
    """Returns the snapshots that may follow what is served, the newest last, also those that are refused."""
    served = head.served
    names = list(snapshot_names(head))
    if served.snapshot in names:
        names = names[names.index(served.snapshot) + 1 :]
    return [name for name in names if name not in {*served.held, *served.abandoned}]
