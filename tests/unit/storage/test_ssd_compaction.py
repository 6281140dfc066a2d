"""Compacts changes into a new page file while others read and write; a crash at any step loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage._pages import PageFile
from storage.errors import StoreError
from storage.tiers.pace import UNHURRIED
from storage.tiers.ssd.compaction import COMPACTION_STEPS
from storage.tiers.ssd.keys import marker_key
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.tier import SsdTier

WORDS = 4
ROW_BYTES = WORDS * 8
EDGES = np.array([-(2**63), -1, 2**63 - 1])


def planted(ids: np.ndarray, generation: int) -> np.ndarray:
    """Makes rows that hold their id and their generation."""
    rows = np.empty((len(ids), WORDS), np.int64)
    rows[:, 0::2] = ids[:, None]
    rows[:, 1::2] = generation
    return rows.view(np.uint8)


def generations(rows: np.ndarray, found: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns each row's generation, -1 where there is none; fails for a row of another id or of two generations."""
    words = rows.view(np.int64)
    hits = found == 1
    assert (words[hits][:, 0::2] == ids[hits, None]).all()
    assert (words[:, 1] == words[:, 3]).all()
    assert not words[~hits].any()
    return np.where(hits, words[:, 1], -1)


def state_of(ssd: SsdTier, ids: np.ndarray) -> list[int]:
    return generations(*ssd.find(0, ids, ROW_BYTES), ids).tolist()


BASE = np.unique(np.concatenate([EDGES, np.arange(0, 3000, 3)]))


def made(path: Path, limits: SsdOptions | None = None) -> SsdTier:
    ssd = SsdTier.open(path, limits)
    ssd.bulk_load(0, [(BASE, planted(BASE, 0))])
    return ssd


def changed(ssd: SsdTier) -> dict[int, int]:
    """Changes, adds and removes some rows; returns the generation that each id has afterwards."""
    model = dict.fromkeys(BASE.tolist(), 0)
    news = np.array([-(2**63), 3, 6, 7, 2998])
    gone = np.array([9, 12, 2**63 - 1, 13])
    ssd.insert_or_assign(0, news, planted(news, 1))
    ssd.erase(0, gone)
    model.update(dict.fromkeys(news.tolist(), 1))
    for i in gone.tolist():
        model.pop(i, None)
    return model


ASKED = np.unique(np.concatenate([BASE, np.arange(-5, 3005)]))


def check(ssd: SsdTier, model: dict[int, int]) -> None:
    assert state_of(ssd, ASKED) == [model.get(i, -1) for i in ASKED.tolist()]
    cursor, ids = 0, []
    while cursor >= 0:
        cursor, part, _ = ssd.export_batch(0, cursor, 77, ROW_BYTES)
        ids += part.tolist()
    assert ids == sorted(model)


def page_files(path: Path) -> list[Path]:
    return sorted((path / "pages").iterdir())


def test_a_compaction_changes_no_row_and_leaves_one_file(tmp_path: Path) -> None:
    ssd = made(tmp_path / "s")
    model = changed(ssd)
    before = page_files(ssd.path)
    steps: list[str] = []

    def each(step: str) -> None:
        steps.append(step)
        check(ssd, model)

    assert ssd.compact(0, each)
    assert tuple(steps) == COMPACTION_STEPS
    (file,) = page_files(ssd.path)
    assert [file] != before
    assert PageFile.open(str(file)).rows == len(model)
    assert ssd.stats().changed_rows == 0
    assert list(ssd.database.groups()) == []
    assert not ssd.compact(0)
    ssd.close()
    ssd = SsdTier.open(tmp_path / "s")
    check(ssd, model)
    ssd.close()


@pytest.mark.parametrize("step", COMPACTION_STEPS)
def test_changes_during_a_compaction_lie_on_top_of_it(tmp_path: Path, step: str) -> None:
    ssd = made(tmp_path / "s")
    model = changed(ssd)

    def write(at: str) -> None:
        if at == step:
            ids = np.array([3, 9, 15, 5000])
            ssd.insert_or_assign(0, ids, planted(ids, 2))
            ssd.erase(0, np.array([6, 18]))
            model.update(dict.fromkeys(ids.tolist(), 2))
            for i in (6, 18):
                model.pop(i, None)
        check(ssd, model)

    ssd.compact(0, write)
    check(ssd, model)
    ssd.close()
    ssd = SsdTier.open(tmp_path / "s")
    check(ssd, model)
    assert ssd.compact(0)
    check(ssd, model)
    ssd.close()


