"""Faults of the disk below a store that is served: said in every place, and gone without a new start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.rocksdb_log import run_with_log_faults
from tests.integration.storage.trouble import cannot_unshare, run

WHY_NOT = cannot_unshare()
FUNCTIONS = "tests.integration.serving.store_faults"


@pytest.mark.slow
def test_merging_goes_on_after_writes_to_the_log_failed_and_says_so_meanwhile(tmp_path: Path) -> None:
    done = run_with_log_faults(tmp_path, FUNCTIONS, "merging_fails_and_goes_on", str(tmp_path))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert done.stdout.splitlines()[-1] == "recovered"


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=f"no mounts of our own here: {WHY_NOT}")
def test_a_model_is_unloaded_on_a_full_disk_and_loads_again_when_there_is_room(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=128m none {tmp_path}"
    done = run("unload_on_a_full_disk", str(tmp_path), before=mount, unshared=True, module=FUNCTIONS)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert done.stdout.splitlines()[-1] == "recovered"
