"""A checkpoint that TorchRec itself wrote, of tables sharded over two ranks, is imported row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.importing import KINDS, ImportOptions
from tests.integration.importing.torchrec_checkpoint import SIZES, table_rows
from tests.support.importing.files import content
from tests.support.with_torchrec import run_with_torchrec


@pytest.mark.slow
def test_tables_that_torchrec_sharded_are_put_together(tmp_path: Path) -> None:
    printed = run_with_torchrec("tests.integration.importing.torchrec_checkpoint", tmp_path)
    assert printed.splitlines() == ["['ShardedTensor']"] * 2
    tables = {each.name: each for each in KINDS["dcp"].open([tmp_path], ImportOptions())}
    assert set(tables) == set(SIZES)
    for name, table in tables.items():
        ids, rows, _ = content(table)
        np.testing.assert_array_equal(rows[np.argsort(ids)], table_rows(name))
