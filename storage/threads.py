"""Checks that this process can still start threads, before code that ends the process when it cannot."""

from __future__ import annotations

import threading

from storage.errors import StoreError

# More threads than any library that we use starts at once.
ENOUGH = 16


def require_threads(doing: str, count: int = ENOUGH) -> None:
    """Starts so many threads and ends them again. Raises StoreError when they cannot be started.

    RocksDB and the watching of folders end the whole process when a thread of theirs cannot be started.
    """
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=done.wait, name="emberline-probe", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise StoreError(
            f"{doing}: the system gives this process no more threads; raise the limit of its container or service "
            f"(pids, TasksMax) or of its user (ulimit -u) ({error})"
        ) from error
    finally:
        done.set()
        for thread in started:
            thread.join()
