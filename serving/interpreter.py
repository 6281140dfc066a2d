"""Configures Python and OpenMP in a process that only serves; a program that embeds a `Server` sets its own."""

from __future__ import annotations

import gc
import sys
from collections.abc import MutableMapping

# Seconds for which a thread may keep the GIL once another wants it. An update computes in Python beside the event loop
# and the sessions, each of which takes the GIL several times a request: with Python's 5 ms, one busy thread costs a
# request many times its own work. Below half a millisecond the switches themselves begin to cost.
GIL_SLICE_S = 0.0005


# Variables that GNU's and Intel's OpenMP read when torch loads them: a thread that waits for the others sleeps. By
# default it spins first, on a core that another session or the event loop could use: on a shared machine a product of
# two threads then takes many times as long.
SLEEPING_WAITS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def wait_without_spinning(environment: MutableMapping[str, str]) -> None:
    """Sets OpenMP's variables in an environment, before torch is imported; values that are set already stay."""
    for name, value in SLEEPING_WAITS.items():
        environment.setdefault(name, value)


def share_gil() -> None:
    """Shortens the time for which a thread that computes keeps the GIL."""
    sys.setswitchinterval(GIL_SLICE_S)


def freeze_heap() -> None:
    """Excludes the objects that exist now, mostly code, from later garbage collections.

    A full collection walks every object of every library and stops all threads for 100 to 200 ms; afterwards it walks
    only newer objects.
    """
    gc.collect()
    gc.freeze()


def thaw_heap() -> None:
    """Undoes `freeze_heap` at the end of the process.

    Native modules look for leaks then, and frozen objects are never freed.
    """
    gc.unfreeze()
