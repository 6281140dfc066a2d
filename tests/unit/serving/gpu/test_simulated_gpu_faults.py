"""Tests what other tests need from the simulated GPU: faults, threads, several GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from storage.errors import CaptureError, ConfigError, DeviceLost, DeviceOutOfMemory
from tests.simulated_gpu import LifetimeError, MisuseError, RaceError, SimulatedDriver, SimulatedGpus

SIZE = 64


def entered(**options: Any) -> SimulatedDriver:
    made = SimulatedGpus(**options).driver(0)
    made.enter_thread()
    return made


def in_thread(work: Callable[[], object]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_found_gpus() -> None:
    gpus = SimulatedGpus(2, total_bytes=1000)
    assert [info.index for info in gpus.infos] == [0, 1]
    assert gpus.why_none == ""
    assert gpus.driver(1) is gpus.driver(1)
    assert gpus.driver(1).info is gpus.infos[1]
    with pytest.raises(ConfigError, match="there is no GPU 2"):
        gpus.driver(2)


def test_no_gpus() -> None:
    gpus = SimulatedGpus(why_none="no driver is installed")
    assert (len(gpus.infos), gpus.why_none) == (0, "no driver is installed")
    with pytest.raises(ConfigError, match="no driver is installed"):
        gpus.driver(0)
    assert SimulatedGpus(0).why_none
    old = SimulatedGpus(1, why_none="its capability is too low")
    assert len(old.infos) == 1
    with pytest.raises(ConfigError, match="too low"):
        old.driver(0)


def test_memory_runs_out() -> None:
    driver = entered(total_bytes=1000)
    first = driver.device(600)
    with pytest.raises(DeviceOutOfMemory, match="no 600 bytes, 400 are free"):
        driver.device(600)
    driver.pinned(2000)
    del first
    assert driver.memory().free == 1000
    driver.device(1000)


def test_an_allocation_fails() -> None:
    driver = entered()
    driver.fail_allocation(after=2)
    driver.device(8)
    with pytest.raises(DeviceOutOfMemory):
        driver.pinned(8)
    driver.device(8)
    assert not driver.errors


def test_allocations_are_forbidden() -> None:
    driver = entered()
    driver.forbid_allocation()
    with pytest.raises(MisuseError, match="8 device bytes"):
        driver.device(8)
    driver.forbid_allocation(False)
    driver.pinned(8)
    assert len(driver.errors) == 1


def test_a_computation_runs_out_of_memory() -> None:
    driver = entered()
    stream, buffer = driver.new_stream("s"), driver.device(8)

    def put() -> None:
        driver.compute(lambda: buffer.fill_(1), stream, reads=[], writes=[buffer])

    graph = driver.capture(put, driver.new_pool(), stream, name="g")
    driver.run_out(next_compute=2)
    put()
    with pytest.raises(DeviceOutOfMemory):
        driver.launch(graph, stream)
    driver.launch(graph, stream)
    driver.run_out()
    with pytest.raises(DeviceOutOfMemory):
        driver.capture(put, driver.new_pool(), stream, name="g")
    driver.capture(put, driver.new_pool(), stream, name="g")
    driver.finish()


def test_captures_are_refused() -> None:
    driver = entered()
    stream, pool = driver.new_stream("s"), driver.new_pool()
    driver.refuse_capture = True
    with pytest.raises(CaptureError):
        driver.capture(lambda: None, pool, stream, name="g")
    driver.refuse_capture = False
    driver.capture(lambda: None, pool, stream, name="g")


@pytest.mark.parametrize("after", range(1, 9))
def test_a_gpu_is_lost(after: int) -> None:
    driver = entered()
    calls = 0

    def call(name: str, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return getattr(driver, name)(*arguments, **options)

    def program() -> torch.Tensor:
        stream, event = call("new_stream", "s"), call("new_event")
        host, buffer = call("pinned", SIZE), call("device", SIZE)
        call("copy", host, buffer, stream)
        call("record", event, stream)
        call("synchronize", event)
        call("memory")
        return host

    driver.lose(after)
    with pytest.raises(DeviceLost, match=r"GPU 0 \(Simulated\) is lost"):
        program()
    assert calls == after
    assert driver.lost
    for again in (driver.memory, driver.enter_thread, lambda: driver.device(8)):
        with pytest.raises(DeviceLost):
            again()
    # No thread can wait for the GPU any more, so dropping its memory is no mistake.
    assert driver.live_bytes == {"pinned": 0, "device": 0}
    assert not driver.waiting
    driver.finish()


def test_what_waits_on_a_lost_gpu_never_arrives() -> None:
    driver = entered(schedule="lazy")
    stream, event = driver.new_stream("s"), driver.new_event()
    host, buffer = driver.pinned(SIZE), driver.device(SIZE)
    driver.copy(host, buffer, stream)
    driver.record(event, stream)
    driver.lose()
    with pytest.raises(DeviceLost):
        driver.synchronize(event)
    assert (host == 0xFF).all()
    driver.finish()


# Threads.


def test_threads_enter_first() -> None:
    gpus = SimulatedGpus(2)
    one, two = gpus.driver(0), gpus.driver(1)
    with pytest.raises(MisuseError, match=r"memory on GPU 0 \(Simulated\) by a thread that did not enter it"):
        in_thread(one.memory)
    one.enter_thread()
    two.enter_thread()
    two.memory()
    with pytest.raises(MisuseError, match="did not enter it last"):
        one.memory()


def test_handles_belong_to_their_driver() -> None:
    gpus = SimulatedGpus(2)
    one, two = gpus.driver(0), gpus.driver(1)
    one.enter_thread()
    stream, event, pool = one.new_stream("s"), one.new_event(), one.new_pool()
    graph = one.capture(lambda: None, pool, stream, name="g")
    two.enter_thread()
    own: Any = two.new_stream("own")
    wrong: list[Callable[[], object]] = [
        lambda: two.record(two.new_event(), stream),
        lambda: two.record(event, own),
        lambda: two.wait(own, event),
        lambda: two.synchronize(event),
        lambda: two.launch(graph, own),
        lambda: two.capture(lambda: None, pool, own, name="g"),
        lambda: two.record(own, own),
    ]
    for call in wrong:
        with pytest.raises(MisuseError, match=r"is no \w+ of GPU 1"):
            call()


def handed_over(driver: SimulatedDriver) -> None:
    """Waits for a copy on another thread, which then notifies this thread, which reuses the buffer."""
    one, two, event = driver.new_stream("one"), driver.new_stream("two"), driver.new_event()
    host, other, buffer = driver.pinned(SIZE), driver.pinned(SIZE), driver.device(SIZE)
    driver.copy(buffer, host, one)
    driver.record(event, one)

    def waits() -> None:
        driver.enter_thread()
        driver.synchronize(event)

    in_thread(waits)
    driver.copy(buffer, other, two)
    driver.finish()


def test_threads_together_tell_each_other_what_they_waited_for() -> None:
    handed_over(entered())


def test_threads_apart_wait_each_for_itself() -> None:
    with pytest.raises(RaceError):
        handed_over(entered(threads="apart"))


def test_a_thread_apart_knows_what_was_known_when_it_came() -> None:
    driver = entered(threads="apart")
    one, two, event = driver.new_stream("one"), driver.new_stream("two"), driver.new_event()
    host, buffer, out = driver.pinned(SIZE), driver.device(SIZE), driver.pinned(SIZE)
    driver.copy(buffer, host, one)
    driver.record(event, one)
    driver.synchronize(event)

    def reads() -> None:
        driver.enter_thread()
        driver.copy(out, buffer, two)

    in_thread(reads)
    driver.finish()


def test_a_buffer_may_be_dropped_by_any_thread_once_one_has_waited() -> None:
    driver = entered(threads="apart")
    stream, event = driver.new_stream("s"), driver.new_event()
    held = [driver.pinned(SIZE), driver.device(SIZE)]
    driver.copy(held[1], held[0], stream)
    driver.record(event, stream)

    def waits() -> None:
        driver.enter_thread()
        driver.synchronize(event)

    in_thread(waits)
    held.clear()
    driver.finish()


def test_a_mistake_is_not_lost_with_the_thread_that_made_it() -> None:
    driver = entered()
    stream = driver.new_stream("s")

    def drops() -> None:
        driver.enter_thread()
        driver.copy(driver.device(SIZE), driver.pinned(SIZE), stream)

    in_thread(drops)
    assert {type(error) for error in driver.errors} == {LifetimeError}


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="eager, lazy, random"):
        SimulatedGpus(schedule="late")
    with pytest.raises(ValueError, match="together or apart"):
        SimulatedGpus(threads="alone")
