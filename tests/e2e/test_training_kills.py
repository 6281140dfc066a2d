"""Kills trainings with -9 while they train, save and publish; all optimizers: `python -m benchmarks.training_kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.training_kills import Kills, run

pytestmark = pytest.mark.long


def test_a_killed_training_has_what_it_committed_and_goes_on_to_the_bit(tmp_path: Path) -> None:
    kills = Kills(tmp_path, ("adam",))
    (training,) = kills.trainings
    assert training.memory is not None
    assert training.memory.rows_fetched > 0
    assert any("/" in path for path in training.published), "deltas were published"
    found = run(kills, 3)
    assert found["killed"] == 3
    assert found["resumed to the end"] + found["was done"] > 0
