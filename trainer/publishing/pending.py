"""Draws the next snapshot of a lineage, and settles one that a crash left pending."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from storage.checkpoint import PublishedDelta, PublishedVersion, next_sequence
from trainer.embedding import EmbeddingTable
from trainer.event_times import TrainedTimes, as_json
from trainer.publishing.lineage import Lineage, Pending, Published
from trainer.publishing.policy import Due
from trainer.publishing.repository import find_delta, find_version, row_bytes


def drawn(
    due: Due,
    lineage: Lineage,
    model_dir: Path,
    stamps: Mapping[str, int],
    version: int | None = None,
    times: TrainedTimes | None = None,
) -> Pending:
    """Draws a new snapshot at the end of the lineage.

    stamps: the last stamps whose changes it holds. version: its number, if given. times: those of the rows that it was
    trained on.
    """
    parent, times = lineage.newest, times or TrainedTimes()
    covers_version = due in ("version", "cumulative")
    pending = Pending(
        kind="delta" if due == "compaction" else due,
        snapshot=secrets.token_hex(16),
        version=version or 0,
        sequence=0,
        parent="" if parent is None else parent.snapshot,
        stamps=stamps,
        created_unix_ms=time.time_ns() // 1_000_000,
        events=as_json(times.since_version() if covers_version else times.since_snapshot()),
    )
    if due == "version" or parent is None:
        return pending
    base = lineage.base_of(parent)
    inside = lineage.since_base(parent)
    whole = due == "cumulative"
    taken = next_sequence(model_dir / str(parent.version)) - 1
    return replace(
        pending,
        version=parent.version,
        sequence=max(lineage.last_sequence, taken) + 1,
        since=base.stamps if whole else parent.stamps,
        from_sequence=0 if whole else parent.sequence,
        applies_to=tuple(entry.snapshot for entry in inside) if whole else (parent.snapshot,),
        compaction=secrets.token_hex(16) if due == "compaction" else "",
        compaction_events=as_json(times.since_version()) if due == "compaction" else None,
    )


def expire(lineage: Lineage, tables: Mapping[str, EmbeddingTable], after: Mapping[str, int]) -> None:
    """Erases the rows that were not touched for `after` publishes, by table."""
    for name, publishes in after.items():
        # A compaction has the stamps of its delta and is no publish of its own.
        stamps = sorted({entry.stamps.get(name, 0) for entry in lineage.published})
        if name in tables and len(stamps) >= publishes > 0:
            tables[name].erase_expired(stamps[-publishes])


def settled(lineage: Lineage, model_dir: Path) -> Lineage:
    """Returns the lineage without anything pending: what was written is added to it, what was not is dropped."""
    pending = lineage.pending
    if pending is None:
        return lineage
    if pending.kind == "version":
        version = find_version(model_dir, pending.snapshot)
        return replace(lineage, pending=None) if version is None else with_version(lineage, pending, version)
    delta = find_delta(model_dir / str(pending.version), pending.snapshot)
    lineage = replace(lineage, pending=None) if delta is None else with_delta(lineage, pending, delta)
    version = find_version(model_dir, pending.compaction) if delta and pending.compaction else None
    return lineage if version is None else with_version(lineage, pending, version)


def with_version(lineage: Lineage, pending: Pending, version: PublishedVersion) -> Lineage:
    """Returns the lineage with a version that was written."""
    entry = Published(version.snapshot, version.version, 0, pending.stamps, version.manifest.dense_fingerprint)
    return lineage.with_published(entry, row_bytes=row_bytes(version.manifest.files))


def with_delta(lineage: Lineage, pending: Pending, delta: PublishedDelta) -> Lineage:
    """Returns the lineage with a delta that was written."""
    manifest = delta.manifest
    entry = Published(delta.snapshot, delta.version, delta.sequence, pending.stamps, manifest.dense_fingerprint)
    return lineage.with_published(entry, row_bytes=row_bytes(manifest.files), cumulative=manifest.cumulative)
