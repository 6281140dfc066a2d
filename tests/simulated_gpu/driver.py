"""The driver of one simulated GPU."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import torch

from serving.gpu.driver import Assembly, DeviceMemory, Driver, GpuInfo
from storage.errors import CaptureError, DeviceError
from storage.hbm.device import Device, KernelCall
from tests.simulated_gpu.buffers import DEVICE, PINNED, Part, without
from tests.simulated_gpu.closures import loosened
from tests.simulated_gpu.faults import Faults
from tests.simulated_gpu.gpu import Access, Gpu
from tests.simulated_gpu.graphs import Graph, Pool, Recording
from tests.simulated_gpu.kernel_memory import KERNELS
from tests.simulated_gpu.lookups import Lookups
from tests.simulated_gpu.mistakes import LifetimeError, MisuseError
from tests.simulated_gpu.ordering import Clock, Event, Stream
from tests.simulated_gpu.steps import Assemble, Compute, Copy, Kernel, Step, Zero
from tests.simulated_gpu.trace import Executed

_STAMP_BYTES = 8

# The driver that each thread entered last.
_current = threading.local()


class SimulatedDriver(Faults):
    """The driver of one simulated GPU. Thread-safe.

    counts: number of times each call was made. lookups: ids that kernels looked up. errors: every mistake, even one
    whose error was swallowed. An error that an operation raises when it runs is raised by the first `synchronize` that
    covers it.
    """

    def __init__(
        self, info: GpuInfo, *, schedule: str = "lazy", seed: int = 0, threads: str = "together", strict: bool = False
    ) -> None:
        """schedule: when operations run, see `schedule`: eager, lazy, random (by `seed`).

        threads: "together": all host threads know what one has waited for, as if they told each other under locks that
        the simulation does not see; "apart": each thread waits for itself. strict: work sees nothing of the device that
        it does not name.
        """
        super().__init__(str(info))
        self.info = info
        self.counts: Counter[str] = Counter()
        self.lookups = Lookups()
        self._lock = threading.RLock()
        self._gpu = Gpu(schedule, seed, threads)
        self._strict = strict
        self._made = Counter[str]()
        self._local = threading.local()

    # The interface for tests.

    @property
    def errors(self) -> list[MisuseError]:
        """The mistakes so far."""
        with self._lock:
            self._gpu.collect()
            return list(self._gpu.errors)

    @property
    def trace(self) -> list[Executed]:
        """The operations that ran, in that order."""
        with self._lock:
            return list(self._gpu.schedule.ran)

    @property
    def live_graphs(self) -> int:
        """The number of graphs that are still referenced."""
        with self._lock:
            self._gpu.collect()
            return self._gpu.graphs

    @property
    def live_bytes(self) -> dict[str, int]:
        """The bytes of buffers, "pinned" and "device"; also when the GPU is lost."""
        with self._lock:
            self._gpu.collect()
            return dict(self._gpu.buffers.taken)

    @property
    def waiting(self) -> int:
        """The number of operations that have not run."""
        with self._lock:
            return sum(stream.put - stream.done for stream in self._gpu.schedule.streams) if not self.lost else 0

    def finish(self) -> None:
        """Runs all pending operations, as if everything had been synchronized; raises the first mistake, if any."""
        with self._lock:
            self._gpu.finish()
            if self._gpu.errors:
                raise self._gpu.errors[0]

    # The interface for production code: `Driver`.

    def enter_thread(self) -> None:
        """See Driver."""
        with self._lock:
            _current.driver = ref(self)
            self._begin("enter_thread", in_capture=True)

    def pinned(self, size: int) -> torch.Tensor:
        """See Driver."""
        return self._allocate(PINNED, size)

    def device(self, size: int) -> torch.Tensor:
        """See Driver."""
        return self._allocate(DEVICE, size)

    def new_stream(self, name: str) -> Stream:
        """See Driver."""
        with self._lock:
            self._begin("new_stream", in_capture=True)
            streams = self._gpu.schedule.streams
            streams.append(Stream(self, len(streams), name, self._gpu.schedule.weight()))
            return streams[-1]

    def new_event(self, *, busy_wait: bool = False) -> Event:
        """See Driver."""
        with self._lock:
            self._begin("new_event", in_capture=True)
            return Event(self, self._number("event"))

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """See Driver."""
        with self._lock:
            recording = self._begin("copy", stream, in_capture=True)
            if target.nbytes != source.nbytes:
                raise self._gpu.mistake(MisuseError(f"a copy of {source.nbytes} bytes to {target.nbytes}"))
            if target.nbytes == 0:
                return
            to, of = self._part("the target", target), self._part("the source", source)
            if to.buffer.kind == of.buffer.kind:
                raise self._gpu.mistake(MisuseError(f"a copy from {of} to {to}: it is between host and device"))
            self._put(Copy(to, of), stream, recording)

    def assemble(self, assembly: Assembly, rows: int, stream: Stream) -> None:
        """See Driver."""
        with self._lock:
            recording = self._begin("assemble", stream, in_capture=True)
            table, stamp = assembly.table, assembly.stamp
            if table.dtype != torch.int64 or table.dim() != 2 or table.shape[1] != 4 or rows < 0:
                raise self._gpu.mistake(
                    MisuseError(f"{rows} rows by a table of {tuple(table.shape)} {table.dtype}, not (inputs, 4) int64")
                )
            if stamp.nbytes != _STAMP_BYTES:
                raise self._gpu.mistake(MisuseError(f"a stamp of {stamp.nbytes} bytes, not {_STAMP_BYTES}"))
            step = Assemble(
                self._part("staging", assembly.staging),
                self._part("the table", table, DEVICE) if table.numel() else None,
                self._part("the target", assembly.target, DEVICE),
                self._part("the stamp", stamp, DEVICE),
                rows,
                assembly.widest,
            )
            apart = [*without(step.reads, step.writes), *without(step.writes[:1], step.writes[1:])]
            if apart != [*step.reads, step.writes[0]]:
                raise self._gpu.mistake(MisuseError("staging, table, target and stamp overlap"))
            self._put(step, stream, recording)

    def compute(
        self,
        work: Callable[[], object],
        stream: Stream,
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        """See Driver."""
        with self._lock:
            recording = self._begin("compute", stream, in_capture=True)
            self._check_run()
            read = [self._part("what work reads", part, DEVICE, whole=False) for part in reads if part.numel()]
            written = [self._part("what work writes", part, DEVICE, whole=False) for part in writes if part.numel()]
            named: Any = work
            while isinstance(named, partial):
                named = named.func
            name = getattr(named, "__qualname__", type(named).__name__).rpartition(".")[2]
            held: list[Part] = []
            work = loosened(work, self._gpu.buffers.find, held)
            unnamed = without(held, [*read, *written])
            if unnamed:
                raise self._gpu.mistake(
                    MisuseError(f"compute {name!r} holds {unnamed[0]}, which is not among its reads and writes")
                )
            everything = self._gpu.buffers if self._strict else None
            self._put(Compute(work, name, read, written, everything), stream, recording)

    def zero(self, buffer: torch.Tensor, stream: Stream) -> None:
        """See Driver."""
        with self._lock:
            recording = self._begin("zero", stream, in_capture=True)
            if buffer.nbytes == 0:
                return
            self._put(Zero(self._part("what is filled", buffer, DEVICE)), stream, recording)

    def load_kernels(self) -> None:
        """See Driver."""
        with self._lock:
            self._begin("load_kernels")
            if self.refuse_kernels:
                raise DeviceError(f"{self.info}: no kernel of lookups compiles: the simulation was told so")

    def reach(self, other: Device) -> None:
        """See Driver; the other GPU must be a simulated one."""
        assert isinstance(other, SimulatedDriver)
        with self._lock:
            self._begin("reach")
            if self.refuse_peers:
                raise DeviceError(f"{self.info} cannot read the memory of {other.info}: the simulation was told so")
            if other is self:
                raise self._gpu.mistake(MisuseError(f"{self.info} is to reach itself"))
            self._gpu.peers[other.info.index] = other._gpu.buffers

    def kernel(self, call: KernelCall, stream: Stream) -> None:
        """See Driver; every address must be that of a buffer which the call names."""
        with self._lock:
            recording = self._begin("kernel", stream, in_capture=True)
            self._check_run()
            if call.name not in KERNELS:
                raise self._gpu.mistake(MisuseError(f"no kernel is called {call.name!r}"))
            reads = [self._part("what a kernel reads", part, DEVICE) for part in call.reads if part.numel()]
            writes = [self._part("what a kernel writes", part, DEVICE) for part in call.writes if part.numel()]
            shared = [self._part("what a kernel shares", part, DEVICE) for part in call.shared if part.numel()]
            given = [
                self._part(f"an argument of {call.name}", value, DEVICE)
                for value in call.values
                if isinstance(value, torch.Tensor) and value.numel()
            ]
            unnamed = without(given, [*reads, *writes, *shared])
            if unnamed:
                raise self._gpu.mistake(
                    MisuseError(f"kernel {call.name!r} is given {unnamed[0]}, and does not name it")
                )
            values = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in call.values]
            everything = [self._gpu.buffers, *self._gpu.peers.values()]
            step = Kernel(call.name, call.blocks, values, reads, writes, shared, everything, self.lookups)
            self._put(step, stream, recording)

    def record(self, event: Event, stream: Stream) -> None:
        """See Driver."""
        with self._lock:
            self._begin("record", stream)
            self._check_own(event, Event)
            stream.follow_host(self._gpu.host())
            event.clock = stream.clock()
            event.level = stream.level

    def wait(self, stream: Stream, event: Event) -> None:
        """See Driver; an event that was never recorded is a mistake."""
        with self._lock:
            self._begin("wait", stream)
            stream.follow(self._clock_of(event), event.level)

    def synchronize(self, event: Event) -> None:
        """See Driver; an event that was never recorded is a mistake. Runs the needed operations on this thread."""
        with self._lock:
            self._begin("synchronize")
            self._gpu.synchronize(event, self._clock_of(event))

    def new_pool(self) -> Pool:
        """See Driver."""
        with self._lock:
            self._begin("new_pool", in_capture=True)
            return Pool(self, self._number("pool"))

    def capture(self, work: Callable[[], object], pool: Pool, stream: Stream, *, name: str) -> Graph:
        """See Driver; only the calling thread captures, other threads continue."""
        with self._lock:
            self._begin("capture", stream)
            self._check_own(pool, Pool)
            if self.refuse_capture:
                raise CaptureError(f"{name} does not go into a graph: the simulation was told so")
            recording = self._local.recording = Recording(name, stream)
            stream.is_capturing = True
        try:
            work()
        finally:
            with self._lock:
                self._local.recording = None
                stream.is_capturing = False
        if recording.broken is not None:
            raise CaptureError(f"{name} does not go into a graph: {recording.broken}") from recording.broken
        with self._lock:
            graph = Graph(self, recording, pool)
            self._gpu.keep(graph)
            return graph

    def launch(self, graph: Graph, stream: Stream) -> None:
        """See Driver."""
        with self._lock:
            self._begin("launch", stream)
            self._check_own(graph, Graph)
            self._check_run()
            gone = graph.gone()
            if gone is not None:
                raise self._gpu.mistake(LifetimeError(f"launch of {graph}: it uses {gone}, which has been dropped"))
            pools: tuple[Access, ...] = (
                (graph.pool.history, 0, 1, True, graph.pool),
                (graph.launches, 0, 1, False, graph),
            )
            self._gpu.enqueue(stream, "launch", graph.name, graph.steps, graph.reads, graph.writes, pools)

    def memory(self) -> DeviceMemory:
        """See Driver."""
        with self._lock:
            self._begin("memory", in_capture=True)
            taken, total = self._gpu.buffers.taken, self.info.total_bytes
            return DeviceMemory(total, total - taken[DEVICE], taken[DEVICE], taken[PINNED])

    # The caller holds the lock from here on.

    def _begin(self, call: str, stream: Stream | None = None, *, in_capture: bool = False) -> Recording | None:
        """Begins every call. in_capture: whether it is allowed during a capture; returns the capture of this thread."""
        if self._gpu.schedule.running:
            raise self._gpu.mistake(MisuseError(f"work that runs on the device called {call}"))
        self.counts[call] += 1
        if self._check_lost():
            self._gpu.lose()
        self._raise_lost()
        self._gpu.collect()
        if self._gpu.schedule.is_random:
            self._gpu.schedule.wander()
        entered = getattr(_current, "driver", None)
        if entered is None or entered() is not self:
            raise self._gpu.mistake(MisuseError(f"{call} on {self.info} by a thread that did not enter it last"))
        recording: Recording | None = getattr(self._local, "recording", None)
        if recording is not None and (not in_capture or (stream is not None and stream is not recording.stream)):
            recording.broken = CaptureError(f"{call} ({stream or 'no stream'}) while {recording.name} is captured")
            raise recording.broken
        if stream is not None:
            self._check_own(stream, Stream)
            if stream.is_capturing and recording is None:
                raise self._gpu.mistake(
                    MisuseError(f"{call} on {stream} while another thread captures what is put on it")
                )
        return recording

    def _check_own(self, handle: Any, kind: type[Stream | Event | Graph | Pool]) -> None:
        if not isinstance(handle, kind) or handle.driver is not self:
            raise self._gpu.mistake(MisuseError(f"{handle!r} is no {kind.__name__.lower()} of {self.info}"))

    def _clock_of(self, event: Event) -> Clock:
        self._check_own(event, Event)
        if event.clock is None:
            raise self._gpu.mistake(MisuseError(f"{event!r} was never recorded: there is nothing to wait for"))
        return event.clock

    def _part(self, what: str, tensor: torch.Tensor, kind: str = "", *, whole: bool = True) -> Part:
        """Finds a tensor's part of a buffer.

        whole: the tensor must have no gaps. kind: the kind that the buffer must have.
        """
        part = self._gpu.buffers.find(tensor)
        if part is None or (kind and part.buffer.kind != kind) or (whole and not tensor.is_contiguous()):
            found = "no memory of a buffer" if part is None else f"{part}, contiguous: {tensor.is_contiguous()}"
            raise self._gpu.mistake(
                MisuseError(
                    f"{what} ({tuple(tensor.shape)} {tensor.dtype}) is {found}; expected: {kind or 'any'} buffer"
                )
            )
        return part

    def _allocate(self, kind: str, size: int) -> torch.Tensor:
        with self._lock:
            self._begin(kind)
            if self._no_allocation:
                raise self._gpu.mistake(
                    MisuseError(f"{size} {kind} bytes were asked for where nothing may be allocated")
                )
            free = self.info.total_bytes - self._gpu.buffers.taken[DEVICE] if kind == DEVICE else size
            self._check_memory(size, free)
            tensor, gone = self._gpu.buffers.allocate(kind, size)
            self._gpu.check_gone(gone)
            return tensor

    def _put(self, step: Step, stream: Stream, recording: Recording | None) -> None:
        if recording is None:
            self._gpu.enqueue(stream, step.kind, step.name, (step,), step.reads, step.writes)
        else:
            recording.steps.append(step)

    def _number(self, kind: str) -> int:
        self._made[kind] += 1
        return self._made[kind]


def _conforms(driver: SimulatedDriver) -> Driver:
    return driver
