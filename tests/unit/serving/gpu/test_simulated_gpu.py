"""The simulated GPU itself: for each of its rules a program that keeps it, and one that does not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.simulated_gpu import (
    LifetimeError,
    MisuseError,
    RaceError,
    SimulatedDriver,
    SimulatedGpus,
    overlap,
)

SIZE = 64
SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2), ("random", 3)]


@pytest.fixture(params=SCHEDULES, ids=lambda param: f"{param[0]}{param[1]}")
def driver(request: pytest.FixtureRequest) -> SimulatedDriver:
    schedule, seed = request.param
    return entered(schedule=schedule, seed=seed)


def entered(**options: Any) -> SimulatedDriver:
    made = SimulatedGpus(**options).driver(0)
    made.enter_thread()
    return made


def doubled(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source * 2)


class Parts:
    """The streams and the memory of a small program."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.one = driver.new_stream("one")
        self.two = driver.new_stream("two")
        self.sent = driver.new_event()
        self.done = driver.new_event()
        self.host_in, self.host_out = driver.pinned(SIZE), driver.pinned(SIZE)
        self.inside, self.result = driver.device(SIZE), driver.device(SIZE)

    def double(self, stream: Any) -> None:
        self.driver.compute(
            partial(doubled, self.result, self.inside), stream, reads=[self.inside], writes=[self.result]
        )

    def run(self, value: int, *, waits: bool = True, synchronizes: bool = True) -> torch.Tensor:
        """Copies the input in on one stream, then computes and copies out on the other."""
        driver = self.driver
        self.host_in.fill_(value)
        driver.copy(self.inside, self.host_in, self.one)
        driver.record(self.sent, self.one)
        if waits:
            driver.wait(self.two, self.sent)
        self.double(self.two)
        driver.copy(self.host_out, self.result, self.two)
        driver.record(self.done, self.two)
        if synchronizes:
            driver.synchronize(self.done)
        return self.host_out.clone()


