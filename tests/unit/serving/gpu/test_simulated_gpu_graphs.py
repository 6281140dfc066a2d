"""Captured graphs of the simulated GPU, and its kernel that unpacks inputs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from serving.gpu.driver import Assembly
from storage.errors import CaptureError
from tests.simulated_gpu import AssemblyError, LifetimeError, MisuseError, RaceError, SimulatedDriver, SimulatedGpus

SIZE = 64


@pytest.fixture(params=["eager", "lazy", "random"])
def driver(request: pytest.FixtureRequest) -> SimulatedDriver:
    made = SimulatedGpus(schedule=request.param, seed=5).driver(0)
    made.enter_thread()
    return made


class Context:
    """Captures on a stream a graph that doubles its input and copies it back."""

    def __init__(self, driver: SimulatedDriver, pool: Any) -> None:
        self.driver = driver
        self.pool = pool
        self.stream = driver.new_stream("context")
        self.done = driver.new_event()
        self.host_in, self.host_out = driver.pinned(SIZE), driver.pinned(SIZE)
        self.inside, self.result = driver.device(SIZE), driver.device(SIZE)
        self.ran = 0
        self.graph = self.capture()

    def put(self) -> None:
        inside, result = self.inside, self.result

        def work() -> None:
            self.ran += 1
            result.copy_(inside * 2)

        self.driver.copy(self.inside, self.host_in, self.stream)
        self.driver.compute(work, self.stream, reads=[inside], writes=[result])
        self.driver.copy(self.host_out, self.result, self.stream)

    def capture(self, work: Callable[[], object] | None = None) -> Any:
        return self.driver.capture(work or self.put, self.pool, self.stream, name="double")

    def launch(self) -> None:
        self.driver.launch(self.graph, self.stream)
        self.driver.record(self.done, self.stream)

    def run(self, value: int) -> torch.Tensor:
        self.host_in.fill_(value)
        self.launch()
        self.driver.synchronize(self.done)
        return self.host_out


@pytest.fixture
def context(driver: SimulatedDriver) -> Context:
    return Context(driver, driver.new_pool())


def test_a_graph_runs_when_it_is_launched(driver: SimulatedDriver, context: Context) -> None:
    driver.finish()
    assert context.ran == 0
    for value in range(1, 20):
        assert (context.run(value) == 2 * value).all()
    assert context.ran == 19
    driver.finish()
    assert {executed.kind for executed in driver.trace} == {"launch"}
    assert driver.counts["launch"] == 19


def test_a_launch_is_ordered_by_all_that_is_in_it(driver: SimulatedDriver, context: Context) -> None:
    other, back = driver.new_stream("other"), driver.new_event()
    fresh, out = driver.pinned(SIZE), driver.pinned(SIZE)
    context.launch()
    with pytest.raises(RaceError, match="launch 'double' on stream 'context' writes it"):
        driver.copy(out, context.result, other)
    unrelated = driver.device(SIZE)
    with pytest.raises(RaceError, match="launch 'double' on stream 'context' reads it"):
        driver.copy(context.host_in, unrelated, other)
    driver.wait(other, context.done)
    driver.copy(context.inside, fresh, other)
    with pytest.raises(RaceError, match="launch 'double' on stream 'context' writes device"):
        context.launch()
    driver.record(back, other)
    driver.wait(context.stream, back)
    context.launch()


def test_weights_change_only_when_no_launch_reads_them(driver: SimulatedDriver) -> None:
    context = Context(driver, driver.new_pool())
    uploads, ready = driver.new_stream("uploads"), driver.new_event()
    weight_slot, weights = driver.device(SIZE), driver.pinned(SIZE)
    inside, result = context.inside, context.result

    def put() -> None:
        driver.copy(inside, context.host_in, context.stream)
        driver.compute(
            lambda: result.copy_(inside * weight_slot), context.stream, reads=[inside, weight_slot], writes=[result]
        )
        driver.copy(context.host_out, result, context.stream)

    context.graph = context.capture(put)

    def upload(value: int) -> None:
        weights.fill_(value)
        driver.copy(weight_slot, weights, uploads)
        driver.record(ready, uploads)
        driver.synchronize(ready)

    for value in (3, 4):
        upload(value)
        driver.wait(context.stream, ready)
        assert (context.run(5) == 5 * value).all()
    assert not driver.errors
    context.launch()
    with pytest.raises(
        RaceError, match=r"on stream 'uploads' writes device .*launch 'double' on stream 'context' reads"
    ):
        upload(6)


def test_graphs_of_a_pool_take_turns(driver: SimulatedDriver) -> None:
    pool = driver.new_pool()
    one, two = Context(driver, pool), Context(driver, pool)
    one.launch()
    with pytest.raises(RaceError, match="launch 'double' on stream 'context' writes pool 1"):
        two.launch()
    driver.wait(two.stream, one.done)
    two.launch()
    driver.synchronize(two.done)
    one.launch()
    third = Context(driver, driver.new_pool())
    third.launch()
    assert len(driver.errors) == 1


def test_the_host_meets_launches_as_it_does_copies(driver: SimulatedDriver, context: Context) -> None:
    context.launch()
    assert (context.host_out == 0xFF).all()
    context.host_in.fill_(1)
    with pytest.raises(RaceError, match="while launch 'double' on stream 'context' copies from it"):
        driver.synchronize(context.done)


def test_bytes_that_come_out_within_a_graph_go_in_again(driver: SimulatedDriver, context: Context) -> None:
    def put() -> None:
        context.put()
        driver.copy(context.inside, context.host_out, context.stream)
        driver.copy(context.host_in, context.inside, context.stream)

    context.graph = context.capture(put)
    context.run(4)
    assert (context.host_in == 8).all()
    driver.finish()


# What does not go into a graph.


def test_what_no_graph_holds_ends_the_capture(driver: SimulatedDriver, context: Context) -> None:
    other = driver.new_stream("other")
    context.launch()
    forbidden: list[Callable[[], object]] = [
        lambda: driver.synchronize(context.done),
        lambda: driver.record(context.done, context.stream),
        lambda: driver.wait(context.stream, context.done),
        lambda: driver.pinned(8),
        lambda: driver.device(8),
        lambda: driver.launch(context.graph, context.stream),
        lambda: context.capture(lambda: None),
        lambda: driver.copy(context.inside, context.host_in, other),
    ]
    for call in forbidden:
        with pytest.raises(CaptureError, match="while double is captured"):
            context.capture(partial(call))

        def swallows(call: Callable[[], object] = call) -> None:
            try:
                call()
            except CaptureError:
                context.put()

        with pytest.raises(CaptureError, match="double does not go into a graph"):
            context.capture(swallows)
    # The stream and the thread go on as before.
    driver.synchronize(context.done)
    assert (context.run(3) == 6).all()
    assert driver.live_graphs == 1
    driver.finish()


def test_an_exception_ends_the_capture(driver: SimulatedDriver, context: Context) -> None:
    def fails() -> None:
        context.put()
        raise KeyError("x")

    with pytest.raises(KeyError):
        context.capture(fails)
    assert (context.run(3) == 6).all()


def test_a_capture_is_the_calling_threads(driver: SimulatedDriver, context: Context) -> None:
    results: list[object] = []

    def elsewhere() -> None:
        driver.enter_thread()
        other = Context(driver, driver.new_pool())
        results.append(other.run(4).tolist())
        try:
            context.launch()
        except MisuseError as error:
            results.append(str(error))

    def work() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        context.put()

    context.graph = context.capture(work)
    assert results[0] == [8] * SIZE
    assert "while another thread captures" in str(results[1])
    assert (context.run(3) == 6).all()


# How long things live.


def test_a_graph_does_not_keep_its_buffers(driver: SimulatedDriver, context: Context) -> None:
    context.run(1)
    context.inside = driver.device(SIZE)
    with pytest.raises(LifetimeError, match=r"graph 'double': it uses device .* has been dropped"):
        context.launch()


def test_a_buffer_goes_while_a_launch_waits(driver: SimulatedDriver, context: Context) -> None:
    context.launch()
    context.result = driver.device(SIZE)
    with pytest.raises(LifetimeError, match="nothing says that launch 'double'"):
        driver.finish()


def test_graphs_live_as_long_as_their_handles(driver: SimulatedDriver, context: Context) -> None:
    context.run(1)
    graphs = [context.capture() for _ in range(3)]
    assert driver.live_graphs == 4
    graphs.clear()
    assert driver.live_graphs == 1
    context.graph = None
    assert driver.live_graphs == 0
    driver.finish()


def test_a_graph_goes_while_it_runs(driver: SimulatedDriver, context: Context) -> None:
    context.launch()
    context.graph = None
    with pytest.raises(LifetimeError, match="graph 'double' was dropped, and nothing says that launch"):
        driver.finish()


def test_all_goes_with_the_context(driver: SimulatedDriver) -> None:
    context = Context(driver, driver.new_pool())
    context.run(1)
    del context
    gc.collect()
    assert driver.live_graphs == 0
    assert driver.live_bytes == {"pinned": 0, "device": 0}


# The kernel.

TABLE = np.array([(0, 8, 3, 0), (256, 4, 2, 1), (512, 3, 0, 1), (768, 0, 0, 0)], np.int64)
ROWS = 6


class Packed:
    """A batch of four inputs, three of two users' items."""

    def __init__(self, driver: SimulatedDriver, table: np.ndarray = TABLE) -> None:
        self.driver = driver
        self.stream, self.done = driver.new_stream("s"), driver.new_event()
        self.host, self.host_target = driver.pinned(512), driver.pinned(1024)
        self.host_stamp, self.host_table = driver.pinned(8), driver.pinned(table.nbytes)
        self.staging, self.target, self.stamp = driver.device(512), driver.device(1024), driver.device(8)
        self.table = driver.device(table.nbytes)
        self.host_table.numpy()[:] = table.view(np.uint8).reshape(-1)
        driver.copy(self.table, self.host_table, self.stream)
        tabled = self.table.view(torch.int64).view(-1, 4)
        self.assembly = Assembly(self.staging, tabled, self.target, self.stamp, 8)
        self.header = self.host.numpy()[:64].view(np.int64)
        self.item = np.arange(1, 25, dtype=np.uint8).reshape(3, 8)
        self.user = np.arange(101, 109, dtype=np.uint8).reshape(2, 4)
        self.byte = np.arange(201, 207, dtype=np.uint8).reshape(2, 3)
        self.fill(64, [1, 0, 1], 2)

    def fill(self, users_at: int, users: list[int], count: int) -> None:
        host = self.host.numpy()
        self.header[:] = (77, 3, count, users_at, 128, 160, 176, 192)
        host[64:76].view(np.int32)[:] = users
        host[128:152] = self.item.reshape(-1)
        host[160:168] = self.user.reshape(-1)
        host[176:182] = self.byte.reshape(-1)

    def run(self, rows: int = ROWS, assembly: Assembly | None = None) -> None:
        driver = self.driver
        driver.copy(self.staging, self.host, self.stream)
        driver.assemble(assembly or self.assembly, rows, self.stream)
        driver.copy(self.host_target, self.target, self.stream)
        driver.copy(self.host_stamp, self.stamp, self.stream)
        driver.record(self.done, self.stream)
        driver.synchronize(self.done)

    def rows(self, at: int, row_bytes: int, rows: int) -> np.ndarray:
        return self.host_target.numpy()[at : at + row_bytes * rows].reshape(rows, row_bytes)


