"""A server whose store cannot be written for some time; each function runs in a process of its own."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

from serving.updates import merging
from storage.errors import EmberlineError, StoreError
from tests.faults.rocksdb_log import fail
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def merging_fails_and_goes_on(folder: str) -> None:
    """Makes merges fail for some time.

    The fault must be visible everywhere, and leave no trace when it has passed.
    """
    log = _Log()
    logging.getLogger("emberline.serving").addHandler(log)
    logging.getLogger("emberline.serving").setLevel(logging.INFO)
    merging._RETRY_S = 0.2
    with Live(Path(folder), retain_snapshots=1, dram_bytes=2000) as live:
        newest = live.version()
        live.start()
        for _ in range(3):
            newest = live.delta(newest)
            live.reaches(newest)
        merges = _counters(live).merges
        assert merges > 0
        live.until(lambda: len(live.states()) == 2)
        fail(1_000_000)
        with contextlib.suppress(StoreError):  # into the log, after which RocksDB refuses every write
            live.server.repository._models[NAME].model.mounts[0].store.set_markers({"word": "lost"})
        for _ in range(3):
            newest = live.delta(newest)
            live.reaches(newest)
        live.until(lambda: _counters(live).merge_failures > 2)
        assert _counters(live).merge_failing
        assert "Input/output error" in live.report()["waiting"]
        (entry,) = live.repository.index()
        assert (entry.state, "Input/output error" in entry.reason) == ("READY", True), entry
        assert live.repository.is_ready()
        failures = [line for line in log.lines if "merging snapshots" in line]
        assert len(failures) == 1, failures
        fail(0)
        live.until(lambda: len(live.states()) == 2)
        live.until(lambda: not _counters(live).merge_failing)
        assert live.report()["waiting"] is None
        assert live.repository.index()[0].reason == ""
        for _ in range(3):
            newest = live.delta(newest)
            live.reaches(newest)
        live.until(lambda: len(live.states()) == 2)
        live.stop()
        live.start()
        assert live.served() is newest
    print("recovered")


def unload_on_a_full_disk(mount: str) -> None:
    """Fills a small file system of its own to the last byte."""
    ballast = Path(mount) / "ballast"
    with Live(Path(mount), version_reuse_share=0, dram_bytes=2000) as live:
        newest = live.version()
        live.start()
        for _ in range(3):
            newest = live.version()  # into a store of its own, whose markers the database has not flushed yet
            live.reaches(newest)
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 12))
            live.repository.unload(NAME)
            assert not live.repository.is_model_ready(NAME)
            refused = threading.Thread(target=_load, args=(live,))
            refused.start()
            refused.join(60)
            assert not refused.is_alive(), "load does not come back"
            ballast.unlink()
            live.repository.load(NAME)
            assert live.served() is newest
    print("recovered")


def _load(live: Live) -> None:
    with contextlib.suppress(EmberlineError):
        live.repository.load(NAME)


def _counters(live: Live) -> Any:
    return live.repository.update_counters(NAME)
