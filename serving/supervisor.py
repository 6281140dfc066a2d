"""Runs a server in a process of its own, and another one whenever that process crashes.

This process takes the ports, so that connections wait in them while no server accepts any. It imports everything that
the server needs, so that a new process has it from the first moment: a fork takes milliseconds, and imports seconds.
It starts no thread, no event loop and no GPU, because a fork would not copy them in working order.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Set

from serving.config import ServerConfig
from serving.hang_up import ignore_strange_hang_up
from serving.ports import Ports, open_ports

logger = logging.getLogger("emberline.serving")

# So many crashes within this time end the supervisor: whoever starts it waits longer before the next try.
MAX_CRASHES, WITHIN_S = 5, 60.0

_PR_SET_PDEATHSIG = 1


def supervise(config: ServerConfig) -> None:
    """Runs a server in a child process until SIGINT or SIGTERM; a second signal ends both processes at once.

    SIGHUP stops it too, where a terminal controls it.

    Raises ConfigError when a port is taken, and in the child what `serving.foreground.serve` raises. Ends the process
    with the exit status of the child, if that was asked to stop, failed before it listened for the first time, or was
    the last of too many; 128 and the number of a signal that ended it.
    """
    ignore_strange_hang_up()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            # The kernel would discard them if this is the first process of a container, and imports take seconds.
            signal.signal(number, lambda received, _: os._exit(128 + received))
    with open_ports(config) as ports:
        from serving.foreground import serve_for_supervisor, stop_signals
        from serving.interpreter import freeze_heap, thaw_heap

        # Objects that no collection walks stay in memory that both processes share.
        freeze_heap()
        keeper = _Keeper(ports, stop_signals())
        try:
            while not keeper.is_done:
                listening = keeper.fork()
                if listening is not None:
                    serve_for_supervisor(config, ports, keeper.crashes, listening)
                    return
                keeper.wait()
        finally:
            thaw_heap()
    if keeper.status:
        sys.exit(keeper.status)


class _Keeper:
    """Forks server processes one after the other, passes signals on to them, and decides what follows their end."""

    def __init__(self, ports: Ports, signals: Set[signal.Signals]) -> None:
        """Blocks the signals in this process, and in the ones that it forks."""
        #: Whether there is no further process to start; `status` is the exit status then.
        self.is_done = False
        self.status = 0
        #: Processes that crashed so far.
        self.crashes = 0
        self._ports = ports
        self._signals = {*signals, signal.SIGCHLD}
        self._recent: deque[float] = deque(maxlen=MAX_CRASHES)
        self._is_stopping = False
        self._child = 0
        self._began = 0.0
        # The child writes a byte into this pipe when it listens.
        self._notice = -1
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)

    def fork(self) -> Callable[[], None] | None:
        """Starts a server process. Returns None in this process, and in the new one what it calls when it listens."""
        own = os.getpid()
        self._notice, end = os.pipe()
        self._began = time.monotonic()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._notice)
            _end_with(own)
            faulthandler.enable()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            return functools.partial(_note, end)
        os.close(end)
        return None

    def wait(self) -> None:
        """Waits until the server process has ended, and passes signals on to it meanwhile."""
        while (code := self._ended()) is None:
            if signal.sigwait(self._signals) != signal.SIGCHLD:
                self._stop()
        has_listened = self._has_listened()
        self.status = code if code >= 0 else 128 - code
        if code == 0:
            self.is_done = True
        elif self._is_stopping or not (has_listened or self.crashes):
            self.is_done = True
            if code < 0:  # in other cases it has said why
                logger.error("the server process %d %s", self._child, _words(code))
        else:
            self._crashed(code)

    def _has_listened(self) -> bool:
        # Something that the process left behind may hold the other end open.
        os.set_blocking(self._notice, False)
        try:
            return os.read(self._notice, 1) != b""
        except BlockingIOError:
            return False
        finally:
            os.close(self._notice)

    def _ended(self) -> int | None:
        """Returns the exit code of the server process, None while it runs.

        It collects every other process that has ended too: the first one of a container inherits those.
        """
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self._child:
                found = os.waitstatus_to_exitcode(status)

    def _stop(self) -> None:
        if self._is_stopping:
            os.kill(self._child, signal.SIGKILL)
            os._exit(1)
        self._is_stopping = True
        # Otherwise new connections would wait here after the server has stopped to listen.
        self._ports.close()
        os.kill(self._child, signal.SIGTERM)

    def _crashed(self, code: int) -> None:
        now = time.monotonic()
        self.crashes += 1
        self._recent.append(now)
        what, then = "the server process %d %s after %.1f s; %s", "it is started again"
        if len(self._recent) == MAX_CRASHES and now - self._recent[0] < WITHIN_S:
            self.is_done = True
            then = f"it is not started again, because that was crash {MAX_CRASHES} within {WITHIN_S:g} s"
        logger.error(what, self._child, _words(code), now - self._began, then)


def _words(code: int) -> str:
    """Says how a process ended. code: as of `os.waitstatus_to_exitcode`."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the kernel sends it when memory is used up; its log says so)" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"


def _note(end: int) -> None:
    os.write(end, b"1")
    os.close(end)


def _end_with(parent: int) -> None:
    """Has the kernel kill this process as soon as its parent ends, however that happens."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before
        os._exit(1)
