"""A program in a terminal of its own, as a person would use it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

# Sequences that move the cursor or set colours, and the bell.
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\r\x07]")


class Terminal:
    """Runs a program in a pseudo-terminal of 80 by 24, or of another size. A context manager."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        size: tuple[int, int] = (24, 80),
        *,
        is_job: bool = False,
    ) -> None:
        """Starts it. is_job: as a shell starts a job, which Ctrl-Z may stop; otherwise in a session of its own."""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.process = subprocess.Popen(
            # In control of the program's session, as fish wants it.
            [*([] if is_job else ["setsid", "--ctty"]), *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            process_group=0 if is_job else None,
        )
        os.close(slave)
        #: What was printed so far.
        self.raw = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """Returns what was printed so far, without escape sequences."""
        return _ESCAPES.sub(b"", self.raw).decode(errors="replace")

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._master, keys.encode())

    @property
    def echoes(self) -> bool:
        """Says whether the terminal shows what is typed and hands over whole lines, as a shell expects it."""
        local = termios.tcgetattr(self._master)[3]
        return bool(local & termios.ECHO and local & termios.ICANON)

    def interrupt(self) -> None:
        """Presses Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def clear(self) -> None:
        """Forgets what was printed so far."""
        self.raw = b""

    def wait_for(self, wanted: str, timeout_s: float = 60.0) -> str:
        """Waits until a text stands in what was printed since the last `clear`, and returns all of that."""
        self._wait_until(lambda: wanted in self.text, repr(wanted), timeout_s)
        return self.text

    def wait_for_bytes(self, wanted: bytes, timeout_s: float = 60.0) -> None:
        """Waits until these bytes, such as a sequence that moves the cursor, were printed since the last `clear`."""
        self._wait_until(lambda: wanted in self.raw, repr(wanted), timeout_s)

    def wait_end(self, timeout_s: float = 60.0) -> int:
        """Waits until the program ends; returns its exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-2000:]
            self._read(0.1)
        while self._read(0.0):
            pass
        return self.process.returncode

    def _wait_until(self, has_come: Callable[[], bool], wanted: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not has_come():
            assert time.monotonic() < deadline, f"{wanted} does not come: {self.text[-2000:]}"
            assert self._read(0.2) or self.process.poll() is None, f"it ended with {self.text[-2000:]}"

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._master], [], [], wait_s)[0]:
            return False
        try:
            more = os.read(self._master, 1 << 16)
        except OSError:  # the program has closed its end
            return False
        self.raw += more
        return bool(more)
