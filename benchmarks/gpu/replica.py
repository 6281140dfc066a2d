"""Makes rows on a GPU, batches of ids in its memory, and the lookups over them. N ids, D dim.

Slot s has the row (7 s + 13 d) modulo 251, less 125: whole numbers, so that sums are exact in any order, and a lookup
that returns another row is detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.device import Gpu
from benchmarks.gpu.index import BUCKET_BYTES, WORK_BYTES, Index, buckets_for, ids_of, make_index
from loadtest.popularity import ZIPF
from serving.gpu.driver import Stream
from storage.hbm import lookup_kernels
from storage.hbm.device import KernelCall
from storage.hbm.kernel_sources import ROW_TYPES
from storage.hbm.lookup_kernels import (
    FEATURE_WORDS,
    PACKED_FEATURE_WORD,
    OutputType,
    header_words,
)
from storage.hbm.sharing import PEER_CHAIN_WORDS, PEER_CHAINS_WORD, PEER_WORDS, across
from storage.specs import TableSpec

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
# Share of the GPU's free memory; the rest is for batches, outputs and libraries.
_SHARE = 0.85
# Values that are made at a time.
_BLOCK = 1 << 26
_ALIGNMENT = 128
# For rows of another GPU: parts that have them, the number of one that has none, buckets of an empty index.
_PARTS, _NO_PART, _NO_BUCKETS = 2, 9, 2


@dataclass(frozen=True)
class Shape:
    """The shape of rows: dim values of row_type, fp32 or fp16, in 16, 32, 64, ... bytes."""

    dim: int
    row_type: OutputType

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return TableSpec("t", self.dim, self.row_type).row_bytes

    def __str__(self) -> str:
        return f"d{self.dim} {self.row_type}"


def fitting_rows(wanted: int, free_bytes: int, row_bytes: int) -> int:
    """Returns the rows wanted, or as many as fit into the free memory of a GPU.

    Counted are the rows, their buckets and the working memory for making them.
    """
    each = row_bytes + BUCKET_BYTES / 3 + WORK_BYTES
    return max(1, min(wanted, int(free_bytes * _SHARE / each)))


class GpuRows:
    """An index, and a slab of rows under it. Not thread-safe: one thread uses it at a time."""

    def __init__(self, gpu: Gpu, shape: Shape, index: Index, slab: Tensor) -> None:
        self.gpu, self.shape, self.index, self.slab = gpu, shape, index, slab

    @classmethod
    def make(cls, gpu: Gpu, shape: Shape, rows: int, index: Index | None = None) -> GpuRows:
        """Makes the rows. index: one of the same size, shared with another slab. Raises DeviceOutOfMemory."""
        driver = gpu.driver
        stream = driver.new_stream("make rows")
        if index is None:
            buckets = driver.device(buckets_for(rows) * BUCKET_BYTES)
            made: list[Index] = []
            _run(gpu, stream, lambda: made.append(make_index(rows, lambda size: buckets[:size])), writes=[buckets])
            index = made[0]
        slab = driver.device((rows + 1) * shape.row_bytes)
        _run(gpu, stream, lambda: _fill(slab, shape), writes=[slab])
        return cls(gpu, shape, index, slab)

    @property
    def values(self) -> Tensor:
        """The rows (rows + 1, D), by slot."""
        return self.slab.view(DTYPES[self.shape.row_type]).view(-1, self.shape.dim)

    def words(self) -> list[int]:
        """Returns the first words of a feature (cuda/lookup.cuh); no use is marked."""
        buckets, shape = self.index.buckets, self.shape
        sizes = [self.index.rows, shape.row_bytes, ROW_TYPES[shape.row_type], shape.dim, 0, 0]
        return [buckets.data_ptr(), len(buckets), self.slab.data_ptr(), *sizes]

    def slots(self, count: int, skew: str, generator: torch.Generator) -> Tensor:
        """Draws (count,) int64 slots that are present, "uniform" or by "zipf"; hot slots lie anywhere."""
        rows, device = self.index.rows, self.slab.device
        if skew == "uniform":
            drawn = torch.randint(rows, (count,), generator=generator, device=device)
        else:
            drawn = zipf_ranks(rows, count, generator, device) * 2_654_435_761 % rows
        slots = drawn + 1
        # Replaces the few that found no place; slot 1 always has one.
        return torch.where(self.index.has_place[slots], slots, 1)


def zipf_ranks(rows: int, count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draws (count,) int64 ranks from 0 on; rank r has weight (r + 1)^-1.05."""
    weights = torch.arange(1, rows + 1, dtype=torch.float64, device=device).pow_(-ZIPF).cumsum_(0)
    drawn = torch.rand(count, dtype=torch.float64, generator=generator, device=device) * weights[-1]
    return torch.searchsorted(weights, drawn).clamp_(max=rows - 1)


