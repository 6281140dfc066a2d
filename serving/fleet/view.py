"""Shows a fleet: what all replicas serve, who has staged what, and who refused it and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from serving.fleet.peers import Health
from serving.fleet.standing import snapshot_names
from storage.objects.fleet import Lease, Replica
from storage.objects.head import Head
from storage.objects.trials import TrialReport


def fleet_view(
    model: str,
    head: Head,
    lease: Lease,
    replicas: Sequence[Replica],
    health: Mapping[str, Health],
    trial: TrialReport | None,
) -> dict[str, JsonValue]:
    """Returns the state of a fleet; docs/fleet.md describes it."""
    served = head.served
    names = snapshot_names(head)
    now = time.time_ns() // 1_000_000
    newest = head.versions[-1] if head.versions else None
    last = None if newest is None else newest.deltas[-1].snapshot if newest.deltas else newest.snapshot

    def named(snapshot: str) -> JsonValue:
        return {"id": snapshot, "name": names.get(snapshot, "")} if snapshot else None

    mode = "pinned" if served.pinned else "paused" if served.paused else "held" if served.held else "following"
    canary = served.canary
    return {
        "model": model,
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
        "live_auc": None if trial is None else trial.model_dump(mode="json"),
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
                # One that is ready serves what all serve.
                "serves": named(served.snapshot if health.get(each.id) == "ready" else each.served),
                "staged": named(each.staged if each.staged != served.snapshot else ""),
                "trouble": each.trouble,
                "reported_unix_ms": each.unix_ms,
            }
            for each in replicas
        ],
    }
