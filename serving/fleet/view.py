"""Shows a fleet: what all replicas serve, who has staged what, and who refused it and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from serving.fleet.peers import Health
from serving.fleet.reading import Reading
from serving.fleet.standing import snapshot_names
from storage.objects.fleet import Replica
from storage.objects.head import Head

_GRACE_MS = 500


def with_own(replicas: Sequence[Replica], own: Replica) -> list[Replica]:
    """Returns replicas with what one of them says of itself now; it keeps the time of its last report, 0 for none."""
    reported = next((each.unix_ms for each in replicas if each.id == own.id), 0)
    others = [each for each in replicas if each.id != own.id]
    return sorted([*others, own.model_copy(update={"unix_ms": reported})], key=lambda each: each.id)


def fleet_view(
    model: str,
    head: Head,
    reading: Reading,
    health: Mapping[str, Health],
    said: Mapping[str, str],
    asked: str = "",
) -> dict[str, JsonValue]:
    """Returns the state of a fleet; docs/fleet.md describes it.

    said: the snapshots that replicas said now that they serve. asked: the replica that answers; "" for none.
    """
    served, lease = head.served, reading.lease
    names = snapshot_names(head)
    now = time.time_ns() // 1_000_000
    newest = head.versions[-1] if head.versions else None
    last = None if newest is None else newest.deltas[-1].snapshot if newest.deltas else newest.snapshot

    def named(snapshot: str) -> JsonValue:
        return {"id": snapshot, "name": names.get(snapshot, "")} if snapshot else None

    def serves(replica: Replica) -> JsonValue:
        if replica.id in said:
            return named(said[replica.id])
        if health.get(replica.id) != "ready":
            return named(replica.served)
        # One that is ready serves what all serve, which nobody knows who does not hear from the object store.
        return None if reading.error else named(served.snapshot)

    def is_behind(replica: Replica) -> bool:
        # Between the commit and its time, and shortly after that, all serve what was served before.
        said_so = health.get(replica.id) == "ready" and said.get(replica.id, "") not in ("", served.snapshot)
        return bool(served.snapshot and said_so and now > served.commit_at_unix_ms + _GRACE_MS)

    mode = "pinned" if served.pinned else "paused" if served.paused else "held" if served.held else "following"
    canary = served.canary
    return {
        "model": model,
        "asked": asked,
        "store": {
            "url": reading.url,
            "error": reading.error,
            "answered_unix_ms": reading.answered_unix_ms,
            "replicas_unix_ms": reading.replicas_unix_ms,
        },
        "mode": mode,
        "served": named(served.snapshot),
        "since_unix_ms": served.commit_at_unix_ms,
        "previous": named(served.previous),
        "newest": named(last or ""),
        "epoch": served.epoch,
        "by": served.by,
        "canary": None
        if canary is None
        else {"fraction": canary.fraction, "snapshot": named(canary.snapshot), "to": canary.to},
        "live_auc": None if reading.trial is None else reading.trial.model_dump(mode="json"),
        "held": [named(each) for each in served.held],
        "refused": [
            {"id": key, "name": names.get(key, ""), "reasons": list(why)} for key, why in served.refused.items()
        ],
        "lease": {"holder": lease.holder if lease.until_unix_ms > now else "", "until_unix_ms": lease.until_unix_ms},
        "replicas": [
            {
                "id": each.id,
                "url": each.url,
                "health": health.get(each.id, "unknown"),
                "serves": serves(each),
                "behind": is_behind(each),
                "staged": named(each.staged if each.staged != served.snapshot else ""),
                "trouble": each.trouble,
                "reported_unix_ms": each.unix_ms,
            }
            for each in reading.replicas
        ],
    }
