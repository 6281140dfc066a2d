"""A server over the example model, and rows that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.loads.asking import ROOT
from tests.support.server_process import ServerProcess

ROWS = 400


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server over `tiny`."""
    folder = tmp_path_factory.mktemp("server")
    with ServerProcess(ROOT / "model_repo", folder / "store", folder / "log") as server:
        yield server


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes rows with the columns of `tiny`."""
    rng = np.random.default_rng(1)
    words = pa.array(rng.integers(0, 200, 3 * ROWS))
    dense = pa.array(rng.random(2 * ROWS).astype(np.float32))
    table = {
        "words": pa.FixedSizeListArray.from_arrays(words, 3),
        "dense": pa.FixedSizeListArray.from_arrays(dense, 2),
    }
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    pq.write_table(pa.table(table), path)
    return path
