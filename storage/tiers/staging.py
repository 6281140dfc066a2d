"""Stages a delta into an overlay, and reads back what was staged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from storage._table import CapacityExceeded, OverlayTable
from storage.checkpoint.fingerprint import MASK, removed_fingerprint, rows_fingerprint
from storage.errors import CheckpointError, StoreError
from storage.features import Jagged
from storage.rows import RowCodec
from storage.tiers.lookup_plan import LookupPlan
from storage.tiers.overlays import ENTRY_BYTES, REMOVED, ROW, SPILLED, Overlay
from storage.tiers.pace import Pace
from storage.tiers.source import DeltaSource
from storage.tiers.ssd.tier import SsdTier

# Entries of one call, which releases the GIL.
_STAGE_ENTRIES = 8192
_READ_BACK = 4096


def stage_delta(
    delta: DeltaSource,
    overlay: Overlay,
    numbers: Mapping[str, int],
    tables: Sequence[OverlayTable],
    ssd: SsdTier,
    *,
    spill: bool | None,
    bytes_left: int,
) -> None:
    """Fills a reserved overlay. numbers: table name -> index in `tables`.

    spill: whether rows go to SSD; None: when they would take more than bytes_left. Raises CheckpointError, StoreError,
    and whatever the delta raises; the caller drops the overlay then.
    """
    pace = Pace()
    specs = delta.tables
    for spec in specs:
        index = numbers.get(spec.name)
        if index is None or tables[index].dim != spec.dim:
            here = {name: tables[index].dim for name, index in numbers.items()}
            raise CheckpointError(f"{delta.path} changes table {spec.name!r} of dim {spec.dim}; the model has {here}")
        if tables[index].row_type != spec.row_type:
            raise CheckpointError(
                f"{delta.path}: table {spec.name!r}: its rows are {spec.row_type}, the model's are "
                f"{tables[index].row_type}; a delta has the row types of its version"
            )
    removed = {spec.name: delta.removed(spec.name) for spec in specs}
    if spill is None:
        rows_bytes = sum(spec.rows * (spec.row_bytes + ENTRY_BYTES) for spec in specs)
        spill = rows_bytes + sum(map(len, removed.values())) * ENTRY_BYTES > bytes_left
    for spec in specs:
        table = tables[numbers[spec.name]]
        what = f"{delta.path}: table {spec.name!r}"
        if spill and spec.rows:
            number = overlay.spills[numbers[spec.name]] = ssd.spill_number()
            entered = _entered(delta, spec.name, table, overlay, pace, what)
            ssd.bulk_load(number, entered, pace=pace, row_type=spec.row_type)
        else:
            for shard in delta.shards(spec.name):
                _enter(table, overlay, shard.ids, shard.encoded, ROW, pace, what)
                overlay.bytes += shard.encoded.nbytes
        _enter(table, overlay, removed[spec.name], None, REMOVED, pace, what)


def overlay_fingerprint(plan: LookupPlan, ids: np.ndarray, mask: int, codec: RowCodec) -> int:
    """Returns the fingerprint of what a plan finds for ids (n,): rows, and ids without one as removed.

    plan: has one unpooled feature of length 1. codec: the table's codec, which encodes the rows found to the bytes that
    they were decoded from.
    """
    pace = Pace()
    total = 0
    for start in range(0, len(ids), _READ_BACK):
        part = ids[start : start + _READ_BACK]
        result = plan.lookup(len(part), [Jagged(part, np.arange(len(part) + 1))], mask=mask)
        flags = result.masks[0]
        assert flags is not None
        found = flags[:, 0].view(np.bool_)
        stored = codec.encode(result.outputs[0][found, 0])
        total += rows_fingerprint(part[found], stored) + removed_fingerprint(part[~found])
        pace.step()
    return total & MASK


def _entered(
    delta: DeltaSource, name: str, table: OverlayTable, overlay: Overlay, pace: Pace, what: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for shard in delta.shards(name):
        _enter(table, overlay, shard.ids, None, SPILLED, pace, what)
        yield shard.ids, shard.encoded


def _enter(
    table: OverlayTable, overlay: Overlay, ids: np.ndarray, rows: np.ndarray | None, kind: int, pace: Pace, what: str
) -> None:
    for start in range(0, len(ids), _STAGE_ENTRIES):
        part = slice(start, start + _STAGE_ENTRIES)
        try:
            table.stage(overlay.slot, ids[part], None if rows is None else rows[part], kind)
        except ValueError as error:
            raise CheckpointError(f"{what}: {error}") from error
        except (CapacityExceeded, MemoryError) as error:
            raise StoreError(f"{what}: no memory for an overlay of it ({error}); merge others first") from error
        pace.step()
    if kind == REMOVED:
        overlay.removed += len(ids)
    else:
        overlay.rows += len(ids)
    overlay.bytes += len(ids) * ENTRY_BYTES