def expected_rows(slots: Tensor, dim: int) -> Tensor:
    """Returns the rows of slots, (n, D) float32."""
    return ((slots[:, None] * 7 + torch.arange(dim, device=slots.device) * 13) % 251 - 125).float()


class Lookups:
    """All batches of one kind: `bags` bags of `length` ids; length None: the rows themselves, of the row's own type.

    ids: ids of a batch. slots: by batch, the input of plain kernels. across: the GPU has none of the rows itself, and
    reads them as those of another one, although they lie in its own memory. Not thread-safe: one thread uses it at a
    time.
    """

    def __init__(
        self,
        rows: GpuRows,
        batches: int,
        ids: int,
        *,
        skew: str,
        length: int | None = None,
        seed: int = 1,
        across: bool = False,
    ) -> None:
        gpu = rows.gpu
        self.rows, self.ids, self.length, self.across = rows, ids, length, across
        self.bags = 0 if length is None else ids // length
        self.slots: list[Tensor] = []
        self._gpu = gpu
        self.stream = gpu.driver.new_stream("lookups")
        size = DTYPES[rows.shape.row_type].itemsize if length is None else 4
        self.output = gpu.driver.device((self.bags or ids) * rows.shape.dim * size)
        self._features = gpu.driver.device(FEATURE_WORDS * 8)
        self._misses = gpu.driver.device(16 * ids)
        self._peers = gpu.driver.device(8 * PEER_WORDS * _PARTS)
        self._no_lines = gpu.driver.device(BUCKET_BYTES * _NO_BUCKETS)
        self.miss_count = gpu.driver.device(16)
        generator = torch.Generator(rows.slab.device).manual_seed(seed)
        self._packed: list[Tensor] = []
        for number in range(batches):
            packed = gpu.driver.device(self._chains_at + 8 * PEER_CHAIN_WORDS * _PARTS)
            slots = gpu.driver.device(8 * ids)
            self._packed.append(packed)
            self.slots.append(slots.view(torch.int64))
            self._run(lambda number=number: self._pack(number, skew, generator), writes=[packed, slots])  # type: ignore[misc]
        self._run(self._write_feature, writes=[self._features, self._peers])
        self._calls = [self._call(packed) for packed in self._packed]

    def launch(self, number: int) -> None:
        """Puts the lookup of a batch on the stream, and nothing else; misses are appended to earlier ones."""
        self._gpu.driver.kernel(self.call(number), self.stream)

    def call(self, number: int) -> KernelCall:
        """Returns the kernel call that `launch` puts on the stream."""
        return self._calls[number % len(self._calls)]

    def launch_counted(self, number: int) -> None:
        """Launches with the reset that a session does before: the count of misses begins at 0."""
        self._gpu.driver.zero(self.miss_count, self.stream)
        self.launch(number)

    def plain(self, work: Callable[[Tensor], Tensor | None]) -> Callable[[int], None]:
        """Returns the same batches for a kernel or operator that is given slots."""
        # Held so that the last result is not reallocated while it is in use.
        held: list[Tensor | None] = [None]

        def launch(number: int) -> None:
            slots = self.slots[number % len(self.slots)]

            def run() -> None:
                held[0] = work(slots)

            self._gpu.driver.compute(run, self.stream, reads=[slots, self.rows.slab], writes=[self.output])

        return launch

    def check(self) -> None:
        """Raises AssertionError unless the first batch returns the rows that were made, and all of them."""
        dim, wrong = self.rows.shape.dim, [-1, -1]
        self.launch_counted(0)

        def compare() -> None:
            bag = self.length or 1
            bags = self.ids // bag
            step = max(1, _BLOCK // (dim * bag))
            wrong[0] = 0
            for start in range(0, bags, step):
                got = self.values[start : min(bags, start + step)].float()
                slots = self.slots[0][start * bag : (start + len(got)) * bag]
                rows = expected_rows(slots, dim).view(len(got), bag, dim).sum(1)
                wrong[0] += int((rows != got).any(1).sum())
            wrong[1] = int(self.miss_count.view(torch.int64)[0])

        self._run(compare, reads=[self.output, self.miss_count, self.slots[0]])
        if wrong != [0, 0]:
            raise AssertionError(f"{wrong[0]} rows are wrong, {wrong[1]} ids were missed: figures mean nothing")

    @property
    def values(self) -> Tensor:
        """The output: (N, D) rows, or (bags, D) float32 sums."""
        dtype = DTYPES[self.rows.shape.row_type] if self.length is None else torch.float32
        return self.output.view(dtype).view(-1, self.rows.shape.dim)

    @property
    def _ids_at(self) -> int:
        return -(-8 * header_words(1) // _ALIGNMENT) * _ALIGNMENT

    @property
    def _ranges_at(self) -> int:
        return self._ids_at + 8 * self.ids

    @property
    def _chains_at(self) -> int:
        return self._ranges_at + 8 * max(1, self.bags)

    def _pack(self, number: int, skew: str, generator: torch.Generator) -> None:
        packed = self._packed[number]
        self.slots[number].copy_(self.rows.slots(self.ids, skew, generator))
        words = packed[: self._ids_at].view(torch.int64)
        words[0], words[1] = number, self.bags or 1
        feature = [self._ids_at, self.ids, self._ranges_at, 0]
        words[PACKED_FEATURE_WORD : PACKED_FEATURE_WORD + 4] = torch.tensor(feature, device=packed.device)
        packed[self._ids_at : self._ranges_at].view(torch.int64).copy_(ids_of(self.slots[number]))
        if self.length is not None:
            ends = torch.arange(0, self.ids + 1, self.length, dtype=torch.int32, device=packed.device)
            ranges = packed[self._ranges_at : self._chains_at].view(torch.int32).view(-1, 2)
            ranges.copy_(torch.stack((ends[:-1], ends[1:]), 1))
        if self.across:
            words[PEER_CHAINS_WORD] = self._chains_at

    def _write_feature(self) -> None:
        # Shape 0: a row for each id, or the sum of a bag.
        own, peers, shared = self.rows.words(), 0, 0
        if self.across:
            peer = torch.tensor([*own[:4], 0] * _PARTS, dtype=torch.int64)
            self._peers.view(torch.int64).copy_(peer)
            own[:2] = self._no_lines.data_ptr(), _NO_BUCKETS
            peers, shared = self._peers.data_ptr(), _PARTS | _NO_PART << 32
        words = [*own, 1, self.ids, peers, shared, 0, self.output.data_ptr(), 0]
        self._features.view(torch.int64).copy_(torch.tensor(words, dtype=torch.int64))

    def _call(self, packed: Tensor) -> KernelCall:
        given = {
            "row_type": self.rows.shape.row_type,
            "features": self._features,
            "feature_count": 1,
            "header": packed,
            "misses": self._misses,
            "miss_count": self.miss_count[:8],
            "miss_room": self.ids,
            "use_every": 0,
            "outputs": (self.output,),
            "shared": (self.rows.index.buckets, self.rows.slab, self._no_lines),
        }
        if self.length is not None:
            call = lookup_kernels.pool(rows=self.bags, **given)  # type: ignore[arg-type]
        else:
            kind = self.rows.shape.row_type
            call = lookup_kernels.gather(kind, rows=1, longest=self.ids, **given)  # type: ignore[arg-type]
        return across(call, self._peers) if self.across else call

    def _run(self, work: Callable[[], object], **parts: list[Tensor]) -> None:
        _run(self._gpu, self.stream, work, **parts)


def _run(
    gpu: Gpu,
    stream: Stream,
    work: Callable[[], object],
    *,
    reads: list[Tensor] | None = None,
    writes: list[Tensor] | None = None,
) -> None:
    """Runs work on the stream, and waits for it."""
    done = gpu.driver.new_event()

    def run() -> None:
        work()

    # Partly written buffers also count as read, because the rest keeps its content.
    gpu.driver.compute(run, stream, reads=[*(reads or []), *(writes or [])], writes=writes or [])
    gpu.driver.record(done, stream)
    gpu.driver.synchronize(done)


def _fill(slab: Tensor, shape: Shape) -> None:
    values = slab.view(DTYPES[shape.row_type]).view(-1, shape.dim)
    step = max(1, _BLOCK // shape.dim)
    for start in range(0, len(values), step):
        block = values[start : start + step]
        slots = torch.arange(start, start + len(block), dtype=torch.int32, device=slab.device)
        columns = torch.arange(shape.dim, dtype=torch.int32, device=slab.device)
        block.copy_((slots[:, None] * 7 + columns * 13) % 251 - 125)