CHILD = """
import os, signal, sys
from pathlib import Path
from tests.unit.storage.test_ssd_compaction import changed, made

ssd = made(Path(sys.argv[1]))
changed(ssd)
print("changed", flush=True)
def die(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
ssd.compact(0, die)
"""


@pytest.mark.parametrize("step", COMPACTION_STEPS)
def test_killed_at_each_step_of_a_compaction(tmp_path: Path, step: str) -> None:
    folder = tmp_path / "s"
    command = [sys.executable, "-c", CHILD, str(folder), step]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == -signal.SIGKILL, done.stderr
    model = dict.fromkeys(BASE.tolist(), 0)
    model.update(dict.fromkeys([-(2**63), 3, 6, 7, 2998], 1))
    for i in (9, 12, 2**63 - 1):
        del model[i]
    for _ in range(2):
        ssd = SsdTier.open(folder)
        check(ssd, model)
        ssd.settle()  # Completes a compaction that was begun.
        check(ssd, model)
        assert len(page_files(folder)) == 1
        assert ssd.stats().changed_rows == 0
        ssd.close()


def test_a_compaction_that_fails_leaves_all_as_it_was_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssd = made(tmp_path / "s")
    model = changed(ssd)

    def full(*_: object) -> None:
        raise StoreError("No space left on device")

    monkeypatch.setattr(ssd.room, "require", full)
    with pytest.raises(StoreError, match="No space"):
        ssd.compact(0)
    monkeypatch.undo()
    check(ssd, model)
    assert len(page_files(ssd.path)) == 1
    changed(ssd)
    assert ssd.compact(0)
    check(ssd, model)
    ssd.close()


def test_past_its_bound_a_table_is_compacted_in_the_background(tmp_path: Path) -> None:
    ssd = made(tmp_path / "s", SsdOptions(compaction_bytes=2000, compaction_share=0.001))
    model = dict.fromkeys(BASE.tolist(), 0)
    for generation in range(1, 6):
        ids = BASE[generation:400:2]
        ssd.insert_or_assign(0, ids, planted(ids, generation))
        model.update(dict.fromkeys(ids.tolist(), generation))
        check(ssd, model)
        ssd.settle()
        check(ssd, model)
    assert ssd.stats().compactions >= 5
    assert ssd.stats().compaction_error is None
    assert len(page_files(ssd.path)) == 1
    ssd.close()


def test_a_background_compaction_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssd = made(tmp_path / "s", SsdOptions(compaction_bytes=2000, compaction_share=0.001))

    def full(*_: object) -> None:
        raise StoreError("No space left on device")

    monkeypatch.setattr(ssd.room, "require", full)
    ids = BASE[:400]
    ssd.insert_or_assign(0, ids, planted(ids, 1))
    ssd.settle()
    assert "No space left" in str(ssd.stats().compaction_error)
    check(ssd, {**dict.fromkeys(BASE.tolist(), 0), **dict.fromkeys(ids.tolist(), 1)})
    monkeypatch.undo()
    ssd.insert_or_assign(0, ids, planted(ids, 2))
    ssd.settle()
    assert ssd.stats().compaction_error is None
    assert ssd.stats().changed_rows == 0
    ssd.close()


@pytest.mark.parametrize("step", COMPACTION_STEPS[:3])
def test_a_table_is_cleared_while_it_is_compacted(tmp_path: Path, step: str) -> None:
    """Clearing waits until the compaction has given way or has ended."""
    ssd = made(tmp_path / "s")
    changed(ssd)
    reached, go_on = threading.Event(), threading.Event()

    def wait(at: str) -> None:
        if at == step:
            reached.set()
            go_on.wait(30)

    compacting = threading.Thread(target=lambda: ssd.compact(0, wait))
    compacting.start()
    assert reached.wait(30)
    clearing = threading.Thread(target=lambda: ssd.clear(0))
    clearing.start()
    go_on.set()
    compacting.join(30)
    clearing.join(30)
    assert ssd.is_empty(0)
    assert page_files(ssd.path) == []
    assert not ssd.find(0, BASE, ROW_BYTES)[1].any()
    ssd.bulk_load(0, [(BASE, planted(BASE, 5))])
    check(ssd, dict.fromkeys(BASE.tolist(), 5))
    ssd.close()


