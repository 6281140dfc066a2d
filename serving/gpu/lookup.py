"""Looks up on the GPU: one session's path from ids to scores, with the host's help for missed rows.

The ids of a batch go to the GPU in one copy. Then one of two graphs follows: `whole` finds the rows and computes at
once; `look_up` finds the rows, and `dense` computes when the missed ones have arrived. Recent batches decide which:
computing in vain costs more than a second launch, but only where something is missed.

Between `enter` and `leave` of the reader nothing that the GPU can find is taken away: for as long as a lookup is on the
stream, and no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from serving.gpu.batch import GpuForm, PackedIds
from serving.gpu.context import MAX_FORMS, ExecutionContext
from serving.gpu.context_graphs import GraphKind
from serving.gpu.kernels import MISSES_AT_ONCE, GpuKernels
from serving.gpu.missed_rows import MissedLookup, MissedRows
from serving.gpu.tables import GpuTables
from serving.gpu.weight_slots import WeightSlot
from serving.pipeline.user_side import SidedBatch
from storage.checkpoint import DenseGraph
from storage.features import FeatureBatch
from storage.hbm.replica import Replica
from storage.hbm.visibility import VisibleSnapshot
from storage.tiers.counting import COUNTED, HBM, LookupCounts

# Misses that a batch may have before the host looks all of it up: a quarter of the ids that there is room for, and at
# most this; and the bytes of their rows: a quarter of the largest batch's inputs, and at least this.
MOST_MISSES = 1 << 15
LEAST_MISSED_BYTES = 4 << 20
# Weight of a batch with a miss in the next choice of graphs; over one half, misses are usual.
_WEIGHT = 1 / 16
_USUAL = 0.5


@dataclass(frozen=True)
class GpuScores:
    """Scores of a batch."""

    #: Outputs as returned by ExecutionContext.finish.
    outputs: list[np.ndarray]
    #: Counts as in every lookup; likewise by_table.
    counts: LookupCounts
    by_table: np.ndarray
    #: When its lookups had ended, on the clock of `time.monotonic_ns`; 0 where one graph looked up and computed.
    looked_up_ns: int = 0


class GpuLookup:
    """Looks up on the GPU for one session. Not thread-safe; allocates everything in the constructor."""

    def __init__(self, context: ExecutionContext, gpu: GpuTables, timeout_s: float | None) -> None:
        """Allocates buffers. timeout_s: limit for rows that the GPU does not have. Raises DeviceError."""
        self._context = context
        self._model = context.model
        driver = self._driver = context.model.driver
        self._tier = gpu.tier
        self._packing = packing = gpu.packing
        self._timeout_s = timeout_s
        #: True if the cache counts its batches and learns from them; False at first.
        self.tells = False
        self._plan = gpu.store.plan_rows()
        driver.enter_thread()
        self._sharing = sharing = gpu.session_sharing()
        self._reader = gpu.tier.reader() if sharing is None else sharing.reader
        missed_bytes = max(LEAST_MISSED_BYTES, context.model.inputs.packed_bytes // 4)
        self._kernels = GpuKernels(context, packing, min(packing.id_room // 4, MOST_MISSES), missed_bytes, sharing)
        self._late = MissedLookup(
            packing.features, packing.tables, self._plan, self._kernels.host_missed, self._kernels.host
        )
        self._forms: dict[tuple[int, int], GpuForm] = {}
        self._missing: dict[int, float] = {}

    def capture_all(self, graph: DenseGraph, mask: int) -> None:
        """Captures graphs for every bucket and weight slot, where the GPU can answer for a mask. Raises DeviceError."""

        def capture(rows: int, weight_slot: WeightSlot) -> bool:
            visible = self._reader.enter(mask)
            if visible is None:
                return True
            try:
                self._kernels.forget(visible.replica)
                self._kernels.bind(visible)
                return all(self._has_graph(kind, rows, weight_slot, visible.replica) for kind in ("look_up", "whole"))
            finally:
                self._reader.leave()

        self._context.for_all(graph, capture)

    def score(self, batch: FeatureBatch | SidedBatch, mask: int, graph: DenseGraph) -> GpuScores | None:
        """Scores a batch; returns None where the host has to look it up. Raises StoreError, DeviceError.

        graph: holds the weights. No weight slot is held for them while missed rows are awaited: updates need one too.
        """
        replica = self._tier.replica
        if replica is None:
            return None
        self._kernels.forget(replica)
        item, user, user_of_row = batch, None, None
        if isinstance(batch, SidedBatch):
            item, user, user_of_row = batch.item, batch.user, batch.rows
        assert isinstance(item, FeatureBatch)
        form = self._form(item.batch, 0 if user is None else user.batch)
        stamp = self._context.next_stamp()
        packed = form.put(stamp, item, user, user_of_row)
        if packed is None:
            self._packing.warn_of_room(self._model.name)
            return None
        rows = item.batch
        bucket = self._model.buckets.of(rows)
        weight_slots, weight_slot = self._model.weight_slots, None
        try:
            weight_slot = weight_slots.acquire(graph)
            self._driver.wait(self._context.stream, weight_slot.ready)
            if bucket is not None and not self._has_dense(bucket, weight_slot):
                bucket = None
            looked_up = self._enter(form, packed, mask, rows, bucket, weight_slot, stamp)
            if looked_up is None:
                return None
            bucket, is_computed = looked_up
            size = rows if bucket is None else bucket
            late = None
            copied = packed.size
            if self._kernels.counts.any():
                # The result computed with it is discarded, so the weights may be in another weight slot afterwards.
                weight_slots.release(weight_slot)
                weight_slot = None
                late = self._find_late(packed, mask, 0 if is_computed else MISSES_AT_ONCE)
                if late.late is None:
                    self._tell(packed, packed.lookups, late.wanted)
                    return None
                weight_slot = weight_slots.acquire(graph)
                self._driver.wait(self._context.stream, weight_slot.ready)
                # No capture warms up here, over what was looked up: graphs of this size were there with the other
                # weight slot.
                if bucket is not None and not self._has_dense(bucket, weight_slot):
                    bucket, size = None, rows
                self._kernels.put_late(late.late, size)
                copied += late.late.size
                is_computed = False
            looked_up_ns = 0
            if not is_computed:
                looked_up_ns = time.monotonic_ns()
                self._compute(rows, bucket, weight_slot)
                self._context.wait(stamp)
        except BaseException:
            self._context.drain()
            raise
        finally:
            if weight_slot is not None:
                weight_slots.release(weight_slot)
        self._model.counters.ran(rows, bucket, copied)
        return self._answer(packed, late, self._context.answers(rows, size), looked_up_ns)

    def _enter(
        self,
        form: GpuForm,
        packed: PackedIds,
        mask: int,
        rows: int,
        bucket: int | None,
        weight_slot: WeightSlot,
        stamp: int,
    ) -> tuple[int | None, bool] | None:
        """Looks up as `_look_up` does; returns None where the GPU does not answer for a mask.

        Keeps nothing of the replica.
        """
        visible = self._reader.enter(mask)
        if visible is None:
            return None
        try:
            form.put_chain(visible.chain)
            if self._sharing is not None:
                self._sharing.put_chains(form, visible)
            return self._look_up(visible, packed, rows, bucket, weight_slot, stamp)
        except BaseException:
            self._context.drain()
            raise
        finally:
            self._reader.leave()

    def _has_dense(self, rows: int, weight_slot: WeightSlot) -> bool:
        # This runs before the session is inside: libraries may compile for minutes when they compute for the first
        # time.
        return self._context.graphs.has("dense", rows, weight_slot, lambda: self._context.put_dense(rows, weight_slot))

    def _answer(
        self, packed: PackedIds, late: MissedRows | None, outputs: list[np.ndarray], looked_up_ns: int
    ) -> GpuScores:
        hits = packed.lookups
        counts = LookupCounts()
        if late is None or late.by_table is None:
            by_table = np.zeros((len(hits), len(COUNTED)), np.uint64)
            self._tell(packed, np.zeros_like(hits), [])
        else:
            # An id that a user's row found and another one did not counts as a miss.
            hits = hits - late.missed
            counts, by_table = late.counts, late.by_table
            self._tell(packed, late.missed, late.wanted)
        by_table[:, HBM] = hits
        counts.hbm = int(hits.sum())
        self._plan.count_hbm(hits)
        return GpuScores(outputs, counts, by_table, looked_up_ns)

    def _tell(self, packed: PackedIds, missed: np.ndarray, wanted: list[tuple[int, np.ndarray]]) -> None:
        if self.tells and self._sharing is None:
            self._tier.tell(packed.lookups, missed, wanted)
        elif self.tells and self._sharing is not None:
            self._sharing.tell(packed, self._kernels.host, missed, wanted)

    def _form(self, rows: int, users: int) -> GpuForm:
        form = self._forms.pop((rows, users), None)
        if form is None:
            form = self._packing.form(self._kernels.host, rows, users)
            if len(self._forms) >= MAX_FORMS:
                del self._forms[next(iter(self._forms))]  # the one that was not used for longest
        self._forms[rows, users] = form
        return form

    def _look_up(
        self,
        visible: VisibleSnapshot,
        packed: PackedIds,
        rows: int,
        bucket: int | None,
        weight_slot: WeightSlot,
        stamp: int,
    ) -> tuple[int | None, bool]:
        """Looks up what was packed, and computes where misses are not usual.

        Returns the size of its graphs, None when it ran without; and whether it computed. `GpuKernels.counts` holds
        the number of misses.
        """
        self._kernels.bind(visible)
        misses_usual = self._missing.get(bucket or 0, 0.0) > _USUAL
        kind: GraphKind = "look_up" if misses_usual else "whole"
        # Everything the batch may need is prepared first: a capture computes with whatever lies in the buffers.
        if bucket is not None and not self._has_graph(kind, bucket, weight_slot, visible.replica):
            bucket = None
        self._kernels.send(packed.size)
        if bucket is not None:
            self._context.graphs.launch(kind, bucket, None if kind == "look_up" else weight_slot)
        else:
            self._put(kind, rows, weight_slot, visible.replica)()
        self._context.wait(stamp)
        before = self._missing.get(bucket or 0, 0.0)
        self._missing[bucket or 0] = before + (float(self._kernels.counts.any()) - before) * _WEIGHT
        return bucket, kind == "whole"

    def _has_graph(self, kind: GraphKind, rows: int, weight_slot: WeightSlot, replica: Replica) -> bool:
        needed = None if kind == "look_up" else weight_slot
        return self._context.graphs.has(kind, rows, needed, self._put(kind, rows, weight_slot, replica))

    def _put(self, kind: GraphKind, rows: int, weight_slot: WeightSlot, replica: Replica) -> Callable[[], None]:
        """Returns the function that puts a lookup on the stream, or into a graph."""

        def put() -> None:
            self._kernels.put(rows, replica)
            if kind == "whole":
                self._context.put_dense(rows, weight_slot)
            else:
                self._kernels.put_misses()

        return put

    def _find_late(self, packed: PackedIds, mask: int, arrived: int) -> MissedRows:
        """Looks up the missed rows on the host. arrived: entries of each list that are here already."""
        (gathered, pooled), is_all = self._kernels.misses(arrived)
        if not is_all:
            return self._late.offer(packed, gathered, pooled)
        return self._late.find(packed, gathered, pooled, self._timeout_s, mask)

    def _compute(self, rows: int, bucket: int | None, weight_slot: WeightSlot) -> None:
        if bucket is None:
            self._context.put_dense(rows, weight_slot)
        else:
            self._context.graphs.launch("dense", bucket, weight_slot)
