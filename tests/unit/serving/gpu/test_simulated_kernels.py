"""Kernels and zeros on the simulated GPU: they compute what the host does, and for each rule a call that breaks it."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import DeviceLost, DeviceOutOfMemory
from storage.hbm import lookup_kernels
from storage.hbm.device import KernelCall
from storage.specs import ROW_TYPES
from tests.simulated_gpu import LifetimeError, MisuseError, RaceError, SimulatedDriver, SimulatedGpus
from tests.support.gpu.beside_host import (
    CHAINS,
    BesideHost,
    bytes_of,
    check_gather,
    check_pool,
    check_publish,
    make_bags,
    make_replica,
    translated,
)
from tests.support.gpu.model_of_replica import SUM, WEIGHTED, Batch, Feature

SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
ROWS = 12
STRIDE = 16


@pytest.fixture(params=SCHEDULES, ids=lambda param: f"{param[0]}{param[1]}")
def driver(request: pytest.FixtureRequest) -> SimulatedDriver:
    schedule, seed = request.param
    return entered(schedule=schedule, seed=seed)


def entered(**options: Any) -> SimulatedDriver:
    made = SimulatedGpus(**options).driver(0)
    made.enter_thread()
    return made


def finish(driver: SimulatedDriver, *streams: Any) -> None:
    for stream in streams:
        event = driver.new_event()
        driver.record(event, stream)
        driver.synchronize(event)


class Published:
    """Makes a slab of three slots, a list of one row for it, and a stream."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.stream, self.other = driver.new_stream("one"), driver.new_stream("other")
        self.slab = driver.device(4 * STRIDE)
        self.host = driver.pinned(64)
        self.list = driver.device(64)

    def send(self, slot: int = 2, row: int = 0, count: int = 1, value: int = 5) -> None:
        """Sends a count at 0, an entry at 16 and a row at 32."""
        words = self.host.numpy()[:32].view(np.int64)
        words[:] = count, 0, slot, row
        self.host.numpy()[32:] = value
        self.driver.copy(self.list, self.host, self.stream)

    def call(self, **changes: Any) -> KernelCall:
        arguments: dict[str, Any] = {
            "entries": self.list[16:32],
            "count": self.list[:8],
            "room": 1,
            "staging": self.list[32:48],
            "staged": 1,
            "slab": self.slab,
            "slots": 3,
            "stride": STRIDE,
        }
        return lookup_kernels.publish_rows(**(arguments | changes))

    def run(self, call: KernelCall) -> None:
        """Launches a kernel and waits until it has finished."""
        self.driver.kernel(call, self.stream)
        finish(self.driver, self.stream)

    def fetch(self) -> list[int]:
        """Returns the first byte of each slot."""
        host = self.driver.pinned(self.slab.nbytes)
        self.driver.copy(host, self.slab, self.stream)
        finish(self.driver, self.stream)
        return host[::STRIDE].tolist()


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_lookups_and_lists_compute_what_the_host_does(driver: SimulatedDriver, row_type: str) -> None:
    beside = BesideHost(driver)
    for chain in CHAINS:
        check_gather(beside, row_type, 5, "fp32", chain, rows=ROWS, ids=20)
        check_pool(beside, row_type, 20, chain, rows=ROWS, ids=20)
    check_gather(beside, row_type, 16, "bf16", (), rows=ROWS, ids=20)
    check_publish(beside, 12, 9)
    driver.finish()
    assert driver.counts["kernel"] > 50


def test_a_kernel_runs_in_its_turn(driver: SimulatedDriver) -> None:
    on = Published(driver)
    on.send(slot=2, value=5)
    driver.kernel(on.call(), on.stream)
    finish(driver, on.stream)
    on.send(slot=3, value=6)
    driver.kernel(on.call(), on.stream)
    assert on.fetch() == [0, 0, 5, 6]
    driver.finish()


def test_a_captured_kernel_does_what_its_lists_say_at_each_launch(driver: SimulatedDriver) -> None:
    on, pool = Published(driver), driver.new_pool()

    def work() -> None:
        driver.zero(on.slab[: 2 * STRIDE], on.stream)
        driver.kernel(on.call(), on.stream)

    graph = driver.capture(work, pool, on.stream, name="publish")
    for slot, expected in ((1, [0, 5, 0, 0]), (3, [0, 0, 0, 5]), (2, [0, 0, 5, 5])):
        on.send(slot=slot)
        driver.launch(graph, on.stream)
        assert on.fetch() == expected
    driver.finish()


