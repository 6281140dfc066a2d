"""Tests every call of the driver on a real GPU."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from serving.gpu.driver import Driver, Stream
from serving.gpu.matmul_precision import matmul_precision
from storage.errors import CaptureError, DeviceOutOfMemory

LONGEST_WAIT_S = 120
# Around a second on any GPU, in its cycles: longer than the work that is to overtake it. torch leaves it untyped.
sleep: Callable[[int], None] = torch.cuda._sleep
LONG_CYCLES = 2_000_000_000
# More than any GPU has.
TOO_MUCH = 2**46


def finish(driver: Driver, stream: Stream) -> None:
    """Waits for all work that was put on a stream."""
    event = driver.new_event()
    driver.record(event, stream)
    driver.synchronize(event)


def to_gpu(driver: Driver, values: np.ndarray, stream: Stream) -> torch.Tensor:
    """Returns a buffer of the GPU with these bytes."""
    host, buffer = driver.pinned(values.nbytes), driver.device(values.nbytes)
    host.numpy()[:] = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    driver.copy(buffer, host, stream)
    finish(driver, stream)
    return buffer


def from_gpu(driver: Driver, buffer: torch.Tensor, stream: Stream) -> np.ndarray:
    """Returns the bytes of a buffer after all work that was put on the stream."""
    host = driver.pinned(buffer.nbytes)
    driver.copy(host, buffer, stream)
    finish(driver, stream)
    return host.numpy().copy()


def floats(buffer: torch.Tensor, *shape: int) -> torch.Tensor:
    """Views a buffer as fp32."""
    return buffer.view(torch.float32).view(shape)


def compute(driver: Driver, work: Callable[[], object], stream: Stream) -> None:
    """Runs operators of torch on a stream."""

    def run() -> None:
        work()

    with torch.inference_mode():
        driver.compute(run, stream, reads=[], writes=[])


def warm_and_capture(driver: Driver, work: Callable[[], object], pool: Any, stream: Stream) -> Any:
    """Captures torch's operators in a graph, after libraries have seen them on this thread and stream."""
    for _ in range(2):
        compute(driver, work, stream)
    finish(driver, stream)
    return driver.capture(lambda: compute(driver, work, stream), pool, stream, name="test")


def is_done(event: Any) -> bool:
    """Returns whether an event is complete; the driver's events are torch.cuda.Event."""
    return bool(event.query())


@pytest.mark.parametrize("size", [1, 15, 16, 4096, 2**20 + 3])
def test_bytes_go_there_and_back(driver: Driver, size: int) -> None:
    stream = driver.new_stream("test")
    values = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert np.array_equal(from_gpu(driver, to_gpu(driver, values, stream), stream), values)


def test_parts_of_buffers_are_copied(driver: Driver) -> None:
    stream = driver.new_stream("test")
    host, buffer = driver.pinned(64), driver.device(64)
    host.numpy()[:] = np.arange(64, dtype=np.uint8)
    driver.copy(buffer[16:32], host[:16], stream)
    assert from_gpu(driver, buffer, stream).tolist() == [0] * 16 + list(range(16)) + [0] * 32


def test_buffers_are_zeros_for_every_stream_also_when_memory_is_used_again(driver: Driver) -> None:
    for _ in range(3):
        buffer, host = driver.device(3 * 2**20), driver.pinned(2**20)
        assert (buffer.dtype, buffer.device.type) == (torch.uint8, "cuda")
        assert buffer.data_ptr() % 512 == 0
        assert host.is_pinned()
        assert host.data_ptr() % 64 == 0
        assert not host.numpy().any()
        stream = driver.new_stream("test")
        assert not from_gpu(driver, buffer, stream).any()
        host.fill_(255)
        compute(driver, partial(buffer.fill_, 255), stream)
        finish(driver, stream)
        del buffer, host


def test_memory_counts_buffers(driver: Driver) -> None:
    gc.collect()  # frees what the errors of other tests hold
    before = driver.memory()
    assert 0 < before.free <= before.total
    buffer, host = driver.device(2**20), driver.pinned(2**10)
    after = driver.memory()
    assert (after.device - before.device, after.pinned - before.pinned) == (2**20, 2**10)
    view = buffer[:8]
    del buffer, host
    assert driver.memory().device - before.device == 2**20
    del view
    assert driver.memory().device == before.device


