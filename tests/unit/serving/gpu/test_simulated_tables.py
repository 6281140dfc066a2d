"""Tests which store waits for which, when several have caches on the same GPUs and one of them is opened or closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.gpu.device_model import DeviceModel
from storage.hbm.gpus import gpus_of
from tests.simulated_gpu import SimulatedGpus
from tests.support.gpu.simulated_world import ModelWorld

ALL = 4 << 20
_LONG_S = 60.0
# A thread that does not wait finishes within a small part of this time.
_STILL_S = 0.2


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[tuple[ModelWorld, ModelWorld]]:
    """Makes two stores."""
    both = ModelWorld(tmp_path / "one"), ModelWorld(tmp_path / "two")
    yield both
    for world in both:
        world.close()


@pytest.fixture
def gpus() -> Iterator[SimulatedGpus]:
    gpus = SimulatedGpus(count=2, total_bytes=64 << 20)
    yield gpus
    for driver in gpus.drivers:
        driver.enter_thread()
        driver.finish()
        assert not driver.errors


class Barrier:
    """Blocks its first caller until it is opened, and no other caller."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self._open.wait(_LONG_S)

    def open(self) -> None:
        self._open.set()


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Runs the work on another thread, which has ended when the block ends. Raises what the work raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # Raised again below.
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(_LONG_S)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def through(work: Callable[[], object]) -> None:
    """Asserts that the work ends, on another thread."""
    with beside(work) as thread:
        thread.join(_LONG_S / 4)
        assert not thread.is_alive(), "it waits for another store"


def test_a_cache_that_waits_for_its_ssd_to_close_hinders_no_other_store(
    worlds: tuple[ModelWorld, ModelWorld], gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = gpus.driver(0)
    barrier = Barrier()
    closing = worlds[0].model(driver, ALL)
    monkeypatch.setattr("storage.hbm.worker.save_hot_ids", barrier)
    with beside(closing.close):
        try:
            assert barrier.reached.wait(_LONG_S)
            through(lambda: worlds[1].model(driver, ALL).close())
        finally:
            barrier.open()
    assert not gpus_of(worlds[0].store).tiers
    assert not gpus_of(worlds[1].store).tiers


def test_a_cache_that_is_being_opened_hinders_no_other_gpu_and_what_is_free_is_divided_in_turn(
    worlds: tuple[ModelWorld, ModelWorld], gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = gpus.driver(0), gpus.driver(1)
    barrier = Barrier()
    monkeypatch.setattr(first, "load_kernels", barrier)
    made: list[DeviceModel] = []
    one, two = worlds
    with beside(lambda: made.append(one.model(first, None))):
        try:
            assert barrier.reached.wait(_LONG_S)
            through(lambda: two.model(second, ALL).close())
            with beside(lambda: made.append(two.model(first, None))) as opening:
                opening.join(_STILL_S)
                assert opening.is_alive()
                assert not gpus_of(two.store).tiers
                barrier.open()
        finally:
            barrier.open()
    tiers = one.tier(), two.tier()
    # The second store gets a share of what the first has left.
    assert tiers[1].hbm_bytes < tiers[0].hbm_bytes
    for model in made:
        model.close()