def test_a_right_program_computes_what_a_gpu_would(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    for value in range(20):
        assert (parts.run(value) == 2 * value).all()
    driver.finish()
    assert driver.counts["copy"] == 40
    assert driver.counts["compute"] == driver.counts["synchronize"] == 20


def test_a_missing_wait_is_a_race_at_the_call_that_lacks_it(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    with pytest.raises(RaceError, match=r"'doubled' on stream 'two' reads device .*copy .*on stream 'one' writes it"):
        parts.run(1, waits=False)
    # Also when whoever called swallows it.
    assert [type(error) for error in driver.errors] == [RaceError]
    with pytest.raises(RaceError, match="doubled"):
        driver.finish()


def test_a_write_races_with_a_read(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    parts.run(1, synchronizes=False)
    with pytest.raises(RaceError, match=r"to device .*writes device .*'doubled' on stream 'two' reads it"):
        driver.copy(parts.inside, parts.host_in, parts.one)


def test_reads_never_race_nor_do_other_bytes(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    third = driver.device(SIZE)
    driver.record(parts.sent, parts.one)
    driver.compute(lambda: None, parts.one, reads=[parts.inside], writes=[])
    driver.compute(lambda: None, parts.two, reads=[parts.inside[:8]], writes=[third[:32]])
    driver.compute(lambda: None, parts.one, reads=[parts.inside[4:]], writes=[third[32:]])
    driver.finish()


def test_bytes_written_in_parts_are_remembered_in_parts(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    for at in range(0, SIZE, 8):
        driver.copy(parts.inside[at : at + 8], parts.host_in[at : at + 8], (parts.one, parts.two)[at // 8 % 2])
    driver.copy(parts.host_out[8:16], parts.inside[8:16], parts.two)
    with pytest.raises(RaceError):
        driver.copy(parts.host_out[4:8], parts.inside[12:16], parts.one)


@pytest.mark.parametrize("threads", ["together", "apart"])
def test_many_pieces_are_forgotten_only_when_they_are_known(threads: str) -> None:
    driver = entered(threads=threads)
    parts = Parts(driver)
    target, source = driver.device(1000), driver.pinned(1000)
    for at in range(0, 1000, 2):
        driver.copy(target[at : at + 1], source[at : at + 1], parts.one)
    with pytest.raises(RaceError):
        driver.copy(target[:1], source[:1], parts.two)
    driver.record(parts.sent, parts.one)
    driver.synchronize(parts.sent)
    for at in range(0, 1000, 2):
        driver.copy(target[at : at + 1], source[at : at + 1], parts.two)
    with pytest.raises(RaceError):
        driver.copy(target[500:501], source[500:501], parts.one)


def test_an_event_holds_what_was_before_it_and_no_more(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    driver.record(parts.sent, parts.one)
    driver.copy(parts.inside, parts.host_in, parts.one)
    driver.wait(parts.two, parts.sent)
    with pytest.raises(RaceError):
        parts.double(parts.two)


def test_recording_again_changes_no_earlier_wait(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    driver.record(parts.sent, parts.one)
    driver.wait(parts.two, parts.sent)
    driver.copy(parts.inside, parts.host_in, parts.one)
    driver.record(parts.sent, parts.one)
    with pytest.raises(RaceError):
        parts.double(parts.two)
    driver.wait(parts.two, parts.sent)
    parts.double(parts.two)


def test_what_a_wait_brings_goes_on_through_further_events(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    third = driver.new_stream("three")
    driver.copy(parts.inside, parts.host_in, parts.one)
    driver.record(parts.sent, parts.one)
    driver.wait(parts.two, parts.sent)
    driver.record(parts.done, parts.two)
    driver.wait(third, parts.done)
    parts.double(third)
    driver.finish()


def test_nothing_waits_for_an_event_that_was_never_recorded(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    with pytest.raises(MisuseError, match="never recorded"):
        driver.wait(parts.one, parts.sent)
    with pytest.raises(MisuseError, match="never recorded"):
        driver.synchronize(parts.sent)


def test_synchronizing_orders_what_the_host_puts_on_any_stream_later(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    driver.copy(parts.inside, parts.host_in, parts.one)
    driver.record(parts.sent, parts.one)
    driver.synchronize(parts.sent)
    parts.double(parts.two)
    driver.finish()


# The host.


def test_the_host_sees_no_result_before_it_synchronizes(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    early = parts.run(3, synchronizes=False)
    assert (early == 0xFF).all()
    assert torch.isnan(early.view(torch.float32)).all()
    driver.synchronize(parts.done)
    assert (parts.host_out == 6).all()


def test_a_synchronize_before_the_last_copy_shows_none_of_it(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    parts.run(1, synchronizes=False)
    driver.copy(parts.host_out[:8], parts.result[:8], parts.two)
    driver.synchronize(parts.done)
    assert (parts.host_out[:8] == 0xFF).all()
    assert (parts.host_out[8:] == 2).all()


def test_staging_is_reused_too_early(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    parts.host_in.fill_(1)
    driver.copy(parts.inside, parts.host_in, parts.one)
    driver.record(parts.sent, parts.one)
    parts.host_in[5] = 2
    with pytest.raises(RaceError, match=r"the host wrote to pinned .*\[0:64\] while copy .*copies from it"):
        driver.synchronize(parts.sent)
    assert len(driver.errors) == 1


def test_staging_reused_too_early_is_seen_without_a_synchronize(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    driver.copy(parts.inside, parts.host_in, parts.one)
    parts.host_in.fill_(2)
    with pytest.raises(RaceError, match="copies from it"):
        driver.copy(parts.inside, parts.host_in, parts.one)


def test_other_staging_may_be_written_meanwhile(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    parts.host_in[:32] = 1
    driver.copy(parts.inside[:32], parts.host_in[:32], parts.one)
    parts.host_in[32:] = 2
    driver.copy(parts.inside[32:], parts.host_in[32:], parts.one)
    driver.finish()


def test_the_host_writes_where_results_come(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    parts.run(1, synchronizes=False)
    parts.host_out[3] = 0
    with pytest.raises(RaceError, match=r"the host wrote to pinned .*copies to it"):
        driver.synchronize(parts.done)


def test_pinned_bytes_go_out_and_come_in_again(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    parts.host_in.fill_(7)
    driver.copy(parts.inside, parts.host_in, parts.one)
    driver.copy(parts.host_in[:32], parts.result[:32], parts.one)  # zeros
    driver.copy(parts.result, parts.host_in, parts.one)
    driver.copy(parts.host_out, parts.result, parts.one)
    driver.record(parts.done, parts.one)
    driver.synchronize(parts.done)
    assert parts.host_out.tolist() == [0] * 32 + [7] * 32
    driver.finish()


# Work.


def test_work_that_changes_what_it_only_reads() -> None:
    driver = entered(schedule="lazy")
    parts = Parts(driver)
    inside = parts.inside
    driver.compute(lambda: inside.add_(1), parts.one, reads=[inside], writes=[])
    driver.record(parts.done, parts.one)
    with pytest.raises(RaceError, match="wrote to device"):
        driver.synchronize(parts.done)


def test_work_that_does_not_write_all_that_it_says(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    result = parts.result
    driver.compute(lambda: result[:8].fill_(1), parts.one, reads=[], writes=[result])
    driver.copy(parts.host_out, result, parts.one)
    driver.record(parts.done, parts.one)
    driver.synchronize(parts.done)
    assert parts.host_out.tolist() == [1] * 8 + [0xFF] * (SIZE - 8)


def test_work_in_place_keeps_what_it_reads(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    inside = parts.inside
    for _ in range(3):
        driver.compute(lambda: inside.add_(1), parts.one, reads=[inside], writes=[inside])
    driver.copy(parts.host_out, inside, parts.one)
    driver.record(parts.done, parts.one)
    driver.synchronize(parts.done)
    assert (parts.host_out == 3).all()


@pytest.mark.parametrize("hold", [lambda x: x, lambda x: [x], lambda x: {"x": (1, [x[8:]])}, lambda x: partial(str, x)])
def test_work_that_holds_what_it_does_not_name(hold: Callable[[torch.Tensor], object]) -> None:
    driver = entered()
    parts = Parts(driver)
    held = hold(parts.inside)
    with pytest.raises(MisuseError, match=r"'<lambda>' holds device .* not among its reads"):
        driver.compute(lambda: str(held), parts.one, reads=[], writes=[parts.result])


class Holder:
    """Hides a tensor in an object that strict checks do not look into."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_strict_work_sees_nothing_that_it_does_not_name() -> None:
    driver = entered(strict=True)
    parts = Parts(driver)
    assert (parts.run(5) == 10).all()
    hidden, result = Holder(parts.inside), parts.result
    driver.compute(lambda: result.copy_(hidden.tensor), parts.two, reads=[], writes=[result])
    driver.copy(parts.host_out, result, parts.two)
    driver.record(parts.done, parts.two)
    driver.synchronize(parts.done)
    assert (parts.host_out == 0xFF).all()
    assert (parts.inside == 5).all()
    driver.compute(lambda: hidden.tensor.fill_(1), parts.two, reads=[], writes=[result])
    driver.record(parts.done, parts.two)
    with pytest.raises(RaceError, match="wrote to device"):
        driver.synchronize(parts.done)
    assert (parts.inside == 5).all()


def test_what_work_raises_comes_out_where_it_is_waited_for() -> None:
    def fails() -> None:
        raise ZeroDivisionError("no")

    driver = entered(schedule="lazy")
    parts = Parts(driver)
    driver.record(parts.sent, parts.one)
    driver.compute(fails, parts.one, reads=[], writes=[parts.result])
    driver.record(parts.done, parts.one)
    driver.synchronize(parts.sent)
    with pytest.raises(ZeroDivisionError):
        driver.synchronize(parts.done)
    driver.synchronize(parts.done)
    driver.finish()
    eager = entered(schedule="eager")
    stream = eager.new_stream("s")
    with pytest.raises(ZeroDivisionError):
        eager.compute(fails, stream, reads=[], writes=[])


def test_work_runs_in_the_mode_that_it_was_put_in() -> None:
    driver = entered(schedule="lazy")
    parts = Parts(driver)
    modes: list[tuple[bool, bool]] = []
    with torch.inference_mode():
        driver.compute(
            lambda: modes.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled())),
            parts.one,
            reads=[],
            writes=[],
        )
    driver.finish()
    assert modes == [(True, False)]


def test_work_does_not_call_the_driver(driver: SimulatedDriver) -> None:
    parts = Parts(driver)

    def put() -> None:
        driver.compute(lambda: str(driver.memory()), parts.one, reads=[], writes=[])
        driver.finish()

    with pytest.raises(MisuseError, match="work that runs on the device called memory"):
        put()


# Memory.


def test_copies_are_between_host_and_device(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    other = entered().device(SIZE)
    driver.enter_thread()
    wrong: list[tuple[torch.Tensor, torch.Tensor, str]] = [
        (parts.inside, parts.result, "between host and device"),
        (parts.host_in, parts.host_out, "between host and device"),
        (parts.inside, torch.zeros(SIZE, dtype=torch.uint8), "no memory of a buffer"),
        (other, parts.host_in, "no memory of a buffer"),
        (parts.inside[:8], parts.host_in, "a copy of 64 bytes to 8"),
        (parts.inside[::2], parts.host_in[::2], "contiguous: False"),
    ]
    for target, source, message in wrong:
        with pytest.raises(MisuseError, match=message):
            driver.copy(target, source, parts.one)
    with pytest.raises(MisuseError, match="expected: device buffer"):
        driver.compute(lambda: None, parts.one, reads=[parts.host_in], writes=[])
    driver.copy(parts.inside[:0], parts.host_in[:0], parts.one)
    assert not driver.waiting


def test_buffers_are_zeros_aligned_and_counted_while_a_view_lives(driver: SimulatedDriver) -> None:
    before = driver.memory()
    buffers = [driver.device(size) for size in (1, 255, 1000)] + [driver.pinned(10)]
    assert all(buffer.data_ptr() % 256 == 0 and not buffer.any() for buffer in buffers)
    now = driver.memory()
    assert (now.device, now.pinned, now.free) == (1256, 10, before.free - 1256)
    array = buffers[1][8:16].view(torch.float32).numpy()
    buffers.clear()
    assert driver.live_bytes == {"device": 255, "pinned": 0}
    del array
    assert driver.live_bytes == {"device": 0, "pinned": 0}
    assert not driver.errors


def test_a_buffer_is_dropped_while_work_uses_it(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    parts.run(1, synchronizes=False)
    parts.result = driver.device(SIZE)
    assert [type(error) for error in driver.errors] == [LifetimeError]
    with pytest.raises(LifetimeError, match=r"dropped, and nothing says that compute 'doubled' .* is complete"):
        driver.finish()


def test_a_buffer_is_dropped_when_its_work_is_known_to_be_complete(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    for value in range(3):
        assert (parts.run(value) == 2 * value).all()
        parts.inside, parts.result = driver.device(SIZE), driver.device(SIZE)
    driver.finish()
    assert driver.memory().device == 2 * SIZE


def test_nothing_is_kept_by_a_driver_that_is_idle(driver: SimulatedDriver) -> None:
    parts = Parts(driver)
    parts.run(1)
    parts.run(2)
    del parts
    gc.collect()
    assert driver.live_bytes == {"device": 0, "pinned": 0}
    driver.finish()


# Schedules.


def test_lazy_runs_what_an_event_needs_and_nothing_more() -> None:
    driver = entered(schedule="lazy")
    parts = Parts(driver)
    driver.copy(parts.inside[:8], parts.host_in[:8], parts.one)
    driver.record(parts.sent, parts.one)
    driver.copy(parts.inside[8:16], parts.host_in[8:16], parts.one)
    driver.copy(parts.result, parts.host_in, parts.two)
    driver.wait(parts.two, parts.sent)
    driver.copy(parts.host_out, parts.result, parts.two)
    driver.record(parts.done, parts.two)
    assert driver.waiting == 4
    driver.synchronize(parts.done)
    assert driver.waiting == 1
    assert [executed.stream for executed in driver.trace] == ["one", "two", "two"]


def test_random_schedules_differ_and_each_is_the_same_again() -> None:
    def order(seed: int) -> list[tuple[str, str]]:
        driver = entered(schedule="random", seed=seed)
        parts = [Parts(driver) for _ in range(3)]
        for _ in range(5):
            for part in parts:
                driver.copy(part.inside, part.host_in, part.one)
                driver.record(part.sent, part.one)
                driver.wait(part.two, part.sent)
                part.double(part.two)
                driver.record(part.done, part.two)
                driver.wait(part.one, part.done)
        for part in parts:
            driver.synchronize(part.done)
        return [(executed.stream, executed.name) for executed in driver.trace]

    orders = [order(seed) for seed in range(8)]
    assert len({tuple(each) for each in orders}) > 4
    assert order(3) == orders[3]


def test_the_trace_says_what_could_run_at_the_same_time(driver: SimulatedDriver) -> None:
    one, two = Parts(driver), Parts(driver)
    one.run(1, synchronizes=False)
    two.run(1, synchronizes=False)
    driver.synchronize(one.done)
    driver.synchronize(two.done)
    driver.copy(one.inside, one.host_in, two.one)
    driver.finish()
    trace = sorted(driver.trace, key=lambda executed: (executed.stream_number, executed.number))
    first, _, _, other, again, *_ = trace
    assert (first.kind, first.start, first.end) == ("copy", 0, 1)
    assert overlap(first, other)
    assert not overlap(trace[0], trace[1])
    assert not overlap(first, again)
    assert again.start == 3
