"""Wraps the GPU under measurement in a driver that counts and times, and measures the GPU's limits."""

from __future__ import annotations

import importlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from serving.gpu.driver import Assembly, DeviceMemory, Driver, Event, Gpus, Graph, Pool, Stream
from serving.gpu.matmul_precision import matmul_precision
from storage.errors import ConfigError
from storage.hbm.device import Device, KernelCall

PRECISIONS = ("fp32", "tf32", "bf16")
# A limit is the best that a GPU reached in some tries.
_TRIES, _CALLS = 5, 5


class Clock(Protocol):
    """Measures how long work on a stream took."""

    def mark(self, stream: Stream) -> Any:
        """Returns a mark of the moment when all work put on the stream so far is done."""

    def us(self, began: Any, ended: Any) -> float:
        """Returns the microseconds between two marks that have both been reached."""


class GpuClock:
    """Measures by the GPU's own clock, with CUDA events."""

    def mark(self, stream: Stream) -> Any:
        """See Clock."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream.torch)
        return event

    def us(self, began: Any, ended: Any) -> float:
        """See Clock."""
        return float(began.elapsed_time(ended)) * 1000


class HostClock:
    """Returns the times of the calls in a simulation, which mean nothing."""

    def mark(self, stream: Stream) -> Any:
        """See Clock."""
        return time.perf_counter()

    def us(self, began: Any, ended: Any) -> float:
        """See Clock."""
        return float(ended - began) * 1e6


class WatchedDriver:
    """A driver that counts, can time copies and launches, and can leave out copies to the GPU. Thread-safe.

    counts: of captures. leaves_out_copies: nothing is copied to the GPU; its old content stays. is_timing: whether
    copies and launches are timed, under the names that `read_times` returns.
    """

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self.info = driver.info
        self.counts: Counter[str] = Counter()
        self.leaves_out_copies = False
        self.is_timing = False
        self._driver = driver
        self._clock = clock
        self._lock = threading.Lock()
        self._pinned: set[int] = set()
        self._marks: list[tuple[str, Any, Any]] = []

    def read_times(self) -> dict[str, list[float]]:
        """Returns the microseconds of each "copy in", "graph" and "copy out" since the last call.

        All of that work must be done.
        """
        marks, self._marks = self._marks, []
        found: dict[str, list[float]] = {}
        for name, began, ended in marks:
            found.setdefault(name, []).append(self._clock.us(began, ended))
        return found

    @property
    def inner(self) -> Driver:
        """The wrapped driver."""
        return self._driver

    @property
    def clock(self) -> Clock:
        """The clock for times of streams."""
        return self._clock

    def enter_thread(self) -> None:
        """See Driver."""
        self._driver.enter_thread()

    def pinned(self, size: int) -> torch.Tensor:
        """See Driver."""
        buffer = self._driver.pinned(size)
        with self._lock:
            self._pinned.add(buffer.untyped_storage().data_ptr())
        return buffer

    def device(self, size: int) -> torch.Tensor:
        """See Driver."""
        buffer = self._driver.device(size)
        with self._lock:  # in a simulation, the place of a pinned buffer that is gone
            self._pinned.discard(buffer.untyped_storage().data_ptr())
        return buffer

    def new_stream(self, name: str) -> Stream:
        """See Driver."""
        return self._driver.new_stream(name)

    def new_event(self, *, busy_wait: bool = False) -> Event:
        """See Driver."""
        return self._driver.new_event(busy_wait=busy_wait)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """See Driver."""
        goes_in = source.untyped_storage().data_ptr() in self._pinned
        if goes_in and self.leaves_out_copies:
            return
        with self._timed("copy in" if goes_in else "copy out", stream):
            self._driver.copy(target, source, stream)

    def assemble(self, assembly: Assembly, rows: int, stream: Stream) -> None:
        """See Driver."""
        self._driver.assemble(assembly, rows, stream)

    def compute(
        self,
        work: Callable[[], object],
        stream: Stream,
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        """See Driver."""
        self._driver.compute(work, stream, reads=reads, writes=writes)

    def zero(self, buffer: torch.Tensor, stream: Stream) -> None:
        """See Device."""
        self._driver.zero(buffer, stream)

    def load_kernels(self) -> None:
        """See Driver."""
        self._driver.load_kernels()

    def reach(self, other: Device) -> None:
        """See Device."""
        self._driver.reach(other.inner if isinstance(other, WatchedDriver) else other)

    def kernel(self, call: KernelCall, stream: Stream) -> None:
        """See Device."""
        self._driver.kernel(call, stream)

    def record(self, event: Event, stream: Stream) -> None:
        """See Driver."""
        self._driver.record(event, stream)

    def wait(self, stream: Stream, event: Event) -> None:
        """See Driver."""
        self._driver.wait(stream, event)

    def synchronize(self, event: Event) -> None:
        """See Driver."""
        self._driver.synchronize(event)

    def new_pool(self) -> Pool:
        """See Driver."""
        return self._driver.new_pool()

    def capture(self, work: Callable[[], object], pool: Pool, stream: Stream, *, name: str) -> Graph:
        """See Driver."""
        with self._lock:
            self.counts["capture"] += 1
        was_timing, self.is_timing = self.is_timing, False  # events for timing do not go into a graph
        try:
            return self._driver.capture(work, pool, stream, name=name)
        finally:
            self.is_timing = was_timing

    def launch(self, graph: Graph, stream: Stream) -> None:
        """See Driver."""
        with self._timed("graph", stream):
            self._driver.launch(graph, stream)

    def memory(self) -> DeviceMemory:
        """See Driver."""
        return self._driver.memory()

    @contextmanager
    def _timed(self, name: str, stream: Stream) -> Iterator[None]:
        if not self.is_timing:
            yield
            return
        began = self._clock.mark(stream)
        yield
        self._marks.append((name, began, self._clock.mark(stream)))


class WatchedGpus:
    """The GPUs of this process, each with a watched driver."""

    def __init__(self, gpus: Gpus, clock: Clock) -> None:
        self.infos = gpus.infos
        self.why_none = gpus.why_none
        self._gpus = gpus
        self._clock = clock
        self._drivers: dict[int, WatchedDriver] = {}

    def driver(self, index: int) -> WatchedDriver:
        """See Gpus."""
        if index not in self._drivers:
            self._drivers[index] = WatchedDriver(self._gpus.driver(index), self._clock)
        return self._drivers[index]


@dataclass
class Gpu:
    """The first GPU. device: the torch device of its memory."""

    gpus: WatchedGpus
    driver: WatchedDriver
    device: torch.device
    is_simulated: bool

    def __str__(self) -> str:
        memory = self.driver.memory()
        capability = ".".join(map(str, self.driver.info.capability))
        name = "a simulated GPU" if self.is_simulated else self.driver.info.name
        return f"{name}, sm {capability}, {memory.total / 2**30:.0f} GiB ({memory.free / 2**30:.0f} free)"


def find_gpu(*, simulated: bool) -> Gpu:
    """Returns the GPU to measure. Raises ConfigError with the reason when there is none."""
    if simulated:
        # Only works in a checkout, and no type checker follows it: tests are not part of the packages.
        made: Gpus = importlib.import_module("tests.simulated_gpu").SimulatedGpus()
        return _gpu(WatchedGpus(made, HostClock()), torch.device("cpu"), True)
    from serving.gpu.gpus import find_gpus

    gpus = find_gpus()
    if gpus.why_none:
        raise ConfigError(
            f"no GPU can be measured: {gpus.why_none}. --simulated shows what would be measured, at toy sizes"
        )
    return _gpu(WatchedGpus(gpus, GpuClock()), torch.device("cuda", gpus.infos[0].index), False)


def _gpu(gpus: WatchedGpus, device: torch.device, is_simulated: bool) -> Gpu:
    driver = gpus.driver(gpus.infos[0].index)
    driver.enter_thread()
    return Gpu(gpus, driver, device, is_simulated)


@dataclass(frozen=True)
class Limits:
    """The best rates that a GPU reached."""

    #: Bytes a second within the GPU's memory, counting those read and those written.
    copy: float
    #: Bytes a second from the host to the GPU.
    to_gpu: float
    #: Bytes a second from the GPU to the host.
    from_gpu: float
    #: Operations a second of a large product, by precision.
    flops: dict[str, float]

    def __str__(self) -> str:
        products = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in self.flops.items())
        return (
            f"the GPU's limits, measured here: copies within {self.copy / 1e9:,.0f} GB/s (read and written), to the "
            f"GPU {self.to_gpu / 1e9:.1f} GB/s, from it {self.from_gpu / 1e9:.1f} GB/s; products: {products} TFLOP/s"
        )


def measure_limits(gpu: Gpu) -> Limits:
    """Measures the best of a few tries, each of some milliseconds, on a GPU that is otherwise idle."""
    size, side, bus = (1 << 20, 64, 1 << 18) if gpu.is_simulated else (1 << 30, 8192, 1 << 26)
    host = torch.zeros(bus, dtype=torch.uint8, pin_memory=not gpu.is_simulated)
    there = torch.zeros(bus, dtype=torch.uint8, device=gpu.device)
    return Limits(
        copy=_copy_rate(gpu.device, size),
        to_gpu=bus / _least_seconds(gpu.device, lambda: there.copy_(host, non_blocking=True)),
        from_gpu=bus / _least_seconds(gpu.device, lambda: host.copy_(there, non_blocking=True)),
        flops={precision: _product_rate(gpu.device, side, precision) for precision in PRECISIONS},
    )


def _copy_rate(device: torch.device, size: int) -> float:
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / _least_seconds(device, lambda: target.copy_(source))


def _product_rate(device: torch.device, side: int, precision: str) -> float:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right, result = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(3))
    with torch.inference_mode(), matmul_precision(precision == "tf32"):
        # Ones let the GPU's clock run high: the rate is an upper bound, as a limit is to be.
        return 2.0 * side**3 / _least_seconds(device, lambda: torch.mm(left, right, out=result))


def _least_seconds(device: torch.device, work: Callable[[], object]) -> float:
    work()
    return min(_seconds(device, work) for _ in range(_TRIES))


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Returns the seconds of one call."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(_CALLS):
            work()
        return max(time.perf_counter() - began, 1e-9) / _CALLS
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(_CALLS):
        work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000 / _CALLS


def _conforms(driver: WatchedDriver, gpus: WatchedGpus) -> tuple[Driver, Gpus]:
    return driver, gpus
