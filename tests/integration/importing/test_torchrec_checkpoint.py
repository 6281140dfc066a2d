"""A checkpoint that TorchRec itself wrote, of tables sharded over two ranks, is imported row by row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import PeerMissingError, environment
from storage.importing import KINDS, ImportOptions
from tests.integration.importing.torchrec_checkpoint import SIZES, table_rows
from tests.support.importing.files import content


@pytest.mark.slow
def test_tables_that_torchrec_sharded_are_put_together(tmp_path: Path) -> None:
    try:
        environment.python()
    except PeerMissingError as missing:
        pytest.skip(f"TorchRec: {missing}")
    (site,) = (environment.FOLDER / "lib").glob("python*/site-packages")
    program = [sys.executable, "-W", "ignore", "-m", "tests.integration.importing.torchrec_checkpoint", str(tmp_path)]
    where = {**os.environ, "PYTHONPATH": str(site)}
    root = Path(__file__).parents[3]
    done = subprocess.run(program, cwd=root, env=where, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["['ShardedTensor']"] * 2
    tables = {each.name: each for each in KINDS["dcp"].open([tmp_path], ImportOptions())}
    assert set(tables) == set(SIZES)
    for name, table in tables.items():
        ids, rows, _ = content(table)
        np.testing.assert_array_equal(rows[np.argsort(ids)], table_rows(name))
