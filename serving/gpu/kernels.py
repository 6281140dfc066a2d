"""Puts the kernels of a session's lookups on its stream: over a packed batch, lists of misses, missed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from serving.gpu.batch import GpuPacking
from serving.gpu.context import ExecutionContext
from serving.gpu.features import GpuFeature
from serving.gpu.missed_rows import MissedList
from serving.gpu.sharing import SessionSharing
from serving.gpu.staging import COUNTS_AT, COUNTS_END, HEAD_BYTES
from storage.hbm import lookup_kernels
from storage.hbm.device import KernelCall
from storage.hbm.lookup_kernels import FEATURE_WORDS
from storage.hbm.replica import Replica
from storage.hbm.visibility import VisibleSnapshot

# Entries of the lists of misses that come back with the graph that only looks up.
MISSES_AT_ONCE = 512
_MISS_BYTES = 16
_NO_BOUND = (1 << 63) - 1


@dataclass(frozen=True)
class _Part:
    """Features of one kernel."""

    #: 0 for gathered features, 1 for pooled ones.
    number: int
    features: tuple[GpuFeature, ...]
    #: Offset of the part's header in a packed batch.
    header: int
    #: The table of the features, in device memory.
    words: torch.Tensor
    #: The list of misses in device memory, of at most `room`.
    misses: torch.Tensor
    #: The list of misses in host memory.
    host_misses: torch.Tensor
    room: int


class GpuKernels:
    """The lookup kernels of one session. Not thread-safe: the session's thread uses it."""

    def __init__(
        self,
        context: ExecutionContext,
        packing: GpuPacking,
        most_misses: int,
        missed_bytes: int,
        sharing: SessionSharing | None = None,
    ) -> None:
        """Allocates buffers. Raises DeviceError.

        most_misses: number of misses of each kernel. missed_bytes: space for missed rows and their lists. sharing: see
        `serving.gpu.sharing`.
        """
        self._context = context
        self._sharing = sharing
        driver = self._driver = context.model.driver
        self._host = driver.pinned(packing.packed_bytes)
        #: Buffer that a batch is packed into.
        self.host = self._host.numpy()
        self._staging = driver.device(packing.packed_bytes)
        self._assembly = context.assembly(packing.inputs, self._staging[packing.sections_at :])
        self._host_missed = driver.pinned(missed_bytes)
        #: Buffer for missed rows.
        self.host_missed = self._host_missed.numpy()
        self._late = driver.device(missed_bytes)
        word_bytes = 8 * FEATURE_WORDS * packing.feature_count
        self._host_words = driver.pinned(word_bytes)
        self._words = driver.device(word_bytes)
        #: (2,) int64, how many ids of gathered and of pooled features the last batch missed.
        self.counts = context.host_results.numpy()[COUNTS_AT:COUNTS_END].view(np.int64)
        self._generation = 0
        # The replica that graphs look into; 0 where there are none yet.
        self._captured_for = 0
        self._parts: list[_Part] = []
        at = 0
        for number, features in enumerate((packing.features.gathered, packing.features.pooled)):
            size = 8 * FEATURE_WORDS * len(features)
            if features:
                lists = driver.device(_MISS_BYTES * most_misses), driver.pinned(_MISS_BYTES * most_misses)
                words = self._words[at : at + size]
                self._parts.append(_Part(number, features, packing.headers[number], words, *lists, most_misses))
            at += size

    def forget(self, replica: Replica) -> None:
        """Drops all graphs of the session if they were captured for another replica; call it between batches.

        The driver frees no graph of a stream before the last one.
        """
        if replica.generation != self._captured_for:
            if self._captured_for:
                self._context.graphs.clear()
            self._captured_for = replica.generation

    def bind(self, visible: VisibleSnapshot) -> None:
        """Makes the kernels look into this replica. The stream is empty; the execution context is inside."""
        sharing, replica = self._sharing, visible.replica
        changes = sharing is not None and sharing.bind(visible, self._context.stream)
        if replica.generation == self._generation and not changes:
            return
        if replica.generation != self._generation:
            # They keep the addresses of another one.
            self._context.graphs.drop(("look_up", "whole"))
        self._generation = 0  # until all of it is there
        target = self._context.target.data_ptr()
        sections = self._context.model.inputs.sections
        words: list[int] = []
        for number, feature in enumerate(feature for part in self._parts for feature in part.features):
            output = target + sections[feature.place].offset
            states = 0 if feature.states is None else target + sections[feature.states].offset
            elsewhere = (0, 0) if sharing is None else sharing.words(number)
            words += [*replica.words(feature.table), replica.base_tables, _NO_BOUND, *elsewhere]
            words += [feature.shape, output, states]
        self._host_words.numpy().view(np.int64)[:] = words
        self._driver.copy(self._words, self._host_words, self._context.stream)
        self._context.wait()
        self._generation = replica.generation

    def send(self, size: int) -> None:
        """Copies this many bytes of the packed batch to the device."""
        self._driver.copy(self._staging[:size], self._host[:size], self._context.stream)

    def put(self, rows: int, replica: Replica) -> None:
        """Unpacks the other inputs, and looks up; for this many rows, those past the batch being zeros."""
        driver, context = self._driver, self._context
        driver.assemble(self._assembly, rows, context.stream)
        driver.zero(context.results[COUNTS_AT:COUNTS_END], context.stream)
        for part in self._parts:
            for call in self._calls(part, rows, replica):
                driver.kernel(call if self._sharing is None else self._sharing.launched(call), context.stream)

    def put_misses(self) -> None:
        """Copies the number of misses, and the first of them, to the host."""
        driver, context = self._driver, self._context
        driver.copy(context.host_results[:HEAD_BYTES], context.results[:HEAD_BYTES], context.stream)
        for part in self._parts:
            size = _MISS_BYTES * min(part.room, MISSES_AT_ONCE)
            driver.copy(part.host_misses[:size], part.misses[:size], context.stream)

    def misses(self, arrived: int) -> tuple[list[np.ndarray], bool]:
        """Returns the lists (m, 2) int64 of gathered and of pooled features, and whether they had room for all misses.

        arrived: entries of each that are already on the host. The lists are valid until the next batch.
        """
        counts = [0, 0]
        waits = False
        for part in self._parts:
            counts[part.number] = count = min(int(self.counts[part.number]), part.room)
            if count > arrived:
                size = _MISS_BYTES * count
                self._driver.copy(part.host_misses[:size], part.misses[:size], self._context.stream)
                waits = True
        if waits:
            self._context.wait()
        lists = [np.empty((0, 2), np.int64), np.empty((0, 2), np.int64)]
        for part in self._parts:
            size = _MISS_BYTES * counts[part.number]
            lists[part.number] = part.host_misses.numpy()[:size].view(np.int64).reshape(-1, 2)
        return lists, sum(counts) == int(self.counts.sum())

    def put_late(self, late: MissedList, rows: int) -> None:
        """Puts missed rows where they belong, in inputs of this many rows."""
        driver, stream, buffer = self._driver, self._context.stream, self._late
        driver.copy(buffer[: late.size], self._host_missed[: late.size], stream)
        staging = buffer[late.rows_at : late.size]
        for part in self._parts:
            header, outputs = self._staging[part.header :], self._outputs(part.features, rows)
            if part.number == 0 and late.scatter:
                call = lookup_kernels.scatter_missed(
                    "fp32",
                    features=part.words,
                    header=header,
                    rows=rows,
                    entries=buffer[late.scatter_at : late.add_at],
                    count=buffer[:8],
                    room=late.scatter,
                    staging=staging,
                    outputs=outputs,
                )
                driver.kernel(call, stream)
            if part.number == 1 and late.add:
                call = lookup_kernels.add_missed(
                    features=part.words,
                    header=header,
                    rows=rows,
                    entries=buffer[late.add_at : late.weights_at],
                    count=buffer[8:16],
                    room=late.add,
                    staging=staging,
                    weights=buffer[late.weights_at : late.rows_at] if late.has_weights else None,
                    outputs=outputs,
                )
                driver.kernel(call, stream)

    def _calls(self, part: _Part, rows: int, replica: Replica) -> list[KernelCall]:
        """Returns a launch for each row type of the part's tables."""
        by_type: dict[str, list[GpuFeature]] = {}
        for feature in part.features:
            by_type.setdefault(replica.tables[feature.table].row_type, []).append(feature)
        return [
            self._call(part, rows, replica, row_type, self._outputs(features, rows))
            for row_type, features in by_type.items()
        ]

    def _call(
        self, part: _Part, rows: int, replica: Replica, row_type: str, outputs: tuple[torch.Tensor, ...]
    ) -> KernelCall:
        count = self._context.results[COUNTS_AT + 8 * part.number :][:8]
        header = self._staging[part.header :]
        if part.number == 0:
            return lookup_kernels.gather(
                "fp32",
                row_type=row_type,
                features=part.words,
                feature_count=len(part.features),
                header=header,
                rows=rows,
                longest=rows * max(feature.shape for feature in part.features),
                misses=part.misses,
                miss_count=count,
                miss_room=part.room,
                use_every=replica.use_every,
                outputs=outputs,
                shared=replica.shared,
            )
        return lookup_kernels.pool(
            row_type=row_type,
            features=part.words,
            feature_count=len(part.features),
            header=header,
            rows=rows,
            misses=part.misses,
            miss_count=count,
            miss_room=part.room,
            use_every=replica.use_every,
            outputs=outputs,
            shared=replica.shared,
        )

    def _outputs(self, features: Sequence[GpuFeature], rows: int) -> tuple[torch.Tensor, ...]:
        """Returns the tensors that a kernel writes for these features, with this many rows."""
        sections = self._context.model.inputs.sections
        places = [place for each in features for place in (each.place, each.states) if place is not None]
        return tuple(
            self._context.target[sections[place].offset :][: sections[place].row_bytes * rows] for place in places
        )
