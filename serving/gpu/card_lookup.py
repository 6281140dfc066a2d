"""Lookups on the card: one lane's way from ids to scores, with the host's help for rows that the card does not have.

The ids of a batch go to the card in one copy. Then comes one of two graphs: `whole` finds the rows and computes, right
away; `look_up` finds the rows, and `dense` computes when those that were missed are there. Which, the batches of late
decide: computing in vain costs more than a second launch, but only where something is missed.

Between `enter` and `leave` of the reader nothing that the card can find is taken away: for as long as a lookup is on
the stream, and no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from serving.engine.user_side import SidedBatch
from serving.gpu.card_batch import CardForm, PackedIds
from serving.gpu.card_features import CardFeature
from serving.gpu.card_tables import CardTables
from serving.gpu.lane import MAX_FORMS, GpuLane
from serving.gpu.lane_graphs import GraphKind
from serving.gpu.late_rows import LateList, LateLookup, LateRows
from serving.gpu.staging import COUNTS_AT, COUNTS_END, HEAD_BYTES
from serving.gpu.weight_banks import Bank
from storage import lookup_kernels
from storage.checkpoint import DenseGraph
from storage.features import FeatureBatch
from storage.hbm.device import KernelCall
from storage.hbm.replica import Replica
from storage.hbm.sight import Sight
from storage.lookup_kernels import FEATURE_WORDS
from storage.tiers.counting import COUNTED, HBM, LookupCounts

# Misses that a batch may have before the host looks all of it up: a quarter of the ids that there is room for, and not
# more than this; and what their rows may take: a quarter of the largest batch's inputs, and not less than this.
MOST_MISSES = 1 << 15
LEAST_LATE_BYTES = 4 << 20
# Entries of the lists of misses that come back with the graph that only looks up.
_MISSES_AT_ONCE = 512
_MISS_BYTES = 16
# A batch with a miss counts so much for the next choice of graphs; over one half, misses are usual.
_WEIGHT = 1 / 16
_USUAL = 0.5
_NO_BOUND = (1 << 63) - 1


@dataclass(frozen=True)
class CardScores:
    """outputs: as of GpuLane.finish. counts, by_table: as of every lookup."""

    outputs: list[np.ndarray]
    counts: LookupCounts
    by_table: np.ndarray


@dataclass(frozen=True)
class _Part:
    """Features of one kernel. number: 0 for gathered ones, 1 for pooled. header, words: offsets of the header in a
    packed batch, and of the table of features. misses: their list, on both sides; room for so many.
    """

    number: int
    features: tuple[CardFeature, ...]
    header: int
    words: int
    misses: torch.Tensor
    host_misses: torch.Tensor
    room: int


class CardLookup:
    """One thread at a time, that of its lane. Its memory is all there from the start."""

    def __init__(self, lane: GpuLane, card: CardTables, timeout_s: float | None, *, tells: bool = True) -> None:
        """timeout_s: for rows that the card does not have. tells: whether the cache learns from its batches. Raises
        DeviceError.
        """
        self._lane = lane
        self._model = lane.model
        driver = self._driver = lane.model.driver
        self._tier = card.tier
        self._packing = packing = card.packing
        self._timeout_s = timeout_s
        self._tells = tells
        self._reader = card.tier.reader()
        self._plan = card.store.plan_rows()
        driver.enter_thread()
        self._host = driver.pinned(packing.packed_bytes)
        self._host_bytes = self._host.numpy()
        self._staging = driver.device(packing.packed_bytes)
        self._assembly = lane.assembly(packing.inputs, self._staging[packing.sections_at :])
        late_bytes = max(LEAST_LATE_BYTES, lane.model.inputs.packed_bytes // 4)
        self._host_late = driver.pinned(late_bytes)
        self._late = driver.device(late_bytes)
        word_bytes = 8 * FEATURE_WORDS * packing.feature_count
        self._host_words = driver.pinned(word_bytes)
        self._words = driver.device(word_bytes)
        room = min(packing.id_room // 4, MOST_MISSES)
        self._parts: list[_Part] = []
        words = 0
        for number, features in enumerate((packing.features.gathered, packing.features.pooled)):
            if features:
                lists = driver.device(_MISS_BYTES * room), driver.pinned(_MISS_BYTES * room)
                self._parts.append(_Part(number, features, packing.headers[number], words, *lists, room))
                words += 8 * FEATURE_WORDS * len(features)
        self._resolver = LateLookup(
            packing.features, packing.tables, self._plan, self._host_late.numpy(), self._host_bytes
        )
        self._counts = lane.host_results.numpy()[COUNTS_AT:COUNTS_END].view(np.int64)
        self._generation = 0
        self._forms: dict[tuple[int, int], CardForm] = {}
        self._missing: dict[int, float] = {}

    def capture_all(self, graph: DenseGraph, mask: int) -> None:
        """Captures graphs for every bucket and bank, where the card can answer for a mask. Raises DeviceError."""

        def capture(rows: int, bank: Bank) -> bool:
            sight = self._reader.enter(mask)
            if sight is None:
                return True
            try:
                self._bind(sight.replica)
                return all(self._has_graph(kind, rows, bank, sight.replica) for kind in ("look_up", "whole"))
            finally:
                self._reader.leave()

        self._lane.for_all(graph, capture)

    def score(self, batch: FeatureBatch | SidedBatch, mask: int, bank: Bank) -> CardScores | None:
        """Scores a batch; None where the host has to look it up. Raises StoreError, DeviceError.

        bank: the weights. It is not read any more then, whatever happened.
        """
        item, user, user_of_row = batch, None, None
        if isinstance(batch, SidedBatch):
            item, user, user_of_row = batch.item, batch.user, batch.rows
        assert isinstance(item, FeatureBatch)
        form = self._form(item.batch, 0 if user is None else user.batch)
        stamp = self._lane.next_stamp()
        packed = form.put(stamp, item, user, user_of_row)
        if packed is None:
            return None
        rows = item.batch
        bucket = self._model.buckets.of(rows)
        try:
            self._driver.wait(self._lane.stream, bank.ready)
            sight = self._reader.enter(mask)
            if sight is None:
                return None
            try:
                form.put_chain(sight.chain)
                bucket, is_computed = self._look_up(sight, packed, rows, bucket, bank, stamp)
            except BaseException:
                self._lane.drain()
                raise
            finally:
                self._reader.leave()
            size = rows if bucket is None else bucket
            late = None
            copied = packed.size
            if self._counts.any():
                late = self._find_late(packed, mask, 0 if is_computed else _MISSES_AT_ONCE)
                if late.late is None:
                    self._tell(packed.lookups, packed.lookups, late.wanted)
                    return None
                self._put_late(late.late, size)
                copied += late.late.size
                is_computed = False
            if not is_computed:
                self._compute(rows, bucket, bank)
                self._lane.wait(stamp)
        except BaseException:
            self._lane.drain()
            raise
        self._model.counters.ran(rows, bucket, copied)
        return self._answer(packed, late, self._lane.answers(rows, size))

    def _answer(self, packed: PackedIds, late: LateRows | None, outputs: list[np.ndarray]) -> CardScores:
        hits = packed.lookups
        counts = LookupCounts()
        if late is None or late.by_table is None:
            by_table = np.zeros((len(hits), len(COUNTED)), np.uint64)
            self._tell(packed.lookups, np.zeros_like(hits), [])
        else:
            # An id that a user's row found and another one did not is a miss.
            hits = hits - late.missed
            counts, by_table = late.counts, late.by_table
            self._tell(packed.lookups, late.missed, late.wanted)
        by_table[:, HBM] = hits
        counts.hbm = int(hits.sum())
        self._plan.count_hbm(hits)
        return CardScores(outputs, counts, by_table)

    def _tell(self, lookups: np.ndarray, missed: np.ndarray, wanted: list[tuple[int, np.ndarray]]) -> None:
        if self._tells:
            self._tier.tell(lookups, missed, wanted)

    def _form(self, rows: int, users: int) -> CardForm:
        form = self._forms.pop((rows, users), None)
        if form is None:
            form = self._packing.form(self._host_bytes, rows, users)
            if len(self._forms) >= MAX_FORMS:
                del self._forms[next(iter(self._forms))]  # the one that was not used for longest
        self._forms[rows, users] = form
        return form

    def _look_up(
        self, sight: Sight, packed: PackedIds, rows: int, bucket: int | None, bank: Bank, stamp: int
    ) -> tuple[int | None, bool]:
        """Looks up what was packed, and computes where misses are not usual. Gives the size of its graphs, None for
        those that run without; and whether it computed. `_counts` says what was missed.
        """
        self._bind(sight.replica)
        misses_usual = self._missing.get(bucket or 0, 0.0) > _USUAL
        kind: GraphKind = "look_up" if misses_usual else "whole"
        # All that the batch may need: a capture computes with whatever lies in the buffers.
        if bucket is not None and not (
            self._has_graph(kind, bucket, bank, sight.replica)
            and self._lane.graphs.has("dense", bucket, bank, self._put_dense(bucket, bank))
        ):
            bucket = None
        self._driver.copy(self._staging[: packed.size], self._host[: packed.size], self._lane.stream)
        if bucket is not None:
            self._lane.graphs.launch(kind, bucket, None if kind == "look_up" else bank)
        else:
            self._put(kind, rows, bank, sight.replica)()
        self._lane.wait(stamp)
        before = self._missing.get(bucket or 0, 0.0)
        self._missing[bucket or 0] = before + (float(self._counts.any()) - before) * _WEIGHT
        return bucket, kind == "whole"

    def _has_graph(self, kind: GraphKind, rows: int, bank: Bank, replica: Replica) -> bool:
        needed = None if kind == "look_up" else bank
        return self._lane.graphs.has(kind, rows, needed, self._put(kind, rows, bank, replica))

    def _bind(self, replica: Replica) -> None:
        """Has the kernels look into this replica; the stream is empty."""
        if replica.generation == self._generation:
            return
        self._lane.graphs.drop(("look_up", "whole"))
        target = self._lane.target.data_ptr()
        sections = self._model.inputs.sections
        words = []
        for part in self._parts:
            for feature in part.features:
                states = 0 if feature.states is None else target + sections[feature.states].offset
                output = target + sections[feature.place].offset
                words.append(
                    [
                        *replica.words(feature.table),
                        replica.base_tables,
                        _NO_BOUND,
                        0,
                        0,
                        feature.shape,
                        output,
                        states,
                    ]
                )
        self._host_words.numpy().view(np.int64)[:] = np.array(words, np.int64).reshape(-1)
        self._driver.copy(self._words, self._host_words, self._lane.stream)
        self._lane.wait()
        self._generation = replica.generation

    def _put(self, kind: GraphKind, rows: int, bank: Bank, replica: Replica) -> Callable[[], None]:
        """Puts a lookup on the stream, or into a graph."""

        def put() -> None:
            driver, stream, lane = self._driver, self._lane.stream, self._lane
            driver.assemble(self._assembly, rows, stream)
            driver.zero(lane.results[COUNTS_AT:COUNTS_END], stream)
            for part in self._parts:
                driver.kernel(self._call(part, rows, replica), stream)
            if kind == "whole":
                lane.put_dense(rows, bank)
                return
            driver.copy(lane.host_results[:HEAD_BYTES], lane.results[:HEAD_BYTES], stream)
            for part in self._parts:
                size = _MISS_BYTES * min(part.room, _MISSES_AT_ONCE)
                driver.copy(part.host_misses[:size], part.misses[:size], stream)

        return put

    def _put_dense(self, rows: int, bank: Bank) -> Callable[[], None]:
        return lambda: self._lane.put_dense(rows, bank)

    def _call(self, part: _Part, rows: int, replica: Replica) -> KernelCall:
        """The launch for so many rows."""
        counts_at = COUNTS_AT + 8 * part.number
        features = self._words[part.words :][: 8 * FEATURE_WORDS * len(part.features)]
        header = self._staging[part.header :]
        miss_count = self._lane.results[counts_at : counts_at + 8]
        outputs = self._outputs(part, rows)
        if part.number == 0:
            return lookup_kernels.gather(
                "fp32",
                features=features,
                feature_count=len(part.features),
                header=header,
                rows=rows,
                longest=rows * max(feature.shape for feature in part.features),
                misses=part.misses,
                miss_count=miss_count,
                miss_room=part.room,
                use_every=replica.use_every,
                outputs=outputs,
                shared=replica.shared,
            )
        return lookup_kernels.pool(
            features=features,
            feature_count=len(part.features),
            header=header,
            rows=rows,
            misses=part.misses,
            miss_count=miss_count,
            miss_room=part.room,
            use_every=replica.use_every,
            outputs=outputs,
            shared=replica.shared,
        )

    def _outputs(self, part: _Part, rows: int) -> tuple[torch.Tensor, ...]:
        sections = self._model.inputs.sections
        places = [place for each in part.features for place in (each.place, each.states) if place is not None]
        return tuple(
            self._lane.target[sections[place].offset :][: sections[place].row_bytes * rows] for place in places
        )

    def _find_late(self, packed: PackedIds, mask: int, arrived: int) -> LateRows:
        """What was missed, from the host. arrived: entries of each list that are here already."""
        counts = [0, 0]
        waits = False
        for part in self._parts:
            counts[part.number] = count = min(int(self._counts[part.number]), part.room)
            if count > arrived:
                size = _MISS_BYTES * count
                self._driver.copy(part.host_misses[:size], part.misses[:size], self._lane.stream)
                waits = True
        if waits:
            self._lane.wait()
        lists = [np.empty((0, 2), np.int64), np.empty((0, 2), np.int64)]
        for part in self._parts:
            size = _MISS_BYTES * counts[part.number]
            lists[part.number] = part.host_misses.numpy()[:size].view(np.int64).reshape(-1, 2)
        if sum(counts) < int(self._counts.sum()):
            return self._resolver.offer(packed, lists[0], lists[1])
        return self._resolver.find(packed, lists[0], lists[1], self._timeout_s, mask)

    def _put_late(self, late: LateList, rows: int) -> None:
        """Puts late rows where they belong."""
        driver, stream, buffer = self._driver, self._lane.stream, self._late
        driver.copy(buffer[: late.size], self._host_late[: late.size], stream)
        for part in self._parts:
            features = self._words[part.words :][: 8 * FEATURE_WORDS * len(part.features)]
            header = self._staging[part.header :]
            outputs = self._outputs(part, rows)
            if part.number == 0 and late.scatter:
                call = lookup_kernels.scatter_late(
                    "fp32",
                    features=features,
                    header=header,
                    rows=rows,
                    entries=buffer[late.scatter_at : late.add_at],
                    count=buffer[:8],
                    room=late.scatter,
                    staging=buffer[late.rows_at : late.size],
                    outputs=outputs,
                )
                driver.kernel(call, stream)
            if part.number == 1 and late.add:
                call = lookup_kernels.add_late(
                    features=features,
                    header=header,
                    rows=rows,
                    entries=buffer[late.add_at : late.weights_at],
                    count=buffer[8:16],
                    room=late.add,
                    staging=buffer[late.rows_at : late.size],
                    weights=buffer[late.weights_at : late.rows_at] if late.has_weights else None,
                    outputs=outputs,
                )
                driver.kernel(call, stream)

    def _compute(self, rows: int, bucket: int | None, bank: Bank) -> None:
        if bucket is None:
            self._lane.put_dense(rows, bank)
        else:
            self._lane.graphs.launch("dense", bucket, bank)
