"""Paces background work: divides it into slices so short that requests do not notice them."""

from __future__ import annotations

import time
from collections.abc import Callable

# The longest that a slice should keep the interpreter, and how much of a core the work may take.
SLICE_S = 250e-6
DUTY = 0.5
# The share of work that nothing waits for. Requests of a busy server hold the GIL two thirds of the time. One that
# comes while background work holds it waits, and that wait grows with the share taken, not with how long it is taken.
QUIET_DUTY = 0.08


class Pace:
    """Counts the processor time of a loop and pauses after each slice of it, which lets other threads have the GIL.

    duty: share of a core that the loop may take; 1 means that nothing waits for the GIL, and no pause is made.
    hurry: while it returns False, the share is QUIET_DUTY. alone: while it returns True, no pause is made.
    """

    def __init__(
        self,
        duty: float = DUTY,
        slice_s: float = SLICE_S,
        *,
        hurry: Callable[[], bool] | None = None,
        alone: Callable[[], bool] | None = None,
    ) -> None:
        self._slice_s = slice_s
        self._pause = 1 / duty - 1
        self._hurry = hurry
        self._alone = alone
        self._since = time.thread_time()

    def step(self) -> None:
        """Pauses when a slice is over. Call it after each piece of work, which must be much shorter than a slice."""
        if self._pause == 0:
            return
        if self._alone is not None and self._alone():
            self._since = time.thread_time()
            return
        # Processor time, not elapsed time: a loop must not pause for the time that it waited for the GIL.
        spent = time.thread_time() - self._since
        if spent >= self._slice_s:
            hurried = self._hurry is None or self._hurry()
            time.sleep(spent * (self._pause if hurried else 1 / QUIET_DUTY - 1))
            self._since = time.thread_time()


UNHURRIED = Pace(duty=1)
