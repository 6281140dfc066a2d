"""A training loop of one's own in several processes: it takes the steps of one process, and publishes all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.own_ranks import run
from tests.integration.trainer.ranks_process import run_ranks
from tests.integration.trainer.test_ranks import rows_of


def _run(work: Path) -> None:
    run(work, rows=8000)


@pytest.mark.long
@pytest.mark.slow
def test_the_example_trains_in_three_processes_what_it_trains_in_one(tmp_path: Path) -> None:
    assert run_ranks(3, _run, tmp_path / "several") == [0, 0, 0]
    one, several = rows_of(run(tmp_path / "one", rows=8000)), rows_of(tmp_path / "several" / "models" / "own" / "1")
    assert {name: list(rows) for name, rows in one.items()} == {name: list(rows) for name, rows in several.items()}
    assert sum(map(len, one.values())) > 1000
    for name, rows in one.items():
        np.testing.assert_allclose(list(rows.values()), list(several[name].values()), atol=2e-5)
