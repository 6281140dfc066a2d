"""Reads keys that are pressed in a terminal, without waiting for Enter."""

from __future__ import annotations

import os
import select
import sys
import time
from types import TracebackType

#: Ctrl-Z, which comes as a key: who reads it puts the terminal in order before the process stops.
SUSPEND = "\x1a"


class Keys:
    """Reads keys from standard input while it is open, where that is a terminal. A context manager."""

    def __init__(self) -> None:
        self._settings: list[object] | None = None

    def __enter__(self) -> Keys:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Lets keys come one by one, unseen."""
        if sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self._settings = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
            changed = termios.tcgetattr(sys.stdin)
            changed[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)

    def close(self) -> None:
        """Gives the terminal its settings back."""
        if self._settings is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)  # type: ignore[arg-type]
            self._settings = None

    def wait(self, seconds: float) -> str:
        """Returns the next key; "" when none was pressed in this time."""
        if self._settings is None:
            time.sleep(seconds)
            return ""
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return ""
        read = os.read(sys.stdin.fileno(), 1).decode("latin-1")
        if not read:  # the terminal has gone
            raise KeyboardInterrupt
        return read
