"""Work beside live requests, in slices so short that no request notices them."""

from __future__ import annotations

import time

# The longest that a slice should keep the interpreter, and how much of a core the work may take.
SLICE_S = 250e-6
DUTY = 0.5


class Pace:
    """Counts the processor time of a loop and pauses after each slice of it, which lets other threads have the GIL.

    duty: share of a core that the loop may take; 1 means that nobody waits for the GIL, and no pause is made.
    """

    def __init__(self, duty: float = DUTY, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._pause = 1 / duty - 1
        self._since = time.thread_time()

    def step(self) -> None:
        """Called after each piece of work, a piece being well below a slice."""
        if self._pause == 0:
            return
        # Processor time, not time: a loop that waits for the GIL must not pause for it too.
        spent = time.thread_time() - self._since
        if spent >= self._slice_s:
            time.sleep(spent * self._pause)
            self._since = time.thread_time()


UNHURRIED = Pace(duty=1)
