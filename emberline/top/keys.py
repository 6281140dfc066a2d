"""Reads keys that are pressed in a terminal, without waiting for Enter."""

from __future__ import annotations

import os
import select
import sys
import time
from types import TracebackType


class Keys:
    """Reads keys from standard input while it is open, where that is a terminal. A context manager."""

    def __init__(self) -> None:
        self._settings: list[object] | None = None

    def __enter__(self) -> Keys:
        if sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self._settings = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settings is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)  # type: ignore[arg-type]

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