@pytest.mark.parametrize("busy_wait", [False, True])
def test_a_stream_waits_for_an_event_of_another_one(driver: Driver, busy_wait: bool) -> None:
    one, other = driver.new_stream("one"), driver.new_stream("other")
    written, read = driver.new_event(busy_wait=busy_wait), driver.new_event(busy_wait=busy_wait)
    buffer, host = driver.device(8), driver.pinned(8)

    def write(cycles: int, value: int) -> None:
        sleep(cycles)
        buffer.fill_(value)

    compute(driver, lambda: write(1, 1), one)  # CUDA loads kernels when they are first used
    finish(driver, one)
    compute(driver, lambda: write(LONG_CYCLES // 4, 9), one)
    driver.record(written, one)
    driver.wait(other, written)
    driver.copy(host, buffer, other)
    driver.record(read, other)
    assert not is_done(read)
    driver.synchronize(read)
    assert host.tolist() == [9] * 8


@pytest.mark.parametrize("busy_wait", [False, True])
def test_other_threads_run_while_one_waits_for_an_event(driver: Driver, busy_wait: bool) -> None:
    stream, event = driver.new_stream("test"), driver.new_event(busy_wait=busy_wait)
    compute(driver, lambda: sleep(LONG_CYCLES), stream)
    driver.record(event, stream)
    last_ran = 0.0

    def run() -> None:
        nonlocal last_ran
        while not is_done(event):
            last_ran = time.perf_counter()

    beside = threading.Thread(target=run)
    beside.start()
    began = time.perf_counter()
    driver.synchronize(event)
    beside.join(LONGEST_WAIT_S)
    # A turn of the interpreter lasts 5 ms, the kernel a hundred times as long.
    assert last_ran - began > 0.1


def test_a_graph_computes_what_lies_in_its_buffers_now(driver: Driver) -> None:
    stream, pool = driver.new_stream("test"), driver.new_pool()
    host_in, host_out = driver.pinned(4 * 64), driver.pinned(4 * 64)
    inputs, outputs = driver.device(4 * 64), driver.device(4 * 64)

    def work() -> None:
        driver.copy(inputs, host_in, stream)
        driver.compute(lambda: floats(outputs, 64).copy_(floats(inputs, 64) * 2 + 1), stream, reads=[], writes=[])
        driver.copy(host_out, outputs, stream)

    with torch.inference_mode():
        work()
        finish(driver, stream)
        graph = driver.capture(work, pool, stream, name="test")
    for number in range(5):
        host_in.view(torch.float32).copy_(torch.arange(64) + number)
        driver.launch(graph, stream)
        finish(driver, stream)
        assert torch.equal(host_out.view(torch.float32), (torch.arange(64) + number) * 2.0 + 1)


def test_graphs_that_share_a_pool_and_a_stream_survive_each_other(driver: Driver) -> None:
    """Products take workspaces from torch, one for the stream: a graph that is dropped must not free it."""
    stream, pool = driver.new_stream("test"), driver.new_pool()
    generator = np.random.default_rng(3)
    left = generator.standard_normal((128, 8192), dtype=np.float32)
    right = generator.standard_normal((8192, 128), dtype=np.float32)
    lefts, rights = to_gpu(driver, left, stream), to_gpu(driver, right, stream)
    results = [driver.device(4 * 128 * 128) for _ in range(3)]

    def product(result: torch.Tensor) -> Callable[[], object]:
        # One multiplication in parts, which needs a workspace.
        return lambda: torch.mm(floats(lefts, 128, 8192), floats(rights, 8192, 128), out=floats(result, 128, 128)).mul_(
            1
        )

    graphs = [warm_and_capture(driver, product(result), pool, stream) for result in results]
    del graphs[0], graphs[0]
    gc.collect()
    for _ in range(20):
        compute(driver, lambda: torch.full((2**22,), float("nan"), device=lefts.device).add_(1), stream)
        driver.launch(graphs[0], stream)
    got = from_gpu(driver, results[2], stream).view(np.float32).reshape(128, 128)
    assert np.allclose(got, left.astype(np.float64) @ right.astype(np.float64), rtol=1e-4, atol=1e-2)


FORBIDDEN: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda buffer: buffer.sum().item(),
    "nonzero": lambda buffer: torch.nonzero(buffer),
    "to pageable memory": lambda buffer: buffer.cpu(),
    "from pageable memory": lambda buffer: buffer.copy_(torch.ones(buffer.shape, dtype=buffer.dtype)),
    "wait for the stream": lambda buffer: torch.cuda.current_stream().synchronize(),
    "wait for the GPU": lambda buffer: torch.cuda.synchronize(),
    "cudaMalloc": lambda buffer: __import__("cupy").cuda.runtime.malloc(2**20),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_no_graph_holds_is_refused_and_all_else_goes_on(driver: Driver, what: str) -> None:
    stream, pool = driver.new_stream("test"), driver.new_pool()
    buffer = driver.device(64)
    good = warm_and_capture(driver, lambda: buffer.add_(1), pool, stream)

    def work() -> None:
        buffer.add_(1)
        FORBIDDEN[what](buffer)
        buffer.add_(1)

    for _ in range(2):
        with pytest.raises(CaptureError, match="test"):
            driver.capture(lambda: compute(driver, work, stream), pool, stream, name="test")
    compute(driver, lambda: buffer.fill_(0), stream)
    driver.launch(good, stream)
    again = driver.capture(
        lambda: compute(driver, lambda: buffer.add_(10), stream),
        pool,
        stream,
        name="test",
    )
    driver.launch(again, stream)
    assert from_gpu(driver, buffer, stream).tolist() == [11] * 64
    # Allocations of torch go to their own pools again, also on other threads' streams.
    other = driver.new_stream("other")
    compute(driver, lambda: buffer.copy_(torch.full((64,), 5, dtype=torch.uint8, device=buffer.device)), other)
    assert from_gpu(driver, buffer, other).tolist() == [5] * 64


def test_failed_captures_keep_no_memory(driver: Driver) -> None:
    stream, buffer = driver.new_stream("test"), driver.device(8)

    def work() -> None:
        torch.empty(2**26, dtype=torch.uint8, device=buffer.device).fill_(1).sum().item()

    def fail() -> None:
        with pytest.raises(CaptureError):
            driver.capture(lambda: compute(driver, work, stream), driver.new_pool(), stream, name="test")
        gc.collect()

    fail()
    # Releases memory that no pool holds, and fails when an allocator believes that a capture goes on.
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(5):
        fail()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before


def test_a_bug_in_what_is_captured_is_reported_as_it_is(driver: Driver) -> None:
    stream, pool, buffer = driver.new_stream("test"), driver.new_pool(), driver.device(8)

    def buggy() -> None:
        buffer.add_(1)
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        driver.capture(lambda: compute(driver, buggy, stream), pool, stream, name="test")
    assert gc.isenabled()
    assert not from_gpu(driver, buffer, stream).any()


def test_memory_that_is_not_there_is_an_error_and_the_gpu_goes_on(driver: Driver) -> None:
    stream, pool, buffer = driver.new_stream("test"), driver.new_pool(), driver.device(8)
    with pytest.raises(DeviceOutOfMemory, match=r"67108864\.0 MiB asked for"):
        driver.device(TOO_MUCH)

    def greedy() -> None:
        buffer.add_(1)
        torch.empty(TOO_MUCH, dtype=torch.uint8, device=buffer.device)

    with pytest.raises(DeviceOutOfMemory):
        compute(driver, greedy, stream)
    # torch asks CUDA how much is free before it raises; the driver decides whether a capture allows that.
    with pytest.raises((DeviceOutOfMemory, CaptureError)):
        driver.capture(lambda: compute(driver, greedy, stream), pool, stream, name="test")
    assert from_gpu(driver, buffer, stream).tolist() == [1] * 8
    assert from_gpu(driver, driver.device(2**20), stream).shape == (2**20,)


def test_a_batch_waits_for_no_other_stream_and_allocates_nothing(driver: Driver) -> None:
    """Device-wide synchronisation would make it wait for a one-second kernel on another stream."""
    mine, busy, pool = driver.new_stream("mine"), driver.new_stream("busy"), driver.new_pool()
    done, busy_done = driver.new_event(), driver.new_event()
    host_in, host_out, inputs = driver.pinned(2**20), driver.pinned(2**20), driver.device(2**20)

    def work() -> None:
        driver.compute(lambda: inputs.add_(1), mine, reads=[], writes=[])
        driver.copy(host_out, inputs, mine)

    with torch.inference_mode():
        work()
        finish(driver, mine)
        graph = driver.capture(work, pool, mine, name="test")

    def batch() -> None:
        driver.copy(inputs, host_in, mine)
        driver.launch(graph, mine)
        driver.record(done, mine)
        driver.synchronize(done)

    batch()
    compute(driver, lambda: sleep(1000), busy)
    driver.record(busy_done, busy)
    driver.synchronize(busy_done)
    gpu, host = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
    compute(driver, lambda: sleep(LONG_CYCLES), busy)
    driver.record(busy_done, busy)
    for number in range(20):
        host_in.fill_(number)
        batch()
        assert host_out[0] == number + 1
    assert not is_done(busy_done)
    driver.synchronize(busy_done)
    for before, after in ((gpu, torch.cuda.memory_stats()), (host, torch.cuda.host_memory_stats())):
        counts = [name for name in before if name.endswith(".allocated") or name.startswith("num_")]
        assert counts
        assert {name: before[name] for name in counts} == {name: after[name] for name in counts}


def test_captures_on_many_threads_beside_eager_work(driver: Driver) -> None:
    failures: list[BaseException] = []
    capturing = threading.Barrier(5)
    captured = threading.Event()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                driver.enter_thread()
                work()
            except BaseException as error:
                failures.append(error)
                captured.set()
                capturing.abort()

        return run

    def capture(number: int) -> None:
        stream, pool = driver.new_stream(str(number)), driver.new_pool()
        weights = np.random.default_rng(number).standard_normal((64, 64), dtype=np.float32)
        gpu_weights = to_gpu(driver, weights, stream)
        values, results = driver.device(4 * 32 * 64), driver.device(4 * 32 * 64)

        def work(rows: int) -> Callable[[], None]:
            def product() -> None:
                inner = torch.mm(floats(values, 32, 64)[:rows], floats(gpu_weights, 64, 64)).relu()
                floats(results, 32, 64)[:rows].copy_(inner)

            return product

        capturing.wait(LONGEST_WAIT_S)
        graphs = {rows: warm_and_capture(driver, work(rows), pool, stream) for rows in (32, 16, 8, 4, 1)}
        for turn in range(20):
            given = np.random.default_rng(turn).standard_normal((32, 64), dtype=np.float32)
            host = driver.pinned(given.nbytes)
            host.numpy()[:] = given.view(np.uint8).reshape(-1)
            for rows, graph in graphs.items():
                driver.copy(values, host, stream)
                driver.launch(graph, stream)
                got = from_gpu(driver, results, stream).view(np.float32).reshape(32, 64)[:rows]
                assert np.allclose(got, np.maximum(given[:rows] @ weights, 0), rtol=1e-4, atol=1e-4)

    def eager() -> None:
        stream, result = driver.new_stream("eager"), driver.device(4)
        capturing.wait(LONGEST_WAIT_S)
        turn = 0
        while turn < 50 or not captured.is_set():
            turn += 1

            def work(turn: int = turn) -> None:
                many = torch.full((turn % 97 + 1, 1000), 1.0, device=result.device)
                floats(result, 1).copy_(many.sum().view(1))

            compute(driver, work, stream)
            assert from_gpu(driver, result, stream).view(np.float32)[0] == (turn % 97 + 1) * 1000
            driver.device(4096)  # allocated and freed

    capturers = [threading.Thread(target=guarded(partial(capture, number))) for number in range(4)]
    beside = threading.Thread(target=guarded(eager))
    for thread in [*capturers, beside]:
        thread.start()
    for thread in capturers:
        thread.join(LONGEST_WAIT_S)
    captured.set()
    beside.join(LONGEST_WAIT_S)
    assert not failures
    assert not any(thread.is_alive() for thread in [*capturers, beside])


@pytest.mark.parametrize("captured", [False, True])
def test_products_round_to_tf32_only_where_a_model_asks(driver: Driver, captured: bool) -> None:
    if driver.info.capability < (8, 0):
        pytest.skip(f"{driver.info} has no TF32")
    stream, pool = driver.new_stream("test"), driver.new_pool()
    left = np.random.default_rng(5).standard_normal((256, 256), dtype=np.float32)
    values, result = to_gpu(driver, left, stream), driver.device(left.nbytes)
    exact = left.astype(np.float64) @ left.astype(np.float64)

    def worst(tf32: bool) -> float:
        def work() -> None:
            with matmul_precision(tf32):
                floats(result, 256, 256).copy_(floats(values, 256, 256) @ floats(values, 256, 256))

        if captured:
            driver.launch(warm_and_capture(driver, work, pool, stream), stream)
        else:
            compute(driver, work, stream)
        got = from_gpu(driver, result, stream).view(np.float32).reshape(256, 256)
        return float(np.abs(got - exact).max())

    assert worst(False) < 1e-4
    assert worst(True) > 1e-3
    assert worst(False) < 1e-4


_LOSE_IT = """
import torch
from serving.gpu.gpus import find_gpus
from storage.errors import DeviceLost

driver = find_gpus().driver(find_gpus().infos[0].index)
stream, event, host = driver.new_stream("test"), driver.new_event(), driver.pinned(8)
table, rows = torch.zeros(4, 4, device="cuda"), torch.full((2,), 1_000_000_000, device="cuda")
told = []
try:
    driver.compute(lambda: table.index_select(0, rows), stream, reads=[], writes=[])
    driver.record(event, stream)
    driver.synchronize(event)
except DeviceLost as error:
    told.append(str(error))
for call in (lambda: driver.device(8), lambda: driver.copy(host, host, stream), driver.memory):
    try:
        call()
    except DeviceLost as error:
        told.append(str(error))
assert len(told) == 4, told
assert len(set(told)) == 1, told
print("told:", told[0], flush=True)
"""


def test_a_gpu_that_failed_says_so_from_then_on() -> None:
    """Runs in a process of its own, because the GPU cannot be used afterwards."""
    done = subprocess.run([sys.executable, "-c", _LOSE_IT], capture_output=True, text=True, timeout=LONGEST_WAIT_S)
    assert "failed: CUDA error: device-side assert triggered" in done.stdout, done.stdout + done.stderr
