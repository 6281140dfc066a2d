"""Publishes newer files of the tables of a published model as a delta: what differs from its newest snapshot."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from storage.checkpoint import DeltaTable
from storage.checkpoint.as_of import AsOf
from storage.checkpoint.fingerprint import fingerprint_hex, weights_fingerprint
from storage.checkpoint.install import publishing
from storage.checkpoint.row_streams import NO_IDS, compare
from storage.errors import CheckpointError, ConfigError, InvalidInput, LineageError, NotFound, Unsupported
from storage.importing import FileTable
from storage.specs import check_model_name
from trainer.evaluate import evaluation_mode
from trainer.importing.modules import matched, prepare
from trainer.importing.progress import Progress, counted, silent
from trainer.importing.scratch import temporary_folder
from trainer.importing.snapshot_rows import SnapshotRows, SnapshotSource
from trainer.importing.sorted_table import ImportedTable, SortedTable
from trainer.progress import Display
from trainer.publishing.delta_content import Changes, live_weights
from trainer.publishing.delta_writer import DeltaWriter
from trainer.publishing.lineage import Pending
from trainer.publishing.policy import DeltaPolicy
from trainer.publishing.prepared_module import PreparedModule
from trainer.publishing.publish_version import GOLDEN_REQUESTS_AT_LEAST
from trainer.publishing.row_types import RowTypes, row_types_of
from trainer.publishing.target import Target
from trainer.publishing.unlike import reason_for_version

_ATTEMPTS = 20
_TOLERANCE = 1e-6
# Above this share of a table's rows a delta costs about as much as a version, and more to serve.
_MOST_CHANGED = 0.5


@dataclass(frozen=True)
class DeltaReport:
    """Describes a delta of files. folder: None where nothing changed."""

    folder: Path | None
    tables: tuple[ImportedTable, ...]
    #: By table: new and changed rows, and removed ids.
    changes: Mapping[str, tuple[int, int]]
    unused: tuple[str, ...] = ()


def import_delta(
    tables: Sequence[FileTable],
    repository: Path | str,
    *,
    name: str,
    partial: bool = False,
    module: nn.Module | None = None,
    sample_batch: object = None,
    mapping: Mapping[str, str] | None = None,
    row_types: str | Mapping[str, str] | None = None,
    memory_bytes: int,
    metadata: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    check: bool = False,
) -> DeltaReport:
    """Publishes what differs from the newest snapshot of repository/name as a delta.

    partial: the files hold changed rows alone: ids that are not in them keep their rows, and so do tables. Otherwise
    what is not in them is removed. module, sample_batch: as the version was imported with, none for tables alone; the
    weights of the module are those of the delta. check: compare, and publish nothing; rows are then sorted in the
    folder of temporary files. The rest is as for `import_tables`. Raises NotFound for a model that is not published,
    Unsupported where a delta cannot do it, with the reason.
    """
    check_model_name(name)
    target = Target.of(repository, name)
    for _ in range(_ATTEMPTS):
        before = target.snapshot()
        if before is None:
            raise NotFound(f"{target.shown(target.model_dir)}: nothing is published, so there is nothing to change")
        with ExitStack() as stack:
            prepared = prepare(stack, module, sample_batch, _whole(tables, before, partial), _poolings(before))
            chosen, unused = matched(tables, prepared.sources, dict(mapping or {}), all_needed=not partial)
            stack.enter_context(torch.no_grad())
            stack.enter_context(evaluation_mode(prepared.module))
            scratch = stack.enter_context(temporary_folder() if check else publishing(target.model_dir))
            read = _sorted(chosen, prepared.prepared, before, memory_bytes, scratch, progress)
            changed = [_changes(entry.name, read.get(entry.name), before, partial) for entry in before.version.tables]
            report = DeltaReport(
                None,
                tuple(table.found() for table in read.values()),
                {table.name: (len(table.ids), len(table.removed)) for table in changed},
                tuple(unused),
            )
            patched = _over(prepared.prepared, before, changed)
            writer = DeltaWriter(patched, before.version, DeltaPolicy().full_weights_every)
            reason = reason_for_version(writer, RowTypes.of(row_types), _TOLERANCE)
            if reason is not None:
                raise Unsupported(
                    f"{target.shown(before.version.path)}: {reason}, and a delta cannot change that; import a version"
                    + ("" if module is not None else ", or give the --module that it was imported with")
                )
            is_same = not any(sum(counts) for counts in report.changes.values()) and _same_weights(writer, before)
            if check or is_same:
                return report
            try:
                folder = _written(writer, target, before, changed, metadata or {})
            except LineageError:
                continue  # another publisher was first: compare with what it published
            return replace(report, folder=folder)
    raise CheckpointError(f"{target.model_dir}: other publishers were first {_ATTEMPTS} times; try again")


def _whole(tables: Sequence[FileTable], before: AsOf, partial: bool) -> list[FileTable]:
    """Returns a table for each of the version, so that a model of tables alone is made as it was."""
    given = {table.name: table for table in tables}
    return [
        given.get(spec.name)
        or FileTable(spec.name, spec.dim, lambda: iter(()), lambda: iter(()), 0, absent=spec.absent)
        for spec in before.version.tables
        if partial or spec.name in given
    ]


def _poolings(before: AsOf) -> dict[str, str]:
    """Returns how the tables of a version answer alone; of a version with another network it says nothing."""
    spec = before.version.spec
    lists = {entry.name for entry in spec.inputs if entry.kind == "list"}
    names = {table.name for table in before.version.tables}
    return {
        feature.name: "mean" if feature.pooling == "mean" else "sum"
        for feature in spec.ids_features
        if feature.name in names & lists
    }


def _sorted(
    chosen: Mapping[str, FileTable],
    prepared: PreparedModule,
    before: AsOf,
    memory_bytes: int,
    scratch: Path,
    progress: Progress,
) -> dict[str, SortedTable]:
    sources = {source.name: source for source in prepared.plan.tables}
    row_types, read = row_types_of(before.version), {}
    for name, table in chosen.items():
        if name not in row_types:
            raise Unsupported(
                f"the published model has no table {name!r}, and a delta cannot add one; import a version"
            )
        spec = before.version.table(name)
        if spec.dim != table.dim:
            raise Unsupported(
                f"rows of the table {name!r} had {spec.dim} values and have {table.dim}; import a version"
            )
        source = sources.get(name)
        # What a module says stands where files say zeros, as in an import of a version.
        said = table.says_absent and (not table.absent.is_zero or source is None or source.absent.is_zero)
        if said and table.absent != spec.absent:
            known = spec.absent.is_zero or spec.absent.initializer.kind == "constant"
            keep = 0.0 if spec.absent.is_zero else spec.absent.initializer.scale
            hint = f", or give --default {table.name}={keep!r} to keep it" if known else ""
            raise ConfigError(
                f"table {name!r}: ids without a row read as {spec.absent}, and in the files as {table.absent}; a delta "
                f"cannot change that: import a version{hint}",
                field="default",
            )
        read[name] = SortedTable(
            table,
            row_types[name],
            memory_bytes,
            scratch,
            name=name,
            absent=spec.absent,
            hidden=None if source is None else source.hidden,
            progress=counted(table, progress),
        )
    return read


def _changes(name: str, table: SortedTable | None, before: AsOf, partial: bool) -> DeltaTable:
    """Returns the rows of a table that differ, and the ids that go."""
    spec = before.version.table(name)
    ids, rows, freq, gone = [NO_IDS], [np.empty((0, spec.dim), np.float32)], [np.empty(0, np.uint8)], [NO_IDS]
    count, seen = 0, 0
    if table is not None and not partial and not table.has_rows and spec.rows:
        raise InvalidInput(
            f"table {name!r}: the files hold no row of it, and the delta would remove all {spec.rows:,}; import a "
            "version if that is meant, or give --partial for files that hold changes"
        )
    if table is not None:
        for each in compare(before.rows(name), table.stream(kept=True).rows):
            fresh = each.fresh
            ids.append(fresh.ids)
            rows.append(fresh.rows)
            freq.append(fresh.freq)
            lost = each.removed.ids[np.isin(each.removed.ids, table.removed_ids())] if partial else each.removed.ids
            gone.append(lost)
            count += len(fresh.ids) + len(lost)
            seen += len(each.before.ids) + len(each.removed.ids) + each.same
            if count > _MOST_CHANGED * max(spec.rows, seen, 1) and count > 1000:
                raise Unsupported(
                    f"more than {_MOST_CHANGED:.0%} of the rows of the table {name!r} differ; import a version"
                )
    found = [np.concatenate(part) for part in (ids, rows, freq, gone)]
    return DeltaTable(name, spec.dim, found[0], found[1], found[2], found[3], spec.row_type, spec.absent)


def _over(prepared: PreparedModule, before: AsOf, changed: Sequence[DeltaTable]) -> PreparedModule:
    """Returns the prepared module with its tables read out of the snapshot and the changes."""
    by_name = {table.name: table for table in changed}
    sources = tuple(
        SnapshotSource(source.name, source.dim, snapshot_rows=SnapshotRows(before, by_name[source.name]))
        if source.name in by_name
        else source
        for source in prepared.plan.tables
    )
    return replace(prepared, plan=replace(prepared.plan, tables=sources))


def _same_weights(writer: DeltaWriter, before: AsOf) -> bool:
    dense = (before.deltas[-1] if before.deltas else before.version).manifest.dense_fingerprint
    return fingerprint_hex(weights_fingerprint(live_weights(writer.prepared.half, writer.graph))) == dense


def _written(
    writer: DeltaWriter, target: Target, before: AsOf, changed: list[DeltaTable], metadata: Mapping[str, Any]
) -> Path:
    pending = Pending(
        kind="delta",
        snapshot=secrets.token_hex(16),
        version=before.version.version,
        sequence=before.sequence + 1,
        parent=before.id,
        stamps={},
        from_sequence=before.sequence,
        applies_to=(before.id,),
        created_unix_ms=time.time_ns() // 1_000_000,
    )
    claimed = target.claim_sequence(pending.version, pending.snapshot, pending.sequence)
    delta = writer.write(
        replace(pending, sequence=claimed),
        Changes(changed, {}),
        pools=(),
        golden_requests=GOLDEN_REQUESTS_AT_LEAST,
        tolerance=_TOLERANCE,
        metadata=metadata,
        display=Display(visible=False),
        exactly=True,
    )
    target.publish(delta.path, onto=before.id)
    return delta.path
