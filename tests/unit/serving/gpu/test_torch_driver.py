"""The driver for CUDA against a small model of torch.cuda and CuPy's runtime; tests/gpu has the real GPU."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from serving.gpu import torch_driver
from serving.gpu.driver import Assembly, Driver
from storage.errors import CaptureError, ConfigError, DeviceError, DeviceLost, DeviceOutOfMemory
from storage.hbm.device import KernelCall
from tests.support.gpu.model_of_cuda import (
    INFO,
    AcceleratorError,
    CUDARuntimeError,
    Graph,
    Kernels,
    Model,
    install,
)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    return install(monkeypatch)


@pytest.fixture
def driver(model: Model) -> Driver:
    made: Driver = torch_driver.TorchDriver(INFO)
    model.log.clear()
    return made


def put(model: Model, *names: str) -> Callable[[], None]:
    def work() -> None:
        for name in names:
            model.put(name)

    return work


def test_calls_go_to_their_stream(driver: Driver, model: Model) -> None:
    stream, event = driver.new_stream("one"), driver.new_event(busy_wait=True)
    assert not event.blocking
    assert driver.new_event().blocking
    driver.enter_thread()
    host, gpu = driver.pinned(8), driver.device(8)
    model.log.clear()
    host.fill_(7)
    driver.copy(gpu, host, stream)
    assert gpu.tolist() == [7] * 8
    driver.record(event, stream)
    driver.wait(stream, event)
    driver.synchronize(event)

    def work() -> None:
        assert model.current[-1] == stream.raw
        model.put("work")

    driver.compute(work, stream, reads=[], writes=[])
    assert model.log == ["record", "wait", "work"]
    table = torch.zeros(3, 4, dtype=torch.int64)
    driver.assemble(Assembly(host, table, gpu, gpu, 12), 5, stream)
    assert Kernels.calls == [
        {
            "staging": host.data_ptr(),
            "table": table.data_ptr(),
            "inputs": 3,
            "target": gpu.data_ptr(),
            "stamp": gpu.data_ptr(),
            "rows": 5,
            "widest": 12,
            "stream": stream.raw,
        }
    ]


def test_kernels_are_loaded_when_it_is_asked_for_and_called_by_name(driver: Driver) -> None:
    assert Kernels.loads == 0
    driver.load_kernels()
    stream, gpu = driver.new_stream("one"), driver.device(64)
    driver.kernel(KernelCall("publish_stores", (3, 1), (gpu, gpu[16:], 7, -1), (gpu,)), stream)
    address = gpu.data_ptr()
    assert Kernels.started == [("publish_stores", (3, 1), [address, address + 16, 7, -1], stream.raw)]
    assert Kernels.loads == 1


def test_another_gpus_memory_is_read_where_it_can_be(driver: Driver, model: Model) -> None:
    other = SimpleNamespace(info=replace(INFO, index=3, name="another"))
    with pytest.raises(DeviceError, match=r"GPU 0 \(.*\) cannot read the memory of GPU 3 \(another\)"):
        driver.reach(cast(Driver, other))
    assert Kernels.loads_across == 0
    model.reachable.add(3)
    model.reached.add(3)  # torch, too, may have asked for it before
    driver.reach(cast(Driver, other))
    driver.reach(cast(Driver, other))
    assert Kernels.loads_across == 1
    model.reachable.add(5)
    driver.reach(cast(Driver, SimpleNamespace(info=replace(INFO, index=5))))
    assert model.reached == {3, 5}
    model.reachable.add(4)
    model.is_expandable = True
    with pytest.raises(ConfigError, match="expandable_segments") as raised:
        driver.reach(cast(Driver, SimpleNamespace(info=replace(INFO, index=4))))
    assert raised.value.field == "parameters.hbm_placement"
    assert model.reached == {3, 5}


def test_zeros_go_to_their_stream(driver: Driver, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, gpu = driver.new_stream("one"), driver.device(8)
    gpu.fill_(7)
    streams: list[int] = []
    zero = torch.Tensor.zero_

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        streams.append(model.current[-1])
        return zero(tensor)

    monkeypatch.setattr(torch.Tensor, "zero_", seen)
    driver.zero(gpu[2:4], stream)
    assert streams == [stream.raw]
    assert gpu.tolist() == [7, 7, 0, 0, 7, 7, 7, 7]


def test_no_two_sessions_have_one_stream_and_streams_are_used_again(driver: Driver, model: Model) -> None:
    streams = [driver.new_stream(str(number)) for number in range(40)]
    assert len({stream.raw for stream in streams}) == 40
    created = model.created
    gone = streams[0].raw
    del streams[0]
    assert driver.new_stream("again").raw == gone
    assert model.created == created


def test_a_capture_runs_nothing_and_is_launched(driver: Driver, model: Model) -> None:
    stream, pool = driver.new_stream("one"), driver.new_pool()

    def work() -> None:
        assert not gc.isenabled()
        driver.compute(put(model, "a", "b"), stream, reads=[], writes=[])

    graph = driver.capture(work, pool, stream, name="dlrm/8")
    assert gc.isenabled()
    assert model.log == []
    assert not model.recording
    driver.launch(graph, stream)
    assert model.log == ["replay ['a', 'b']"]


def test_graphs_of_a_stream_go_together_and_the_stream_after_them(driver: Driver, model: Model) -> None:
    stream, pool = driver.new_stream("one"), driver.new_pool()
    raw = stream.raw
    graphs = [driver.capture(put(model, "a"), pool, stream, name="x") for _ in range(3)]
    assert list(model.pools.values()) == [3]  # one pool
    del graphs[0], stream
    assert model.workspaces_gone == []
    another = driver.new_stream("another")
    assert another.raw != raw
    graphs.clear()
    assert model.workspaces_gone == [raw] * 3
    assert driver.new_stream("a third").raw == raw


def test_a_pool_goes_on_after_its_last_graph(driver: Driver, model: Model) -> None:
    stream, pool = driver.new_stream("one"), driver.new_pool()
    graph = driver.capture(put(model, "a"), pool, stream, name="x")
    del graph
    assert driver.capture(put(model, "a"), pool, stream, name="x") is not None


def test_an_invalid_capture_leaves_everything_usable(driver: Driver, model: Model) -> None:
    stream, pool = driver.new_stream("one"), driver.new_pool()
    first = driver.capture(put(model, "a"), pool, stream, name="first")

    def work() -> None:
        driver.compute(model.wait_for_host, stream, reads=[], writes=[])

    with pytest.raises(CaptureError, match=r"^dlrm/8: GPU 0 \(a model of a GPU\): no CUDA graph holds this"):
        driver.capture(work, pool, stream, name="dlrm/8")
    assert gc.isenabled()
    assert not model.captures
    assert not model.recording
    # The workspaces of the graph that is good are still there.
    assert model.workspaces_gone == []
    driver.launch(first, stream)
    second = driver.capture(put(model, "b"), pool, stream, name="second")
    driver.launch(second, stream)
    assert model.log == ["replay ['a']", "replay ['b']"]
    del first, second
    assert not any(model.pools.values())


def test_a_capture_that_became_invalid_without_an_error_is_found(driver: Driver, model: Model) -> None:
    stream, pool = driver.new_stream("one"), driver.new_pool()

    def swallows() -> None:
        with contextlib.suppress(RuntimeError):
            model.wait_for_host()

    with pytest.raises(CaptureError, match=r"dlrm/8: GPU 0 .* made the capture invalid"):
        driver.capture(swallows, pool, stream, name="dlrm/8")

    def odd() -> None:
        swallows()
        raise RuntimeError("an error of a library\nwith more lines")

    with pytest.raises(CaptureError, match=r"no CUDA graph holds this: an error of a library$"):
        driver.capture(odd, pool, stream, name="dlrm/8")
    assert not model.recording
    assert not any(model.pools.values())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("a bug"), ValueError),
        (RuntimeError("shapes differ"), RuntimeError),
        (RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture"), CaptureError),
        (AcceleratorError(2), DeviceOutOfMemory),
        (AcceleratorError(700), DeviceLost),
    ],
)
def test_an_error_in_a_capture_keeps_its_kind(
    driver: Driver, model: Model, error: Exception, expected: type[Exception]
) -> None:
    stream, pool = driver.new_stream("one"), driver.new_pool()

    def work() -> None:
        raise error

    with pytest.raises(expected):
        driver.capture(work, pool, stream, name="dlrm/8")
    assert not model.captures
    assert not model.recording


def test_a_capture_end_that_raises_ends_the_recording(
    driver: Driver, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, pool = driver.new_stream("one"), driver.new_pool()

    def unjoined(graph: Graph) -> None:
        del model.captures[graph.stream]
        raise AcceleratorError(904)

    with monkeypatch.context() as patch:
        patch.setattr(Graph, "capture_end", unjoined)
        with pytest.raises(CaptureError):
            driver.capture(put(model, "a"), pool, stream, name="dlrm/8")
    assert not model.recording
    assert driver.capture(put(model, "a"), pool, stream, name="dlrm/8") is not None


def test_captures_come_one_after_the_other(driver: Driver, model: Model) -> None:
    inside = threading.Lock()
    failures: list[BaseException] = []

    def capture() -> None:
        stream, pool = driver.new_stream("one"), driver.new_pool()

        def work() -> None:
            assert inside.acquire(blocking=False), "two captures at once"
            model.put("a")
            inside.release()

        try:
            driver.capture(work, pool, stream, name="x")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=capture) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures


def test_a_graph_that_goes_while_another_thread_captures_ends_after_that(driver: Driver, model: Model) -> None:
    one, other, pool = driver.new_stream("one"), driver.new_stream("other"), driver.new_pool()
    raw = one.raw
    graphs = [driver.capture(put(model, "a"), pool, one, name="x")]
    del one
    dropped, inside = threading.Event(), threading.Event()

    def work() -> None:
        model.put("b")
        inside.set()
        assert dropped.wait(30)

    def drop() -> None:
        assert inside.wait(30)
        graphs.clear()
        seen.append(list(model.workspaces_gone))
        dropped.set()

    seen: list[list[int]] = []
    thread = threading.Thread(target=drop)
    thread.start()
    kept = driver.capture(work, driver.new_pool(), other, name="y")
    thread.join(30)
    assert seen == [[]], "a graph ended inside a capture"
    assert model.workspaces_gone == [raw]
    assert driver.new_stream("again").raw == raw
    driver.launch(kept, other)


def test_a_graph_that_goes_in_a_capture_of_its_own_thread_ends_after_that(driver: Driver, model: Model) -> None:
    stream, pool = driver.new_stream("one"), driver.new_pool()
    graphs = [driver.capture(put(model, "a"), pool, stream, name="x")]
    del stream

    def work() -> None:
        model.put("b")
        graphs.clear()
        assert model.workspaces_gone == []

    other = driver.new_stream("other")
    kept = driver.capture(work, driver.new_pool(), other, name="y")
    assert len(model.workspaces_gone) == 1
    driver.launch(kept, other)


def test_buffers_count_until_their_last_view_is_gone(driver: Driver) -> None:
    own = driver.memory().device
    gpu, host = driver.device(100), driver.pinned(40)
    memory = driver.memory()
    assert (memory.total, memory.free, memory.device - own, memory.pinned) == (1000, 250, 100, 40)
    view = gpu[8:16].view(torch.int64)
    del gpu, host
    assert (driver.memory().device - own, driver.memory().pinned) == (100, 0)
    del view
    assert driver.memory().device == own


def test_memory_that_is_not_there(driver: Driver, model: Model) -> None:
    model.failure = AcceleratorError(2)
    with pytest.raises(DeviceOutOfMemory, match=r"2\.0 MiB asked for"):
        driver.device(2**21)
    with pytest.raises(DeviceOutOfMemory, match="could not be pinned"):
        driver.pinned(2**21)
    model.failure = None
    assert driver.device(8).tolist() == [0] * 8


def test_a_lost_gpu_answers_nothing(driver: Driver, model: Model) -> None:
    stream, event, pool, host = driver.new_stream("one"), driver.new_event(), driver.new_pool(), driver.pinned(8)
    graph = driver.capture(put(model, "a"), pool, stream, name="x")
    model.failure = AcceleratorError(700)
    with pytest.raises(DeviceLost, match="start the server anew"):
        driver.launch(graph, stream)
    model.failure = None
    calls: list[Callable[[], object]] = [
        driver.enter_thread,
        driver.memory,
        driver.new_event,
        lambda: driver.new_stream("two"),
        lambda: driver.pinned(8),
        lambda: driver.device(8),
        lambda: driver.copy(host, host, stream),
        lambda: driver.assemble(Assembly(host, host, host, host, 1), 1, stream),
        lambda: driver.compute(put(model, "b"), stream, reads=[], writes=[]),
        lambda: driver.record(event, stream),
        lambda: driver.wait(stream, event),
        lambda: driver.synchronize(event),
        lambda: driver.capture(put(model, "b"), pool, stream, name="x"),
        lambda: driver.launch(graph, stream),
    ]
    for call in calls:
        with pytest.raises(DeviceLost):
            call()
    assert model.log == []


def test_a_kernel_that_does_not_start_says_whether_the_gpu_is_lost(driver: Driver) -> None:
    stream, host = driver.new_stream("one"), driver.pinned(8)
    assembly = Assembly(host, host, host, host, 1)
    Kernels.failure = CUDARuntimeError(1)
    with pytest.raises(DeviceError, match="did not start"):
        driver.assemble(assembly, 1, stream)
    with pytest.raises(DeviceError, match="did not start kernel lookup_pool_fp32"):
        driver.kernel(KernelCall("lookup_pool_fp32", (1, 1), ()), stream)
    Kernels.failure = CUDARuntimeError(719)
    with pytest.raises(DeviceLost):
        driver.assemble(assembly, 1, stream)
    Kernels.failure = None
    with pytest.raises(DeviceLost):
        driver.assemble(assembly, 1, stream)
