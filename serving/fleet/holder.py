"""Decides for all replicas, by whoever holds the lease: when a staged snapshot is served, and which one comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from serving.fleet.peers import Health
from serving.fleet.standing import newer_than_served
from storage.objects.fleet import Replica
from storage.objects.head import Head

#: A replica that answers requests and has neither staged the snapshot nor said why is waited for so long.
WAIT_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """Says what a holder does now."""

    action: Literal["commit", "name", "wait"]
    #: The snapshot to commit, or to name as the next one.
    snapshot: str = ""
    #: What is waited for, or who is left behind.
    reason: str = ""


def judge(
    head: Head,
    snapshot: str,
    replicas: Sequence[Replica],
    health: Mapping[str, Health],
    *,
    waited_s: float,
    max_unavailable: int,
) -> Verdict:
    """Returns what is to be done about a snapshot that the holder has staged.

    replicas: what all say of themselves, the holder's own included. health: of those that have not staged it; those
    that do not answer requests are not waited for. waited_s: since the holder has staged it. max_unavailable: how many
    that answer requests may be left behind, where they say that they cannot take it, or say nothing for `WAIT_S`.
    """
    live = [each for each in replicas if health.get(each.id, "unknown") in ("ready", "unknown")]
    staged = {each.staged for each in live} | {snapshot}
    candidates = [each for each in newer_than_served(head) if each in staged and each not in head.served.refused]
    if len(candidates) > 1 and head.served.next not in candidates:
        return Verdict("name", candidates[-1], "the replicas have staged different snapshots")
    late = [each for each in live if each.staged != snapshot]
    if not late:
        return Verdict("commit", snapshot)
    text = "; ".join(f"{each.id} {each.trouble or 'has not staged it'}" for each in late)
    excused = all(each.trouble for each in late) or waited_s > WAIT_S
    if excused and len(late) <= max_unavailable:
        return Verdict("commit", snapshot, f"left behind: {text}")
    return Verdict("wait", snapshot, text)
