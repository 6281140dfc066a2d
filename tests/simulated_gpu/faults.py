"""Injects faults of a GPU that a test asks for."""

from __future__ import annotations

from storage.errors import DeviceLost, DeviceOutOfMemory


class Countdown:
    """Fires once, at the n-th time."""

    def __init__(self) -> None:
        self._left = 0

    def start(self, after: int) -> None:
        """Sets the countdown. after: 1 for the next time, 0 for never."""
        self._left = after

    def happens(self) -> bool:
        """Counts one time; returns whether the fault happens now."""
        if not self._left:
            return False
        self._left -= 1
        return not self._left


class Faults:
    """The faults that a test can inject.

    refuse_capture: no work goes into a graph. refuse_kernels: no kernel of lookups compiles. refuse_peers: it cannot
    read the memory of other GPUs. lost: the GPU is lost.
    """

    def __init__(self, name: str) -> None:
        self.refuse_capture = False
        self.refuse_kernels = False
        self.refuse_peers = False
        self.lost = False
        self._name = name
        self._no_allocation = False
        self._until_lost = Countdown()
        self._until_full = Countdown()
        self._until_run_out = Countdown()

    def fail_allocation(self, after: int = 1) -> None:
        """Makes the n-th allocation from now on fail; later ones succeed."""
        self._until_full.start(after)

    def run_out(self, next_compute: int = 1) -> None:
        """Makes the n-th compute, kernel or launch from now on run out of memory; later ones succeed."""
        self._until_run_out.start(next_compute)

    def lose(self, after: int = 1) -> None:
        """Makes the n-th call of any kind and all later ones raise DeviceLost; pending operations never run."""
        self._until_lost.start(after)

    def forbid_allocation(self, forbidden: bool = True) -> None:
        """Makes every later allocation a mistake: a server that is serving has all the memory that it needs."""
        self._no_allocation = forbidden

    def _check_lost(self) -> bool:
        """Counts a call; returns whether the GPU is lost with it."""
        if not self.lost and self._until_lost.happens():
            self.lost = True
            return True
        return False

    def _raise_lost(self) -> None:
        if self.lost:
            raise DeviceLost(f"{self._name} is lost: the simulation was told so")

    def _check_memory(self, size: int, free: int) -> None:
        if self._until_full.happens() or size > free:
            raise DeviceOutOfMemory(f"{self._name}: no {size} bytes, {free} are free")

    def _check_run(self) -> None:
        if self._until_run_out.happens():
            raise DeviceOutOfMemory(f"{self._name}: no memory for what this computes: the simulation was told so")
