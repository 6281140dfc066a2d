"""Ranks share the validation rows, and measure what one process measures on all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.trainer.ranks_process import train_with_ranks
from tests.integration.trainer.test_ranks import SAME_MODEL
from trainer import load_trained
from trainer.evaluate import EVALUATION_ROWS
from trainer.report import named_metrics

TASK = "tasks: [{label: clicked, group: user, metrics: [auc, gauc, log_loss, calibration, ndcg@5]}]"
CONFIG = SAME_MODEL.replace("label: clicked", TASK).replace("epochs: 2", "epochs: 1")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "rows"), [(2, 2 * EVALUATION_ROWS + 1), (3, 2)])
def test_metrics_are_those_of_all_rows(
    clicks: Path, click_table: Callable[[int, int], pa.Table], tmp_path: Path, ranks: int, rows: int
) -> None:
    """The first rank has a batch less than the others, or no row at all, and takes part in their lookups."""
    valid = tmp_path / "valid.parquet"
    pq.write_table(click_table(rows, 9), valid, row_group_size=3000)
    codes = train_with_ranks(ranks, CONFIG, clicks, tmp_path / "run", valid=valid, limit=960)
    assert codes == [0] * ranks
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    alone = load_trained(tmp_path / "run").evaluate(valid).metrics
    assert report["valid_rows"] == rows
    assert named_metrics(report["metrics"]) == pytest.approx(named_metrics(alone), rel=1e-6)
    assert len(named_metrics(alone)) == (5 if rows > 2 else 1)
