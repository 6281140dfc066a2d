"""Implements what operations do when they run: copies, kernels and work of torch.

Steps refer to buffers without keeping them alive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from tests.simulated_gpu import kernel_memory, kernels
from tests.simulated_gpu.assembly import Memory, assemble
from tests.simulated_gpu.buffers import DEVICE, Buffer, Buffers, Part, without
from tests.simulated_gpu.host_view import POISON, Flight
from tests.simulated_gpu.lookups import Lookups, counted
from tests.simulated_gpu.mistakes import RaceError


class Step(ABC):
    """One step of an operation."""

    #: The driver's call.
    kind = ""
    name = ""  # for messages and traces
    #: With `writes`, everything that it may touch.
    reads: Sequence[Part]
    writes: Sequence[Part]
    #: Parts that it may touch at the same time as others, by a protocol of their own.
    shared: Sequence[Part] = ()
    #: The part in the host's memory, if any.
    pinned: Part | None = None

    @abstractmethod
    def run(self, flight: Flight | None) -> None:
        """Runs the step. flight: the step's pinned bytes under way."""


class Copy(Step):
    """Copies between the host and the device."""

    kind = "copy"

    def __init__(self, target: Part, source: Part) -> None:
        self.reads = (source,)
        self.writes = (target,)
        self.pinned = target if source.buffer.kind == DEVICE else source
        self.name = f"{source} to {target}"

    def run(self, flight: Flight | None) -> None:
        """Moves the bytes; those for the host wait in the flight."""
        assert flight is not None
        target, source = self.writes[0].bytes(), self.reads[0].bytes()
        if self.pinned is self.writes[0]:
            flight.content = source.copy()
        else:
            target[:] = flight.sent()


class Assemble(Step):
    """Unpacks inputs. The whole target counts as written: the table that lists the exact bytes is on the device."""

    kind = "assemble"

    def __init__(self, staging: Part, table: Part | None, target: Part, stamp: Part, rows: int, widest: int) -> None:
        """table: None for no inputs."""
        self.reads = (staging,) if table is None else (staging, table)
        self.writes = (target, stamp)
        self.pinned = None if staging.buffer.kind == DEVICE else staging
        self._rows = rows
        self._widest = widest
        self.name = f"{rows} rows to {target}"

    def run(self, flight: Flight | None) -> None:
        """Unpacks the batch. Raises AssemblyError."""
        staging, target, stamp = self.reads[0], *self.writes
        table = np.empty((0, 4), np.int64)
        if len(self.reads) > 1:
            table = self.reads[1].bytes().view(np.int64).reshape(-1, 4)
        packed = staging.bytes() if flight is None else flight.sent()
        assemble(
            Memory(str(staging), packed, staging.buffer.start + staging.begin),
            table,
            Memory(str(target), target.bytes(), target.buffer.start + target.begin),
            stamp.bytes(),
            self._rows,
            self._widest,
        )


class Zero(Step):
    """Fills a part with zeros."""

    kind = "zero"

    def __init__(self, target: Part) -> None:
        self.reads = ()
        self.writes = (target,)
        self.name = str(target)

    def run(self, flight: Flight | None) -> None:
        """Writes the zeros. Raises LifetimeError."""
        self.writes[0].bytes()[:] = 0