def test_inputs_are_unpacked(driver: SimulatedDriver) -> None:
    packed = Packed(driver)
    for _ in range(2):
        packed.run()
        assert packed.host_stamp.view(torch.int64).item() == 77
        assert np.array_equal(packed.rows(0, 8, 3), packed.item)
        assert np.array_equal(packed.rows(256, 4, 3), packed.user[[1, 0, 1]])
        assert np.array_equal(packed.rows(512, 3, 3), packed.byte[[1, 0, 1]])
        assert not packed.rows(0, 8, ROWS)[3:].any()
        assert not packed.rows(256, 4, ROWS)[3:].any()
        assert not packed.host_target[512 + 3 * ROWS :].any()
    packed.header[1] = 1
    packed.run()
    assert np.array_equal(packed.rows(0, 8, 1), packed.item[:1])
    assert not packed.rows(0, 8, ROWS)[1:].any()
    driver.finish()


def test_without_users_every_section_has_all_rows(driver: SimulatedDriver) -> None:
    packed = Packed(driver)
    packed.header[1:3] = (2, 0)
    packed.run(2)
    assert np.array_equal(packed.rows(0, 8, 2), packed.item[:2])
    assert np.array_equal(packed.rows(256, 4, 2), packed.user)
    # Fewer rows than the batch: the first ones.
    packed.run(1)
    assert np.array_equal(packed.rows(256, 4, 1), packed.user[:1])


