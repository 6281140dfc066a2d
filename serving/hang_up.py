"""Decides what SIGHUP means to a server: the end of its terminal, or nothing."""

from __future__ import annotations

import os
import signal


def ignore_strange_hang_up() -> None:
    """Ignores SIGHUP where no terminal can have sent it.

    Log rotation and operators send it to services, as many of them open their logs again then. Here a file of a log is
    opened anew for each write, so nothing has to be done. Call it on the main thread.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL and not _has_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _has_terminal() -> bool:
    """Returns whether a terminal controls this process, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
