"""The driver for CUDA: torch's allocators, events and graphs, streams of our own, one kernel of ours.

Nothing here waits for a whole GPU, and nothing that a batch needs allocates. These are the constraints of the libraries
and how the driver respects them:

- torch hands out 32 streams a GPU in turn, so that two sessions would come to share one, and a capture would swallow
  what the other puts on it. So every stream is made here, one that does not wait for the default stream (a capture may
  not). It is never destroyed, because torch's allocators remember the streams of a buffer, but the next session's when
  it and all graphs captured on it are gone.
- A graph keeps the address of cuBLAS's workspace, which torch has one of for each stream and thread, and gives back
  when any graph that was captured on that stream goes (torch 2.12 and 2.13). So the graphs of one stream go together,
  and a graph is launched on the stream that it was captured on.
- Two captures at once may not use one pool, and while one goes on, torch frees nothing to make room for another
  thread: captures of a GPU, and allocations of buffers, come one after the other. Copies, kernels and launches of
  other threads continue (`thread_local`).
- torch.cuda.graph would wait for the whole GPU and empty its caches, which others are using.
- Python's garbage collector may destroy events, graphs and buffers of anyone on the thread that captures, which makes
  the capture invalid: it pauses.
- torch 2.11 enters and strikes out every graph in a set that has no lock: the end of a graph, on whatever thread, takes
  its turn with captures (`Exclusive`).
- A capture that became invalid makes torch's capture_end raise before it has told its allocators that it is over: they
  would go on sending allocations to the graph's pool. `_abandon` lets it end well.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from serving.gpu.device_errors import Asking, GpuState, first_line
from serving.gpu.driver import Assembly, DeviceMemory, Driver, GpuInfo
from serving.gpu.torch_handles import Captured, CudaGraph, CudaPool, CudaStream, Exclusive, collector_paused
from storage.errors import CaptureError, ConfigError, DeviceError
from storage.hbm.device import Device, KernelCall
from storage.hbm.kernels import Kernels

logger = logging.getLogger("emberline.serving")

_SCRATCH_BYTES = 16
_PEER_ACCESS_ALREADY_ENABLED = 704


class _Tally:
    """Bytes of live buffers. Thread-safe, also against the garbage collector in the middle of anything."""

    def __init__(self) -> None:
        self._changes: deque[int] = deque()
        self._total = 0
        self._lock = threading.Lock()

    def hold(self, buffer: torch.Tensor) -> None:
        """Counts a buffer until the last view of it is gone."""
        size = buffer.nbytes
        self._changes.append(size)
        weakref.finalize(buffer.untyped_storage(), self._changes.append, -size).atexit = False

    def total(self) -> int:
        """Number of bytes now."""
        with self._lock:
            while self._changes:
                self._total += self._changes.popleft()
            return self._total


class TorchDriver:
    """The driver of one GPU through torch. See Driver.

    A stream, an event, a graph and a pool of it are a CudaStream, a torch.cuda.Event, a CudaGraph and a CudaPool.
    capture: warm up before, on the same thread and stream: libraries take their workspaces and load their kernels the
    first time.
    """

    def __init__(self, info: GpuInfo) -> None:
        """Starts CUDA on the GPU, for the calling thread too, and loads the kernels. Raises DeviceError."""
        self.info = info
        self._device = torch.device("cuda", info.index)
        self._runtime: Any = importlib.import_module("cupy.cuda.runtime")
        self._state = GpuState(info, lambda: torch.cuda.mem_get_info(info.index))
        self._asking = Asking(self._state)
        self._free_streams: deque[int] = deque()
        self._device_bytes = _Tally()
        self._pinned_bytes = _Tally()
        self._exclusive = Exclusive()
        self._reached: set[int] = set()
        # Graphs of captures that torch could not end: its allocators still call them.
        self._kept: list[torch.cuda.CUDAGraph] = []
        self.enter_thread()
        with self._asking:
            self._kernels = Kernels(info.index, info.capability)
            self._kernels.load()
        self._buffers_stream = self.new_stream("buffers")
        self._scratch = self.device(_SCRATCH_BYTES)

    def enter_thread(self) -> None:
        """See Driver."""
        with self._asking:
            torch.cuda.set_device(self._device)
            self._runtime.setDevice(self.info.index)  # CuPy's runtime is one of its own

    def pinned(self, size: int) -> torch.Tensor:
        """See Driver. Takes the next power of two; what was freed stays pinned, for the next buffer."""
        with Asking(self._state, size, pinned=True), torch.inference_mode(False):
            buffer = torch.zeros(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._pinned_bytes.hold(buffer)
        return buffer

    def device(self, size: int) -> torch.Tensor:
        """See Driver. Begins at a multiple of 512 bytes."""
        with (
            Asking(self._state, size),
            self._exclusive,
            torch.inference_mode(False),
            torch.cuda.stream(self._buffers_stream.torch),
        ):
            buffer = torch.zeros(size, dtype=torch.uint8, device=self._device)
            # The zeros are there for every stream when this returns.
            self._buffers_stream.torch.synchronize()
        self._device_bytes.hold(buffer)
        return buffer

    def new_stream(self, name: str) -> CudaStream:
        """See Driver."""
        with self._asking:
            try:
                raw = self._free_streams.popleft()
            except IndexError:
                raw = self._runtime.streamCreateWithFlags(self._runtime.streamNonBlocking)
            return CudaStream(name, raw, self._device, self._free_streams)

    def new_event(self, *, busy_wait: bool = False) -> torch.cuda.Event:
        """See Driver."""
        with self._asking:
            event: torch.cuda.Event = torch.cuda.Event(blocking=not busy_wait)  # type: ignore[no-untyped-call]
            return event

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: CudaStream) -> None:
        """See Driver."""
        with self._asking, torch.cuda.stream(stream.torch):
            target.copy_(source, non_blocking=True)

    def assemble(self, assembly: Assembly, rows: int, stream: CudaStream) -> None:
        """See Driver."""
        with self._asking:
            self._kernels.assemble(
                staging=assembly.staging.data_ptr(),
                table=assembly.table.data_ptr(),
                inputs=assembly.table.shape[0],
                target=assembly.target.data_ptr(),
                stamp=assembly.stamp.data_ptr(),
                rows=rows,
                widest=assembly.widest,
                stream=stream.raw,
            )

    def zero(self, buffer: torch.Tensor, stream: CudaStream) -> None:
        """See Device."""
        with self._asking, torch.cuda.stream(stream.torch):
            buffer.zero_()

    def load_kernels(self) -> None:
        """See Device."""
        with self._asking:
            self._kernels.load_lookups()

    def reach(self, other: Device) -> None:
        """See Device. For buffers that torch takes with cudaMalloc, not in segments that grow."""
        if other.info.index in self._reached:
            return
        with self._asking:
            segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
            if any(segment.get("is_expandable") for segment in segments):
                raise ConfigError(
                    "PYTORCH_CUDA_ALLOC_CONF has expandable_segments, whose memory no other GPU can read; remove that, "
                    "or set hbm_placement to replicate",
                    field="parameters.hbm_placement",
                )
            if not self._runtime.deviceCanAccessPeer(self.info.index, other.info.index):
                raise DeviceError(f"{self.info} cannot read the memory of {other.info}: no NVLink or PCIe peer access")
            try:
                self._runtime.deviceEnablePeerAccess(other.info.index)
            except RuntimeError as error:
                if getattr(error, "status", None) != _PEER_ACCESS_ALREADY_ENABLED:
                    raise
            self._kernels.load_across()
        self._reached.add(other.info.index)

    def kernel(self, call: KernelCall, stream: CudaStream) -> None:
        """See Device."""
        values = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in call.values]
        with self._asking:
            self._kernels.call(call.name, call.blocks, values, stream.raw)

    def compute(
        self,
        work: Callable[[], object],
        stream: CudaStream,
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        """See Driver."""
        with self._asking, torch.cuda.stream(stream.torch):
            work()

    def record(self, event: torch.cuda.Event, stream: CudaStream) -> None:
        """See Driver."""
        with self._asking:
            event.record(stream.torch)

    def wait(self, stream: CudaStream, event: torch.cuda.Event) -> None:
        """See Driver."""
        with self._asking:
            event.wait(stream.torch)

    def synchronize(self, event: torch.cuda.Event) -> None:
        """See Driver. Other Python threads run meanwhile."""
        with self._asking:
            event.synchronize()

    def new_pool(self) -> CudaPool:
        """See Driver."""
        return CudaPool()

    def capture(self, work: Callable[[], object], pool: CudaPool, stream: CudaStream, *, name: str) -> CudaGraph:
        """See Driver. The stream continues as before, whether or not this raises."""
        with (
            Asking(self._state, capturing=name),
            self._exclusive,
            collector_paused(),
            torch.cuda.stream(stream.torch),
        ):
            captured = Captured.of(stream, self._exclusive)
            pool_name = pool.name_for(captured)
            graph = torch.cuda.CUDAGraph()
            # A graph that fails is kept too: it may not precede the others of the stream.
            captured.graphs.append(graph)
            try:
                graph.capture_begin(pool=pool_name, capture_error_mode="thread_local")
                work()
                if not self._is_capturing(stream):
                    raise CaptureError(f"{self.info}: something in it made the capture invalid")
            except BaseException as error:
                invalid = not self._is_capturing(stream)
                self._abandon(graph, pool, pool_name, stream)
                if isinstance(error, CaptureError):
                    raise CaptureError(f"{name}: {error}") from error
                self._state.translated(error, capturing=name)
                if invalid and isinstance(error, RuntimeError):
                    said = first_line(error)
                    raise CaptureError(f"{name}: {self.info}: no CUDA graph holds this: {said}") from error
                raise
            try:
                graph.capture_end()
            except BaseException:
                self._end_recording(graph, pool, pool_name)
                raise
            self._upload(graph, stream)
            return CudaGraph(graph, captured)

    def launch(self, graph: CudaGraph, stream: CudaStream) -> None:
        """See Driver. On the stream that it was captured on, whose workspaces it uses."""
        with self._asking, torch.cuda.stream(stream.torch):
            graph.replay()

    def memory(self) -> DeviceMemory:
        """See Driver."""
        with self._asking:
            free, total = torch.cuda.mem_get_info(self.info.index)
        return DeviceMemory(total, free, self._device_bytes.total(), self._pinned_bytes.total())

    def _upload(self, graph: torch.cuda.CUDAGraph, stream: CudaStream) -> None:
        """Brings the graph to the GPU now; its first launch would, otherwise."""
        executable = getattr(graph, "raw_cuda_graph_exec", None)  # since torch 2.9
        if executable is not None:
            with contextlib.suppress(RuntimeError):
                self._runtime.graphUpload(executable(), stream.raw)

    def _is_capturing(self, stream: CudaStream) -> bool:
        """Returns whether a capture is under way that is still valid."""
        try:
            return bool(self._runtime.streamIsCapturing(stream.raw))
        except RuntimeError:  # it is not, or the GPU is lost
            return False

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: CudaPool, pool_name: Any, stream: CudaStream) -> None:
        """Ends an unwanted capture as torch ends a good one; an invalid one is replaced by a trivial one."""
        runtime = self._runtime
        try:
            if not self._is_capturing(stream):
                with contextlib.suppress(RuntimeError):
                    runtime.streamEndCapture(stream.raw)  # says again what made it invalid
                runtime.streamBeginCapture(stream.raw, runtime.streamCaptureModeThreadLocal)
            # torch warns of empty graphs.
            runtime.memsetAsync(self._scratch.data_ptr(), 0, _SCRATCH_BYTES, stream.raw)
            graph.capture_end()
        except Exception as error:
            logger.debug("%s: a capture could not be ended: %s", self.info, error)
            if self._is_capturing(stream):
                with contextlib.suppress(RuntimeError):
                    runtime.streamEndCapture(stream.raw)
            self._end_recording(graph, pool, pool_name)
        # An error that a library left with CUDA would be found after the next kernel, and taken for that one's.
        with contextlib.suppress(RuntimeError):
            self._scratch.add_(0)

    def _end_recording(self, graph: torch.cuda.CUDAGraph, pool: CudaPool, pool_name: Any) -> None:
        """Stops torch's allocator from sending allocations to the graph's pool, after a capture_end that raised."""
        with contextlib.suppress(Exception):  # it has stopped already
            torch._C._cuda_endAllocateToPool(self.info.index, pool_name)
            self._kept.append(graph)
        pool.forget()


# mypy checks that the class implements the protocol.
_DRIVER: type[Driver] = TorchDriver
