"""Starts the ranks of a training on this machine, and starts all of them again when one is killed.

It says to each process what torchrun says (trainer/rank_place.py). Unlike torchrun it tells a rank that was killed from
one that ended with an error, which would come again: only the first is worth another start.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from torch._C._distributed_c10d import TCPStore

from trainer.rank_place import RankPlace, environment_of

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.05
# Ranks notice within moments that another one has gone, and then say so and end.
_ENDING_S = 20.0
_STOPPED = 130


class RankProcesses:
    """Runs a command as `count` ranks, each in a process of its own. say: gets a line about each restart.

    max_restarts: how often all ranks are started again because one was killed.
    """

    def __init__(
        self, command: Sequence[str], count: int, *, max_restarts: int, say: Callable[[str], None] = print
    ) -> None:
        self._command = list(command)
        self._count = count
        self._max_restarts = max_restarts
        self._say = say
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = False

    def run(self) -> int:
        """Returns the exit code of the command: 0 when all ranks are done, and that of a rank that failed. Ctrl-C and
        SIGTERM go to each rank: 130 where it was interrupted. 1 where ranks were killed too often.
        """
        # The ranks meet at a store that outlives each of them. Port 0: one that is free.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(each, self._pass_on) for each in signals]
        try:
            for restarts in range(self._max_restarts + 1):
                with tempfile.TemporaryDirectory(prefix="emberline-ranks-") as errors:
                    killed, code = self._run_once(store.port, restarts, Path(errors))
                if not killed:
                    return code
                left = restarts < self._max_restarts
                again = f"starting all ranks again ({restarts + 1} of {self._max_restarts})" if left else "giving up"
                self._say(f"{killed}; {again}")
            return 1
        finally:
            self._kill()
            for each, handler in zip(signals, before, strict=True):
                signal.signal(each, handler)

    def _run_once(self, port: int, restarts: int, errors: Path) -> tuple[str, int]:
        """Starts all ranks and waits for their end; returns how one was killed, if one was, and the exit code."""
        self._processes = []
        for rank in range(self._count):
            self._processes.append(self._start(rank, port, restarts, errors))
        if self._stopped:  # not all of them were there yet
            self._kill()
            self._say("interrupted")
        deadline: float | None = None
        while True:
            codes = [each.poll() for each in self._processes]
            ended = [code for code in codes if code is not None]
            killed = [(rank, -code) for rank, code in enumerate(codes) if code is not None and code < 0]
            failed = [code for code in ended if code > 0]
            if killed and not self._stopped:
                # What the others have done since the last commit is lost anyway.
                self._kill()
                return _description(*killed[0]), 1
            if len(ended) == self._count:
                return "", max([*failed, *(_STOPPED for _ in killed)], default=0)
            if failed or killed:
                deadline = deadline or time.monotonic() + _ENDING_S
                if time.monotonic() > deadline and not self._stopped:
                    self._kill()
                    return "", max(failed, default=1)
            time.sleep(_LOOK_S)

    def _start(self, rank: int, port: int, restarts: int, errors: Path) -> subprocess.Popen[bytes]:
        place = RankPlace(rank, self._count, self._count, restarts, errors=errors)
        return subprocess.Popen(
            self._command,
            env=environment_of(place, port),
            stdin=subprocess.DEVNULL,
            # In a session of its own, so that Ctrl-C reaches each rank once, from here.
            start_new_session=True,
            preexec_fn=_before_command,
        )

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        for each in self._processes:
            if each.poll() is None:
                each.send_signal(number)

    def _kill(self) -> None:
        for each in self._processes:
            if each.poll() is None:
                each.kill()
        for each in self._processes:
            each.wait()


def _description(rank: int, number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = " (the kernel sends it when memory is used up)" if number == signal.SIGKILL else ""
    return f"rank {rank} was ended by {name}{hint}"


def _before_command() -> None:
    # Where this process is killed, the ranks save their state and end.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT))
    # Ctrl-C waits until the command has been imported, which then takes it without a traceback.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
