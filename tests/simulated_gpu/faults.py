"""What may go wrong with a GPU, to be asked for by a test."""

from __future__ import annotations

from storage.errors import DeviceLost, DeviceOutOfMemory


class Countdown:
    """Happens once, at the n-th time."""

    def __init__(self) -> None:
        self._left = 0

    def start(self, after: int) -> None:
        """after: 1 for the next time, 0 for never."""
        self._left = after

    def happens(self) -> bool:
        """Whether this is the time."""
        if not self._left:
            return False
        self._left -= 1
        return not self._left


class Faults:
    """refuse_capture: no work goes into a graph. refuse_kernels: no kernel of lookups compiles. refuse_peers: it cannot
    read the memory of other GPUs. lost: it is gone.
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
        """The n-th buffer from now on is not to be had; those after it are."""
        self._until_full.start(after)

    def run_out(self, next_compute: int = 1) -> None:
        """For the n-th compute, kernel or launch from now on there is no memory; for those after it there is."""
        self._until_run_out.start(next_compute)

    def lose(self, after: int = 1) -> None:
        """The n-th call from now on, of whatever kind, and all after it raise DeviceLost; what waits is never run."""
        self._until_lost.start(after)

    def forbid_allocation(self, forbidden: bool = True) -> None:
        """From now on whoever asks for a buffer makes a mistake: what serves has all that it needs."""
        self._no_allocation = forbidden

    def _check_lost(self) -> bool:
        """Counts a call; whether the GPU is lost with it."""
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
