"""Writes to a store while RocksDB's logs cannot be written; each function runs in a process of its own."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.faults.rocksdb_log import fail
from tests.integration.storage.trouble import FIRST, WORLD, check_rows, opened, outcome


def merges_again(folder: str) -> None:
    """Makes every kind of log write fail once or several times, while readers continue."""
    state = FIRST
    with opened(Path(folder)) as store:
        # Rows are changed so that reads need the database and not only page files.
        state, delta = WORLD.change(state, 1, one_in=2)
        store.merge(store.stage(delta), at=delta.snapshot)
        for generation, times in enumerate((1, 5, 1), 2):
            wrong: list[BaseException] = []
            ended = threading.Event()
            before = state

            def read(ended: threading.Event = ended, wrong: list[BaseException] = wrong) -> None:
                while not ended.is_set():
                    try:
                        check_rows(store, before)  # noqa: B023 - it ends before `before` is another
                    except BaseException as error:
                        wrong.append(error)
                        return

            readers = [threading.Thread(target=read) for _ in range(2)]
            for reader in readers:
                reader.start()
            fail(times)
            refused = 0
            while said := outcome(lambda: store.set_markers({"word": str(generation)})):  # noqa: B023
                assert "Input/output error" in said, said
                refused += 1
                assert refused <= times, said
            assert refused
            ended.set()
            for reader in readers:
                reader.join()
            assert not wrong, wrong
            assert store.marker("word") == str(generation)
            state, delta = WORLD.change(state, generation, one_in=3)
            overlay = store.stage(delta)
            fail(1)
            assert outcome(lambda: store.set_markers({"lost": "word"})), "the fault did not happen"
            store.merge(overlay, at=delta.snapshot)
            check_rows(store, state)
    with opened(Path(folder)) as store:
        assert store.at == delta.snapshot
        check_rows(store, state)
    print("recovered")
