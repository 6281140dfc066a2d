"""A simulated GPU counts what lookups found, and a test whose caches hold next to nothing fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulated_gpu import SimulatedGpus, lookups
from tests.simulated_gpu.lookups import Lookups
from tests.support.hbm.world import ALL_BYTES, GpuWorld

FAILING = """
import pytest
from tests.simulated_gpu import lookups

def test_cold():
    lookups.everywhere.ids += 5000
    lookups.everywhere.misses += 4950

@pytest.mark.cold_cache("it is about misses")
def test_cold_and_said_so():
    test_cold()
"""


@pytest.mark.parametrize("hbm_bytes", [ALL_BYTES, 200_000])
def test_ids_and_misses_of_every_lookup_are_counted(tmp_path: Path, hbm_bytes: int) -> None:
    driver = SimulatedGpus(schedule="random", seed=2).driver(0)
    driver.enter_thread()
    before = Lookups(lookups.everywhere.ids, lookups.everywhere.misses)
    world = GpuWorld(tmp_path, driver, hbm_bytes=hbm_bytes)
    world.look()
    assert driver.lookups.ids > 1000
    # Ids that have no row are missed everywhere.
    assert driver.lookups.misses > 0
    assert (driver.lookups.misses > driver.lookups.ids // 2) == (hbm_bytes < ALL_BYTES)
    assert lookups.everywhere - before == driver.lookups
    world.close()


@pytest.mark.parametrize(
    ("ids", "misses", "is_useless"), [(0, 0, False), (999, 999, False), (1000, 980, False), (302_848, 302_455, True)]
)
def test_a_cache_that_finds_next_to_nothing_is_reported(ids: int, misses: int, is_useless: bool) -> None:
    assert bool(Lookups(ids, misses).why_useless) == is_useless


@pytest.mark.slow
def test_a_test_over_such_a_cache_fails_unless_it_says_that_it_may(tmp_path: Path) -> None:
    # In a process of its own, over the fixture that all tests have.
    root = Path(__file__).parents[4]
    (tmp_path / "test_cold.py").write_text(FAILING)
    (tmp_path / "conftest.py").write_text("from tests.conftest import caches_are_used\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(root / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=root, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "4,950 of 5,000 ids that GPUs looked up were missed" in done.stdout, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout
