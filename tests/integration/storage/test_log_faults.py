"""One failed write to RocksDB's log does not end all others: the database is opened again, while readers go on."""

from __future__ import annotations

from pathlib import Path

from tests.faults.rocksdb_log import run_with_log_faults


def test_writes_go_on_after_the_log_could_not_be_written(tmp_path: Path) -> None:
    module = "tests.integration.storage.log_faults"
    done = run_with_log_faults(tmp_path, module, "merges_again", str(tmp_path / "store"))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.splitlines()[-1] == "recovered"
