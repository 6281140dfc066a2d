"""Kills trainings beyond DRAM with -9 at random moments; the large form is `python -m benchmarks.training_kills`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.training_kills import Kills, run


def test_a_killed_training_has_its_last_commit_and_goes_on_to_the_bit(tmp_path: Path) -> None:
    found = run(Kills(tmp_path), 3)
    assert found["killed"] == 3
