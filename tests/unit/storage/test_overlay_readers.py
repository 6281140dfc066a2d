"""Sessions in Python threads beside a writer that stages, switches and merges: each row carries the snapshot it is
of."""

from __future__ import annotations

import threading

import numpy as np

from storage._table import Lookup, OverlayTable, Table

DIM, IDS, UPDATES, RETAINED = 8, 2000, 120, 3


def rows_of(ids: np.ndarray, generation: int) -> np.ndarray:
    rows = np.empty((len(ids), DIM), np.float32)
    rows[:, ::2] = ids[:, None]
    rows[:, 1::2] = generation
    return rows


def test_a_lookup_sees_one_generation_of_every_row() -> None:
    """Each update changes every id, so that all rows of one answer must be of one generation, that of its mask."""
    base, overlay = Table(DIM), OverlayTable(DIM)
    ids = np.arange(IDS, dtype=np.int64)
    base.insert_or_assign(ids, rows_of(ids, 0))
    lock = threading.Condition()
    line: list[tuple[int, int]] = [(0, 0)]  # generation, mask; the base's first
    pins: dict[int, int] = {}  # generation in use, by session
    done = threading.Event()
    failures: list[str] = []
    answers = [0, 0]

    def fail(message: str) -> None:
        with lock:
            failures.append(message)
            lock.notify_all()

    def session(number: int) -> None:
        lookup = Lookup([base], [(0, 2, 1)], [overlay])
        rng = np.random.default_rng(number)
        out, found = np.empty((300, 1, DIM), np.float32), np.empty((300, 1), np.uint8)
        while not done.is_set() or answers[number] < 20:
            with lock:
                generation, mask = line[-1] if rng.random() < 0.7 else line[0]
                pins[number] = generation
                lock.notify_all()
            wanted = rng.integers(0, IDS, 300)
            if lookup.begin(300, [wanted], [np.arange(301)], [out], [found], mask):
                fail(f"generation {generation} misses {lookup.missing(0)}")
                break
            dram, _, _, _, over = lookup.finish()
            if dram + over != 300 or not np.array_equal(out[:, 0], rows_of(wanted, generation)):
                fail(f"generation {generation} under mask {mask:x}: {np.unique(out[:, 0, 1])}")
                break
            answers[number] += 1

    def wait_for_sessions(oldest: int) -> None:
        with lock:
            lock.wait_for(lambda: failures or all(generation >= oldest for generation in pins.values()))

    sessions = [threading.Thread(target=session, args=(number,)) for number in range(2)]
    for thread in sessions:
        thread.start()
    generation = 0
    while (generation < UPDATES or min(answers) < 20) and not failures:
        generation += 1
        number = generation % 63
        for part in np.array_split(ids, 4):
            overlay.stage(number, part, rows_of(part, generation), 0)
        with lock:
            line.append((generation, line[-1][1] | 1 << number))
            over = line.pop(0)[0] if len(line) > RETAINED else None
        if over is None:
            continue
        merged = over + 1
        wait_for_sessions(merged)
        base.insert_or_assign(ids, rows_of(ids, merged))
        while overlay.discard(merged % 63, 500):
            pass
        with lock:
            line[:] = [(g, mask & ~(1 << merged % 63)) for g, mask in line]
    done.set()
    for thread in sessions:
        thread.join()
    assert not failures
    overlay.check_integrity()
    assert overlay.size() == IDS
    assert sum(overlay.entries(number) for number in range(63)) == IDS * (len(line) - 1)
