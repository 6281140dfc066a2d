"""Faults of the disk below a store that is served: said in every place, and gone without a new start."""

from __future__ import annotations

from pathlib import Path

from tests.faults.rocksdb_log import run_with_log_faults

FUNCTIONS = "tests.integration.serving.store_faults"


def test_merging_goes_on_after_writes_to_the_log_failed_and_says_so_meanwhile(tmp_path: Path) -> None:
    done = run_with_log_faults(tmp_path, FUNCTIONS, "merging_fails_and_goes_on", str(tmp_path))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert done.stdout.splitlines()[-1] == "recovered"
