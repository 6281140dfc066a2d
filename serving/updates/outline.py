"""Reports what a model serves and what is in its memory, in short forms that may be asked for again and again."""

from __future__ import annotations

from contextlib import suppress

from pydantic import JsonValue

from serving.updates import report
from serving.updates.live_model import LiveModel
from storage.errors import StoreError
from storage.tiers.hottest import MOST_PUBLISHED, HottestIds, hottest_ids

#: Ids of each table that are listed.
HOTTEST = 20


def outline(model: LiveModel) -> dict[str, JsonValue]:
    """Returns what is served, the mode, and how much was refused."""
    with model.lock:
        default, canary, facts = model.default, model.canary_entry(), model.facts
        current = None if default is None else default.view.current
        return {
            "mode": report.mode(model),
            "served": None
            if current is None
            else {
                "id": current.id,
                "name": current.name,
                "published_unix_ms": current.snapshot.published_unix_ms,
                "since_unix_ms": model.since[1],
            },
            "canary": None if canary is None else {"name": canary[1].name, "fraction": canary[2]},
            "has_shadow": facts.shadow is not None,
            "refused": len(facts.quarantine),
            "staging": model.staging or None,
            "waiting": report.waiting(model),
            **report.hardware(default, model.mounts),
        }


def memory(model: LiveModel) -> dict[str, JsonValue]:
    """Returns the DRAM budget with its curves, and the hottest ids of what is served.

    Without a budget the curves and ids are read from all rows; of more than MOST_PUBLISHED rows both are null.
    """
    with model.lock:
        mount = model.default
    if mount is None:
        return {"budget": None, "hottest": None, "source": ""}
    found = HottestIds("", {})
    with suppress(StoreError):  # it is being closed just now
        found = hottest_ids(mount.store, HOTTEST)
    return {
        "budget": report.budget(model) if found.source else None,
        "hottest": {
            # As text: JavaScript has no integers of 64 bits.
            table: [[str(id_), count] for id_, count in zip(ids.tolist(), uses.tolist(), strict=True)]
            for table, (ids, uses) in found.tables.items()
        }
        if found.source
        else None,
        "source": found.source,
        "most_rows": MOST_PUBLISHED,
    }