def test_the_kernel_may_read_pinned_staging_itself(driver: SimulatedDriver) -> None:
    packed = Packed(driver)
    direct = Assembly(packed.host, packed.assembly.table, packed.target, packed.stamp, 8)
    driver.assemble(direct, ROWS, packed.stream)
    driver.copy(packed.host_target, packed.target, packed.stream)
    driver.record(packed.done, packed.stream)
    driver.synchronize(packed.done)
    assert np.array_equal(packed.rows(0, 8, 3), packed.item)
    driver.assemble(direct, ROWS, packed.stream)
    packed.host[100] = 9
    with pytest.raises(RaceError, match=r"while assemble .*copies from it"):
        driver.finish()


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (1, -1, "the header says -1 rows"),
        (2, -2, "the header says 3 rows of -2 users"),
        (2, 1, "users of rows are 0 to 1; there are 1"),
        (3, 66, "no multiples of 4"),
        (3, 508, "the users of rows: bytes 508 to 520"),
        (4, 496, "input 0: section: bytes 496 to 520"),
        (4, -8, "input 0: section: bytes -8"),
        (5, 162, "input 1: section: bytes 162 to 170 .*no multiples of 4"),
    ],
)
def test_a_header_that_makes_no_sense(driver: SimulatedDriver, word: int, value: int, message: str) -> None:
    packed = Packed(driver)
    packed.header[word] = value
    with pytest.raises(AssemblyError, match=message):
        packed.run()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1020, 4, 2, 0), "input 1: tensor: bytes 1020 to 1044 of device"),
        ((-4, 4, 2, 0), "input 1: tensor: bytes -4"),
        ((258, 4, 2, 0), "no multiples of 4"),
        ((256, 4, 5, 0), "log2 of the unit 5"),
        ((256, 4, 2, 2), "side 2"),
        ((256, 16, 2, 0), "rows of 16 bytes"),
        ((40, 4, 2, 0), "inputs 0 and 1 overlap"),
    ],
)
def test_a_table_that_makes_no_sense(driver: SimulatedDriver, row: tuple[int, ...], message: str) -> None:
    table = TABLE.copy()
    table[1] = row
    packed = Packed(driver, table)
    with pytest.raises(AssemblyError, match=message):
        packed.run()


def test_assemblies_are_checked_at_once(driver: SimulatedDriver) -> None:
    packed = Packed(driver)
    staging, table, target, stamp = packed.staging, packed.assembly.table, packed.target, packed.stamp
    wrong = [
        (Assembly(staging, packed.table, target, stamp, 8), "not .inputs, 4. int64"),
        (Assembly(staging, table, target, packed.target[:16], 8), "a stamp of 16 bytes"),
        (Assembly(staging, table, target, packed.target[8:16], 8), "overlap"),
        (Assembly(staging, table, staging, stamp, 8), "overlap"),
        (Assembly(staging, table, packed.host_target, stamp, 8), "expected: device"),
    ]
    for assembly, message in wrong:
        with pytest.raises(MisuseError, match=message):
            packed.run(assembly=assembly)