def test_what_calls_share_may_be_used_at_once_and_the_rest_may_not(driver: SimulatedDriver) -> None:
    on = Published(driver)
    on.send()
    finish(driver, on.stream)
    driver.kernel(on.call(), on.stream)
    driver.kernel(on.call(), on.other)  # lists are read alone
    with pytest.raises(RaceError, match="publish_rows"):
        on.send()  # behind the kernel of its own stream, not behind that of the other one
    finish(driver, on.stream, on.other)
    on.send()
    with pytest.raises(RaceError, match=r"publish_rows.* reads .*copy"):
        driver.kernel(on.call(), on.other)


def test_what_a_kernel_only_reads_it_may_not_write(driver: SimulatedDriver) -> None:
    on = Published(driver)
    on.send()
    call = on.call()
    with pytest.raises(RaceError, match=r"'publish_rows' wrote to device .*, which is not among its writes"):
        on.run(replace(call, reads=(*call.reads, on.slab), shared=()))


def test_what_a_kernel_says_that_it_writes_it_writes_in_full(driver: SimulatedDriver) -> None:
    on = Published(driver)
    on.send(slot=1)
    driver.kernel(replace(on.call(), writes=(on.slab,), shared=()), on.stream)
    assert on.fetch() == [255, 5, 255, 255]


def test_a_kernel_is_given_buffers_of_the_gpu_that_it_names(driver: SimulatedDriver) -> None:
    on = Published(driver)
    on.send()
    with pytest.raises(MisuseError, match=r"what a kernel reads .* is pinned .*expected: device buffer"):
        driver.kernel(on.call(staging=on.host[32:48]), on.stream)
    with pytest.raises(MisuseError, match="no memory of a buffer"):
        driver.kernel(on.call(slab=torch.zeros(64, dtype=torch.uint8)), on.stream)
    with pytest.raises(MisuseError, match=r"'publish_rows' is given device .*, and does not name it"):
        driver.kernel(replace(on.call(), shared=(on.slab[:STRIDE],)), on.stream)
    with pytest.raises(MisuseError, match="no kernel is called 'publish_columns'"):
        driver.kernel(replace(on.call(), name="publish_columns"), on.stream)
    assert len(driver.errors) == 4


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"slots": 4}, "the slab"),
        ({"staged": 2}, "staged rows"),
        ({"stride": 32}, "staged rows"),
    ],
)
def test_sizes_are_those_of_the_buffers(driver: SimulatedDriver, changes: dict[str, int], what: str) -> None:
    on = Published(driver)
    on.send()
    with pytest.raises(MisuseError, match=what):
        on.run(on.call(**changes))


def test_a_list_has_the_entries_that_it_counts(driver: SimulatedDriver) -> None:
    on = Published(driver)
    on.send(count=2)
    driver.kernel(on.call(), on.stream)  # room for one
    assert on.fetch() == [0, 0, 5, 0]
    with pytest.raises(MisuseError, match="for the entries, and does not name it"):
        on.run(on.call(room=2))


def test_shared_buffers_stay_until_the_kernel_is_known_to_be_complete(driver: SimulatedDriver) -> None:
    on = Published(driver)
    on.send()
    finish(driver, on.stream)
    driver.kernel(on.call(), on.stream)
    driver.zero(on.list, on.stream)
    del on.slab
    gc.collect()
    with pytest.raises(LifetimeError, match=r"was dropped, and nothing says that kernel 'publish_rows' .* is complete"):
        driver.finish()


