"""Ends the process of a command as soon as its work is done."""

from __future__ import annotations

import atexit
import os
import select
import sys
import threading


def end_process(code: int) -> None:
    """Ends this process with an exit status, when its threads have ended and what was registered for its end has run.

    Python would also free each object of every library: with torch half a second of one core, and as much again for
    the supervisor of a server. Returns, so that Python ends the process, where a debugger or a profiler has something
    to say afterwards, or where what was printed cannot be written, which Python reports.
    """
    if sys.flags.inspect or sys.gettrace() or sys.getprofile() or _is_monitored():
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        if not is_reader_gone():
            return
    os._exit(code)


def is_reader_gone() -> bool:
    """Returns whether standard output is a pipe that nobody reads any more; what is written from now on is dropped."""
    try:
        output = sys.stdout.fileno()
        found = select.poll()
        found.register(output, 0)
        if not any(event & select.POLLERR for _, event in found.poll(0)):
            return False
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    except (AttributeError, OSError, ValueError):  # it is closed, or no file
        return False
    return True


def _is_monitored() -> bool:
    """Says whether a tool watches this process as Python 3.12 and later offer it."""
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(monitoring.get_tool(number) for number in range(6))