class Kernel(Step):
    """A kernel of cuda/, compiled for the processor. values: its arguments, including addresses."""

    kind = "kernel"

    def __init__(
        self,
        name: str,
        blocks: tuple[int, int],
        values: Sequence[int],
        reads: Sequence[Part],
        writes: Sequence[Part],
        shared: Sequence[Part],
        everything: Sequence[Buffers],
        lookups: Lookups,
    ) -> None:
        """Prepares the kernel.

        everything: the buffers that addresses may point to: those of its GPU, then of those whose memory that one
        reads. lookups: counts the ids that it looks up.
        """
        self._lookups = lookups
        self.name = name
        self.reads = reads
        self.writes = writes
        self.shared = shared
        self._blocks = blocks
        self._values = values
        self._everything = everything
        self._only_read = without(reads, writes)
        self._only_written = without(writes, reads)

    def run(self, flight: Flight | None) -> None:
        """Runs the kernel; fills the parts that it only writes with POISON before. Raises MisuseError."""
        before = [_digest(part.bytes()) for part in self._only_read]
        reach = kernel_memory.Reach(self.name, [*self.reads, *self.writes, *self.shared], *self._everything)
        kernel_memory.look(reach, self._values, self._blocks)
        for part in self._only_written:
            part.bytes()[:] = POISON
        run = partial(kernels.run, self.name, self._values, self._blocks)
        counted(self._lookups, self.name, self._values, self._blocks, run)
        for part, digest in zip(self._only_read, before, strict=True):
            if _digest(part.bytes()) != digest:
                raise RaceError(f"kernel {self.name!r} wrote to {part}, which is not among its writes")


class Compute(Step):
    """Operators of torch, in the mode in which they were put on the stream."""

    kind = "compute"

    def __init__(
        self,
        work: Callable[[], object],
        name: str,
        reads: Sequence[Part],
        writes: Sequence[Part],
        everything: Buffers | None,
    ) -> None:
        """everything: the buffers in which undeclared reads and writes of the work are detected; None: no check."""
        self.reads = reads
        self.writes = writes
        self.name = name
        self._work = work
        self._only_read = without(reads, writes)
        self._only_written = without(writes, reads)
        self._everything = everything
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()

    def run(self, flight: Flight | None) -> None:
        """Runs the work; fills the parts that it only writes with POISON before, so that missing writes show.

        Raises RaceError.
        """
        before = [_digest(part.bytes()) for part in self._only_read]
        for part in self._only_written:
            part.bytes()[:] = POISON
        hidden = [] if self._everything is None else self._hide(self._everything)
        try:
            with torch.inference_mode(self._inference), torch.set_grad_enabled(self._grad):
                self._work()
        finally:
            changed = [part for part, _ in hidden if (part.bytes() != POISON).any()]
            for part, content in hidden:
                part.bytes()[:] = content
        for part, digest in zip(self._only_read, before, strict=True):
            if _digest(part.bytes()) != digest:
                changed.append(part)
        if changed:
            raise RaceError(f"compute {self.name!r} wrote to {changed[0]}, which is not among its writes")

    def _hide(self, everything: Buffers) -> list[tuple[Part, np.ndarray]]:
        """Poisons what the work does not name, but not the host's memory, which the host may be writing now."""
        named = [*self.reads, *self.writes]
        whole = [Part(buffer, 0, buffer.size) for buffer in everything.living() if buffer.kind == DEVICE]
        hidden = [(part, part.bytes().copy()) for part in without(whole, named)]
        for part, _ in hidden:
            part.bytes()[:] = POISON
        return hidden


def union(steps: Sequence[Step]) -> tuple[list[Part], list[Part]]:
    """Returns the reads and writes of steps in order, as of one operation."""
    reads = _merged([part for step in steps for part in step.reads])
    writes = _merged([part for step in steps for part in step.writes])
    return without(reads, writes), writes


def _merged(parts: list[Part]) -> list[Part]:
    by_buffer: dict[Buffer, list[Part]] = {}
    for part in parts:
        by_buffer.setdefault(part.buffer, []).append(part)
    merged: list[Part] = []
    for buffer, pieces in by_buffer.items():
        pieces.sort(key=lambda part: part.begin)
        begin, end = pieces[0].begin, pieces[0].end
        for piece in pieces[1:]:
            if piece.begin > end:
                merged.append(Part(buffer, begin, end))
                begin = piece.begin
            end = max(end, piece.end)
        merged.append(Part(buffer, begin, end))
    return merged


def _digest(data: np.ndarray) -> tuple[int, bytes]:
    """Returns a value that changes when one word does. It is fast, because weights are read for every batch."""
    words = data.size // 8
    return int(data[: words * 8].view(np.uint64).sum()), data[words * 8 :].tobytes()