def test_closed_in_the_middle_of_a_compaction_it_is_ended_next_time(tmp_path: Path) -> None:
    ssd = made(tmp_path / "s")
    model = changed(ssd)
    # The state is frozen, and nothing more: a process leaves this when it is closed while the new file is written.
    with ssd.changes(UNHURRIED) as changes:
        state = ssd.book.state(0).frozen()
        changes.write([marker_key("pages.0")], [state.text().encode()])
        changes.ingest()
    ssd.close()
    (tmp_path / "s" / "pages" / "00000000-000000ff.pages.part").write_bytes(b"half a file")
    ssd = SsdTier.open(tmp_path / "s")
    check(ssd, model)
    ssd.settle()
    assert ssd.stats().compactions == 1
    check(ssd, model)
    assert len(page_files(ssd.path)) == 1
    ssd.close()


class Forced:
    """Runs a whole compaction between what a reader saw and what the reader does next."""

    def __init__(self, ssd: SsdTier, then: Callable[[], object]) -> None:
        self.ssd, self.then, self.real = ssd, then, ssd.database.get

    def get(self, group: int, ids: np.ndarray) -> list[bytes | None]:
        self.ssd.database.get = self.real  # type: ignore[method-assign]
        self.then()
        return self.real(group, ids)


@pytest.mark.parametrize("what", ["compact", "compact twice", "clear", "compact and change"])
def test_a_reader_that_chose_its_source_before_a_compaction_gets_the_row_after_it(tmp_path: Path, what: str) -> None:
    ssd = made(tmp_path / "s")
    model = changed(ssd)

    def then() -> None:
        if what == "clear":
            ssd.clear(0)
            model.clear()
            return
        ssd.compact(0)
        if what != "compact":
            ids = np.array([3, 15])
            ssd.insert_or_assign(0, ids, planted(ids, 2))
            model.update({3: 2})
        if what == "compact twice":
            ssd.compact(0)

    forced = Forced(ssd, then)
    ssd.database.get = forced.get  # type: ignore[method-assign]
    asked = np.array([3, 9, 7, -(2**63), 13])  # All of these are in the generation that is removed.
    got = state_of(ssd, asked)
    assert got == [model.get(i, -1) for i in asked.tolist()]
    ssd.close()


@pytest.mark.slow
@pytest.mark.parametrize("io", ["auto", "threads"])
def test_readers_never_see_a_row_go_back_while_compactions_run(tmp_path: Path, io: str) -> None:
    """Each write raises the generation of some ids; every later read sees at least that generation."""
    ssd = made(tmp_path / "s", SsdOptions(io=io))
    committed = np.zeros(len(BASE), np.int64)
    failures: list[BaseException] = []
    stop = threading.Event()
    reads = [0]

    def guarded(work: Callable[[np.random.Generator], None], seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                work(rng)
        except BaseException as error:
            failures.append(error)
            stop.set()

    def read(rng: np.random.Generator) -> None:
        places = rng.integers(0, len(BASE), 60)
        least = committed[places].copy()
        got = generations(*ssd.find(0, BASE[places], ROW_BYTES), BASE[places])
        assert (got >= least).all(), (got, least)
        reads[0] += 1

    def compact(_: np.random.Generator) -> None:
        ssd.compact(0)

    threads = [threading.Thread(target=guarded, args=(read, seed)) for seed in range(3)]
    threads.append(threading.Thread(target=guarded, args=(compact, 9)))
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(7)
    generation = 0
    while (generation < 150 or ssd.stats().compactions < 4 or reads[0] < 10) and not stop.is_set():
        generation += 1
        places = np.unique(rng.integers(0, len(BASE), 40))
        if generation % 3 == 0:
            with ssd.changes(UNHURRIED) as changes:
                values = [row.tobytes() for row in planted(BASE[places], generation)]
                changes.write_rows(0, BASE[places], values)
                changes.ingest()
        else:
            ssd.insert_or_assign(0, BASE[places], planted(BASE[places], generation))
        committed[places] = generation
    stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert state_of(ssd, BASE) == committed.tolist()
    ssd.close()
