"""Kills updates with -9 at random moments; the large form is `python -m benchmarks.random_kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.random_kills import Kills, run

pytestmark = pytest.mark.long


def test_a_killed_server_comes_back_at_one_snapshot_and_goes_on(tmp_path: Path) -> None:
    found = run(Kills(tmp_path, 60_000), 4, 50_000)
    assert sum(found.values()) == 4
    assert not found["another snapshot"]
