"""Models torch.cuda and CuPy's runtime as far as TorchDriver uses them.

It keeps the rules that torch is strict about: one recording a pool, pools that end with their last graph, a capture_end
that raises before it ends the recording when the capture became invalid, workspaces that are freed with any graph of a
stream.
"""

# ruff: noqa: N802, N815  (the stand-in for CuPy's runtime has CuPy's names)
from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from serving.gpu import torch_driver, torch_handles
from serving.gpu.driver import GpuInfo
from storage.errors import DeviceError

INFO = GpuInfo(0, "a model of a GPU", (9, 0), 1000)


class AcceleratorError(RuntimeError):
    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error: number {code}")
        self.error_code = code


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError: number {status}")
        self.status = status


class Model:
    """The state of the GPU, torch's allocator and the default stream."""

    def __init__(self) -> None:
        self.created = 0
        self.captures: dict[int, list[str] | None] = {}  # nodes by stream, None once invalid
        self.recording: list[object] = []
        self.pools: Counter[object] = Counter()
        self.ended_pools: set[object] = set()
        self.workspaces_gone: list[int] = []
        self.current = [0]
        self.log: list[str] = []
        self.failure: Exception | None = None
        # GPUs whose memory can be read, and those whose access was enabled.
        self.reachable: set[int] = set()
        self.reached: set[int] = set()
        self.is_expandable = False

    def put(self, what: str) -> None:
        """Puts work on the current stream."""
        if self.failure is not None:
            raise self.failure
        stream = self.current[-1]
        nodes = self.captures.get(stream, self.log)
        if nodes is None:
            raise AcceleratorError(901)
        nodes.append(what)

    def wait_for_host(self) -> None:
        """Stands for a wait of the host, which no graph can hold: it invalidates a capture and raises."""
        if self.current[-1] in self.captures:
            self.captures[self.current[-1]] = None
            raise AcceleratorError(900)


class Runtime:
    streamNonBlocking = 1
    streamCaptureModeThreadLocal = 1

    def __init__(self, model: Model) -> None:
        self.model = model

    def setDevice(self, index: int) -> None:
        assert index == 0

    def deviceCanAccessPeer(self, index: int, other: int) -> bool:
        assert index == 0
        return other in self.model.reachable

    def deviceEnablePeerAccess(self, other: int) -> None:
        if other in self.model.reached:
            raise CUDARuntimeError(704)
        if other not in self.model.reachable:
            raise CUDARuntimeError(217)
        self.model.reached.add(other)

    def streamCreateWithFlags(self, flags: int) -> int:
        assert flags == self.streamNonBlocking
        self.model.created += 1
        return self.model.created

    def streamIsCapturing(self, raw: int) -> bool:
        if self.model.captures.get(raw, ()) is None:
            raise RuntimeError("the stream was capturing, but an error has invalidated the capture sequence")
        return raw in self.model.captures

    def streamBeginCapture(self, raw: int, mode: int) -> None:
        assert mode == self.streamCaptureModeThreadLocal
        assert raw not in self.model.captures
        self.model.captures[raw] = []

    def streamEndCapture(self, raw: int) -> int:
        if raw not in self.model.captures:
            raise CUDARuntimeError(1)
        if self.model.captures.pop(raw) is None:
            raise CUDARuntimeError(901)
        return 1

    def memsetAsync(self, pointer: int, value: int, size: int, raw: int) -> None:
        nodes = self.model.captures[raw]
        assert nodes is not None
        nodes.append("memset")


class Graph:
    model: Model

    def __init__(self) -> None:
        self.nodes: list[str] | None = None

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        model = self.model
        assert pool not in model.recording, "beginAllocateToPool: already recording to mempool_id"
        assert pool not in model.ended_pools, "use_count > 0 INTERNAL ASSERT FAILED"
        model.pools[pool] += 1
        model.recording.append(pool)
        self.pool, self.stream = pool, model.current[-1]
        assert self.stream not in model.captures
        model.captures[self.stream] = []

    def capture_end(self) -> None:
        assert self.model.current[-1] == self.stream
        if self.stream not in self.model.captures:
            raise AcceleratorError(1)
        nodes = self.model.captures.pop(self.stream)
        if nodes is None:
            raise AcceleratorError(901)
        self.model.recording.remove(self.pool)
        assert nodes, "The CUDA Graph is empty"
        self.nodes = nodes

    def replay(self) -> None:
        assert self.nodes is not None
        self.model.put(f"replay {self.nodes}")

    def __del__(self) -> None:
        if self.nodes is not None:
            self.model.workspaces_gone.append(self.stream)
            self.model.pools[self.pool] -= 1
            if not self.model.pools[self.pool]:
                self.model.ended_pools.add(self.pool)