class LookedUp:
    """Looks up a batch of the host on a GPU, too.

    outputs: the outputs on the GPU.
    """

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver, self.beside = driver, BesideHost(driver)
        with self.beside.in_place_of_host(ROWS):
            self.on, known = make_replica("fp16", 8, 20)
            features = [Feature(self.on, 1, make_bags(self.on, known, ROWS, 9), pooling) for pooling in (SUM, WEIGHTED)]
            self.batch = Batch(features, (2, 1))
            self.batch.look_up(None)
        batch = self.batch
        self.header, self.misses = self.beside.bring(batch.header), driver.device(batch.misses.nbytes)
        self.count, self.table = driver.device(8), driver.device(batch.table.nbytes)
        self.outputs = tuple(driver.device(output.nbytes) for output in batch.outputs)
        self.shared: tuple[torch.Tensor, ...] = ()
        self.renew()

    def renew(self) -> None:
        """Makes another replica with the same rows; no reference to the previous one is kept."""
        self.shared = tuple(self.beside.bring(tensor) for tensor in self.on.shared)
        own, gpu = (*self.on.shared, *self.batch.outputs), (*self.shared, *self.outputs)
        at = {tensor.data_ptr(): there for tensor, there in zip(own, gpu, strict=True)}
        self.write(translated(self.batch.table, at))

    def write(self, table: torch.Tensor) -> None:
        host = self.driver.pinned(table.nbytes)
        host.numpy()[:] = bytes_of(table)
        self.driver.copy(self.table, host, self.beside.stream)
        self.beside.finish()

    def call(self, **changes: Any) -> KernelCall:
        arguments: dict[str, Any] = {
            "row_type": "fp16",
            "features": self.table,
            "feature_count": 2,
            "header": self.header,
            "rows": ROWS,
            "misses": self.misses,
            "miss_count": self.count,
            "miss_room": len(self.batch.misses),
            "use_every": 0,
            "outputs": self.outputs,
            "shared": self.shared,
        }
        return lookup_kernels.pool(**(arguments | changes))

    def run(self, **changes: Any) -> None:
        self.driver.zero(self.count, self.beside.stream)
        self.driver.kernel(self.call(**changes), self.beside.stream)
        self.beside.finish()

    def check(self) -> None:
        assert self.beside.fetch(self.count).view(np.int64)[0] == int(self.batch.miss_count[0])
        for there, expected in zip(self.outputs, self.batch.outputs, strict=True):
            assert np.array_equal(self.beside.fetch(there), bytes_of(expected))


@pytest.mark.slow
def test_a_captured_lookup_follows_its_table_to_another_replica(driver: SimulatedDriver) -> None:
    on, pool = LookedUp(driver), driver.new_pool()

    def work() -> None:
        driver.zero(on.count, on.beside.stream)
        driver.kernel(on.call(), on.beside.stream)

    graph = driver.capture(work, pool, on.beside.stream, name="lookup")
    for _ in range(3):
        driver.launch(graph, on.beside.stream)
        on.beside.finish()
        on.check()
        on.renew()
        gc.collect()
    driver.finish()


def test_a_replica_that_went_is_not_looked_up_in(driver: SimulatedDriver) -> None:
    on = LookedUp(driver)
    on.run()
    on.check()
    on.shared = ()
    gc.collect()
    with pytest.raises(LifetimeError, match=r"the index of feature 0, .* are no buffer's that lives"):
        on.run()


def test_a_lookup_names_what_its_table_and_header_lead_to(driver: SimulatedDriver) -> None:
    on = LookedUp(driver)
    with pytest.raises(MisuseError, match="for the states of feature 1, and does not name it"):
        on.run(outputs=on.outputs[:3])
    with pytest.raises(MisuseError, match=r"for the (ids|ranges) of feature \d, and does not name it"):
        on.run(header=on.header[: len(on.header) // 3])
    with pytest.raises(MisuseError, match=r"the list of misses, .* are no buffer"):
        on.run(miss_room=len(on.batch.misses) + 1)
    with pytest.raises(MisuseError, match=r"the output of feature 0, .* are no buffer's"):
        on.run(rows=10 * ROWS)


def test_zeros(driver: SimulatedDriver) -> None:
    on = Published(driver)
    for at in range(1, 4):
        on.send(slot=at)
        driver.kernel(on.call(), on.stream)
        finish(driver, on.stream)
    driver.zero(on.slab[STRIDE : 2 * STRIDE], on.stream)
    driver.zero(on.slab[:0], on.stream)
    assert on.fetch() == [0, 0, 5, 5]
    driver.zero(on.list[:4], on.stream)
    with pytest.raises(RaceError, match=r"zero .* writes"):
        driver.zero(on.list[2:8], on.other)
    with pytest.raises(MisuseError, match="expected: device buffer"):
        driver.zero(on.host, on.stream)
    with pytest.raises(MisuseError, match="expected: device buffer"):
        driver.zero(on.slab[::2], on.stream)


def test_faults_come_to_kernels_and_zeros_too(driver: SimulatedDriver) -> None:
    on = Published(driver)
    driver.run_out()
    with pytest.raises(DeviceOutOfMemory):
        driver.kernel(on.call(), on.stream)
    driver.lose()
    for put in (partial(driver.kernel, on.call()), partial(driver.zero, on.slab)):
        with pytest.raises(DeviceLost):
            put(on.stream)
