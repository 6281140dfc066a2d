"""Runs the periodic background tasks of a store on one thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from storage.errors import StoreError

_log = logging.getLogger(__name__)


class Upkeep:
    """Runs tasks periodically or when they are woken, on one thread. An error of a task does not end the thread.

    tasks: name -> (seconds between two runs, or None to run only when it is woken; the function to call).
    """

    def __init__(self, tasks: Mapping[str, tuple[float | None, Callable[[], object]]]) -> None:
        self._tasks = dict(tasks)
        self._woken: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._running = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, unless it has been started."""
        with self._changed:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="emberline-upkeep", daemon=True)
                self._thread.start()

    def wake(self, name: str) -> None:
        """Makes a task run soon."""
        with self._changed:
            self._woken.add(name)
            self._changed.notify_all()

    def wait(self, name: str, timeout_s: float | None = None) -> bool:
        """Waits until a task that was woken has run; returns False when the time runs out or the thread ends before."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or not self._is_due(name), timeout_s)
            return not self._is_due(name)

    @property
    def stopping(self) -> bool:
        """True when the task that runs should return soon."""
        return self._stopping

    def close(self) -> None:
        """Ends the thread when the task that runs has ended."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _is_due(self, name: str) -> bool:
        return name in self._woken or self._running == name

    def _run(self) -> None:
        due = {name: time.monotonic() + every for name, (every, _) in self._tasks.items() if every is not None}
        while True:
            with self._changed:
                self._running = ""
                self._changed.notify_all()
                while not self._stopping:
                    now = time.monotonic()
                    name = next((n for n in self._tasks if n in self._woken or due.get(n, now + 1) <= now), "")
                    if name:
                        break
                    self._changed.wait(min(due.values(), default=now + 3600) - now)
                if self._stopping:
                    return
                self._woken.discard(name)
                self._running = name
            every, work = self._tasks[name]
            if every is not None:
                due[name] = time.monotonic() + every
            try:
                work()
            except StoreError as error:
                _log.warning("%s: %s", name, error)
            except Exception:
                _log.exception("%s failed", name)
