"""Publishes a module as its difference to the newest snapshot of a repository, or as a version where no delta will do.

No training checkpoint knows what was published: the line of snapshots is read from the repository itself. So it is
safe with several publishers: whoever finds that another one was first compares again with what that one published.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from storage.checkpoint import PublishedDelta, next_sequence
from storage.checkpoint.as_of import AsOf
from storage.checkpoint.fingerprint import fingerprint_hex, weights_fingerprint
from storage.checkpoint.manifest import MAX_DESCENT
from storage.errors import CheckpointError, LineageError, NotFound, Unsupported
from trainer.progress import Display
from trainer.publishing.delta_content import Changes, live_weights
from trainer.publishing.delta_writer import DeltaWriter
from trainer.publishing.differences import TooManyChanges, difference, difference_to_version
from trainer.publishing.lineage import Lineage, Pending, Published
from trainer.publishing.pending import with_delta, with_version
from trainer.publishing.policy import DeltaPolicy
from trainer.publishing.prepared_module import PreparedModule
from trainer.publishing.publish_version import STEPS, write_prepared
from trainer.publishing.repository import read_version, row_bytes
from trainer.publishing.row_types import RowTypes, row_types_of
from trainer.publishing.target import Target
from trainer.publishing.unlike import reason_for_version

_ATTEMPTS = 20
# Above this share of a table's rows a delta costs about as much as a version, and more to serve.
_MOST_CHANGED = 0.5


@dataclass(frozen=True)
class Outcome:
    """Says what was published, and why."""

    #: Of the version or delta; where nothing changed, that of the newest snapshot.
    folder: Path
    what: Literal["version", "delta", "nothing"]
    #: Why it is a version, where a delta was asked for.
    reason: str = ""


@dataclass(frozen=True)
class ChangesPublisher:
    """Publishes what changed in one prepared module. Use it inside eval() and no_grad().

    only: a delta or nothing. The other arguments are those of `publish`.
    """

    prepared: PreparedModule
    target: Target
    display: Display
    only: bool
    policy: DeltaPolicy
    row_types: RowTypes
    golden_requests: int
    tolerance: float
    max_batch_size: int
    metadata: Mapping[str, Any]

    def publish(self, from_snapshot: str | None = None) -> Outcome:
        """Publishes a delta of the newest snapshot, or of `from_snapshot`, or else a version, or nothing.

        Raises NotFound or Unsupported, where only a
        delta was asked for, with the reason why there is none.
        """
        for _ in range(_ATTEMPTS):
            before = self.target.snapshot(from_snapshot)
            try:
                return self._publish(before, rebased=from_snapshot is not None)
            except (CheckpointError, NotFound) as error:
                # Whoever was first may have removed what the module was compared with.
                if not isinstance(error, LineageError) and (before is None or _is_there(before)):
                    raise
                self.display.say(f"{error}; comparing again")
        raise CheckpointError(
            f"{self.target.model_dir}: other publishers were first {_ATTEMPTS} times; try again when they are done"
        )

    def _publish(self, before: AsOf | None, *, rebased: bool) -> Outcome:
        if before is None:
            if self.only:
                raise NotFound(
                    f"{self.target.shown(self.target.model_dir)}: nothing was published yet, so there is nothing for a "
                    "delta to change; publish a version"
                )
            return self._version(None, Lineage(), "nothing was published yet")
        writer = DeltaWriter(self.prepared, before.version, self.policy.full_weights_every)
        lineage = lineage_of(before)
        changes, reason = None, reason_for_version(writer, self.row_types, self.tolerance)
        if reason is None:
            try:
                changes = self._changes(before)
            except TooManyChanges as error:
                reason = str(error)
        if changes is None:
            assert reason is not None
            if self.only:
                raise Unsupported(
                    f"{self.target.shown(before.version.path)}: {reason}, and a delta cannot change that; publish a "
                    "version"
                )
            return self._version(before, lineage, reason)
        if self._is_unchanged(writer, before, changes):
            newest = before.deltas[-1].path if before.deltas else before.version.path
            self.display.say(f"nothing changed since {self.target.shown(newest)}; nothing is published")
            return Outcome(newest, "nothing")
        return self._delta(writer, before, lineage, changes, rebased=rebased)

    def _changes(self, before: AsOf) -> Changes:
        sources = self.prepared.plan.tables
        self.display.begin(f"comparing with {before.version.version}.{before.sequence}", None)
        row_types = row_types_of(before.version)
        return difference(sources, before, row_types, share=_MOST_CHANGED, on_block=self.display.advance)

    def _is_unchanged(self, writer: DeltaWriter, before: AsOf, changes: Changes) -> bool:
        if any(len(table.ids) or len(table.removed) for table in changes.tables):
            return False
        dense = (before.deltas[-1] if before.deltas else before.version).manifest.dense_fingerprint
        return fingerprint_hex(weights_fingerprint(live_weights(self.prepared.half, writer.graph))) == dense

    def _delta(
        self, writer: DeltaWriter, before: AsOf, lineage: Lineage, changes: Changes, *, rebased: bool
    ) -> Outcome:
        due = "delta" if rebased else self.policy.next_kind(lineage)
        pending = Pending(
            kind="delta",
            snapshot=secrets.token_hex(16),
            version=before.version.version,
            # The newest one's successor: whoever takes it first has the turn.
            sequence=next_sequence(before.version.path) if rebased else before.sequence + 1,
            parent=before.id,
            stamps={},
            from_sequence=before.sequence,
            applies_to=(before.id,),
            created_unix_ms=time.time_ns() // 1_000_000,
        )
        if due == "cumulative":
            self.display.begin(f"comparing with {before.version.version}.0", None)
            changes = difference_to_version(
                self.prepared.plan.tables, before, row_types_of(before.version), on_block=self.display.advance
            )
            pending = replace(pending, kind="cumulative", from_sequence=0, applies_to=_line(before))
        self.display.begin(f"publishing {self.target.model_dir.name}", None)
        claimed = self.target.claim_sequence(pending.version, pending.snapshot, pending.sequence)
        delta = writer.write(
            replace(pending, sequence=claimed),
            changes,
            pools=(),
            golden_requests=self.golden_requests,
            tolerance=self.tolerance,
            metadata=self.metadata,
            display=self.display,
            exactly=not rebased,
        )
        self.target.publish(delta.path, onto="" if rebased else before.id)
        self.display.say(f"published {self.target.shown(delta.path)}: {_counts(delta)}")
        lineage = with_delta(lineage, pending, delta)
        if due != "compaction":
            if due == "cumulative":  # it replaces deltas before it, as one of the tracked publisher does
                self.target.retain(lineage, self.policy)
            return Outcome(delta.path, "delta")
        return self._version(before, lineage, f"{lineage.deltas} deltas make a version due", equals=delta.snapshot)

    def _version(self, before: AsOf | None, lineage: Lineage, reason: str, equals: str | None = None) -> Outcome:
        self.display.say(f"{reason}: publishing a version")
        self.display.begin(f"publishing {self.target.model_dir.name}", STEPS)
        snapshot, newest = secrets.token_hex(16), lineage.newest
        folder = write_prepared(
            self.prepared,
            self.target.model_dir,
            golden_requests=self.golden_requests,
            tolerance=self.tolerance,
            display=self.display,
            version=self.target.claim_version(snapshot, None),
            snapshot=snapshot,
            max_batch_size=self.max_batch_size,
            metadata=self.metadata,
            row_types=self.row_types,
            before=None if before is None else before.version,
            parent=None if newest is None else newest.snapshot,
            equals=equals,
            descends_from=lineage.line()[::-1],
            erased_unix_ms=self.target.erased_unix_ms(),
        )
        self.target.publish(folder)
        self.display.say(f"published {self.target.shown(folder)}")
        version = read_version(folder.parent, int(folder.name))
        if version is not None:
            pending = Pending("version", snapshot, version.version, 0, "", {})
            self.target.retain(with_version(lineage, pending, version), self.policy)
        return Outcome(folder, "version", reason)


def lineage_of(snapshot: AsOf) -> Lineage:
    """Returns the line of a snapshot as far as its files say it. No stamp is known of any table."""
    version = snapshot.version
    first = Published(version.snapshot, version.version, 0, {}, version.manifest.dense_fingerprint)
    entries = [
        Published(delta.snapshot, delta.version, delta.sequence, {}, delta.manifest.dense_fingerprint)
        for delta in snapshot.deltas
    ]
    known = {first.snapshot, *(entry.snapshot for entry in entries)}
    between = [each for each in _line(snapshot) if each not in known]
    return Lineage(
        version=version.version,
        base=version.snapshot,
        published=(first, *entries),
        ancestors=(*reversed(version.manifest.descends_from), *between),
        last_sequence=snapshot.sequence,
        version_bytes=row_bytes(version.manifest.files),
        delta_bytes=sum(row_bytes(delta.manifest.files) for delta in snapshot.deltas),
        deltas=snapshot.sequence,
    )


def _line(snapshot: AsOf) -> tuple[str, ...]:
    """Returns the snapshots from a version to one of its deltas that its files name, that one first."""
    found = [snapshot.id, snapshot.version.snapshot]
    for delta in reversed(snapshot.deltas):
        found += [delta.snapshot, *delta.applies_to]
    return tuple(dict.fromkeys(found))[:MAX_DESCENT]


def _is_there(snapshot: AsOf) -> bool:
    return snapshot.version.path.is_dir() and all(delta.path.is_dir() for delta in snapshot.deltas)


def _counts(delta: PublishedDelta) -> str:
    tables = delta.manifest.tables
    rows, removed = sum(entry.rows for entry in tables), sum(entry.removed for entry in tables)
    return f"{rows:,} rows, {removed:,} removed ids, {delta.size_bytes:,} bytes"