class Event:
    def __init__(self, blocking: bool) -> None:
        self.blocking = blocking
        self.model: Model | None = None

    def record(self, stream: Any) -> None:
        stream.model.log.append("record")

    def wait(self, stream: Any) -> None:
        stream.model.log.append("wait")

    def synchronize(self) -> None:
        pass


class Kernels:
    """Stands in for the kernels of one GPU."""

    calls: list[dict[str, int]]
    #: Name, blocks, values and stream of kernels that are called by name.
    started: list[tuple[str, tuple[int, int], list[int], int]]
    #: How often the kernels of lookups were loaded.
    loads: int
    #: How often the kernels that look on other GPUs were loaded.
    loads_across: int
    failure: Exception | None

    def __init__(self, device: int, capability: tuple[int, int]) -> None:
        assert (device, capability) == (0, (9, 0))
        Kernels.calls, Kernels.started, Kernels.loads, Kernels.failure = [], [], 0, None
        Kernels.loads_across = 0

    def load(self) -> None:
        pass

    def load_lookups(self) -> None:
        Kernels.loads += 1

    def load_across(self) -> None:
        Kernels.loads_across += 1

    def call(self, name: str, blocks: tuple[int, int], values: Sequence[int], stream: int) -> None:
        if self.failure is not None:
            raise DeviceError(f"GPU 0 did not start kernel {name}") from self.failure
        Kernels.started.append((name, blocks, list(values), stream))

    def assemble(self, **arguments: int) -> None:
        if self.failure is not None:
            raise DeviceError("GPU 0 did not start kernel assemble") from self.failure
        Kernels.calls.append(arguments)


def install(monkeypatch: pytest.MonkeyPatch) -> Model:
    """Puts a model where the driver looks for torch and CuPy."""
    model = Model()
    names = iter(range(1, 100))

    class Stream:
        def __init__(self, raw: int, device: torch.device) -> None:
            self.raw, self.model = raw, model
            assert device == torch.device("cuda", 0)

        def synchronize(self) -> None:
            model.wait_for_host()

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        model.current.append(stream.raw)
        try:
            yield
        finally:
            model.current.pop()

    def zeros(size: int, *, dtype: torch.dtype, device: Any, pin_memory: bool = False) -> torch.Tensor:
        if not pin_memory:
            model.put("zeros")
        elif model.failure is not None:
            raise model.failure
        assert pin_memory == (str(device) == "cpu")
        return torch.zeros(size, dtype=dtype)

    def end_recording(device: int, pool: object) -> None:
        model.recording.remove(pool)

    Graph.model = model
    cuda = SimpleNamespace(
        ExternalStream=Stream,
        stream=on,
        CUDAGraph=Graph,
        Event=Event,
        graph_pool_handle=lambda: (0, next(names)),
        set_device=lambda device: None,
        mem_get_info=lambda index: (250, 1000),
        memory_snapshot=lambda: [{"is_expandable": False}, {"is_expandable": model.is_expandable}],
    )
    stand_in = SimpleNamespace(
        cuda=cuda,
        zeros=zeros,
        uint8=torch.uint8,
        device=torch.device,
        Tensor=torch.Tensor,
        inference_mode=torch.inference_mode,
        _C=SimpleNamespace(_cuda_endAllocateToPool=end_recording),
    )
    monkeypatch.setattr(torch_driver, "torch", stand_in)
    monkeypatch.setattr(torch_handles, "torch", stand_in)
    monkeypatch.setattr(torch_driver, "Kernels", Kernels)
    monkeypatch.setattr(torch_driver, "importlib", SimpleNamespace(import_module=lambda name: Runtime(model)))
    return model
