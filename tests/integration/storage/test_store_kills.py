"""kill -9 at random moments of a store's work; the large form is `python -m benchmarks.store_kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.store_kills import Place, run, told


@pytest.mark.slow
def test_a_killed_store_opens_at_one_snapshot_with_everything_acknowledged(tmp_path: Path) -> None:
    inflight = run(tmp_path / "store", 10, 4_000, seed=3)
    assert sum(inflight.values()) == 10


def test_a_line_that_the_kill_cut_off_was_not_said() -> None:
    ended = told("do load 0\ndone load 0\ndo merge 1\ndone merge 1\ndo word 1\ndone wo", Place())
    assert ended.place == Place(version=0, at=1, word=0, loaded=True)
    assert ended.begun == ("word", 1)
