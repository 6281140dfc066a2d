"""Claim: on five million ids with a tenth of the rows in DRAM, the served AUC is at least 0.98 of the planted best.

Writes the planted data set, trains trainer/configs/synthetic.yaml on it, publishes, and serves the version twice in
one process: with every row in DRAM, and with a DRAM budget of a tenth. The test rows are scored over HTTP by both.
Expected: equal scores to the last bit, hits on both tiers, AUC >= 0.98 of what the true probabilities reach.

    python -m benchmarks.synthetic_tiers            # 16 M rows, about four minutes
    python -m benchmarks.synthetic_tiers --quick    # 1 M rows: shows the tiers; too few rows to reach the AUC
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.machine import machine_line
from storage import open_version
from tests.support.server_process import ServerProcess
from tests.support.small_model import small_model, tenth_of
from tests.support.transports import ask_binary, requests_of
from trainer import auc, load_config, train
from trainer.datasets import write_synthetic

ROOT = Path(__file__).parent.parent
TARGET = 0.98
SCORED_ROWS = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a million rows")
    parser.add_argument("--rows", type=int, help="rows of the data set (default 16 M)")
    parser.add_argument("--ids", type=int, default=5_000_000, help="ids over all columns (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    rows = options.rows or (1_000_000 if options.quick else 16_000_000)

    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), rows, options.ids)
    figures["holds"] = figures["ratio"] >= TARGET
    print(machine_line())
    for name, value in figures.items():
        print(f"{name:<28} {value:,.4f}" if isinstance(value, float) else f"{name:<28} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["largest_difference"] != 0.0 or not (figures["holds"] or options.quick):
        raise SystemExit(1)


def measure(work: Path, rows: int, ids: int) -> dict[str, Any]:
    began = time.monotonic()
    written = write_synthetic(work / "data", rows=rows, ids=ids)
    test = work / "data" / "test.parquet"
    config = load_config(ROOT / "trainer" / "configs" / "synthetic.yaml")
    report = train(
        config, work / "data" / "train.parquet", output=work / "run", repository=work / "models", progress=False
    )
    assert report.published is not None
    version = open_version(report.published)
    budget = tenth_of(version)
    small = small_model(work / "models", config.model_name, report.published, dram_bytes=budget)
    label = config.targets.tasks[0].label.column
    labels = pq.read_table(test, columns=[label])[label].to_numpy()[:SCORED_ROWS]
    with ServerProcess(work / "models", work / "store", work / "server.log") as server:
        requests = requests_of(server.url, config.model_name, test, SCORED_ROWS)
        scores = {
            model: np.concatenate([ask_binary(server.url, model, tensors) for tensors in requests])
            for model in (config.model_name, small)
        }
        metrics = server.metrics()
    best = float(written.facts["best_auc"]["test"])
    found = auc(labels, scores[small])
    assert found is not None
    return {
        "rows": rows,
        "ids": ids,
        "rows_with_a_vector": sum(table.rows for table in version.tables),
        "training_rows_per_second": report.rows_per_second,
        "dram_bytes_of_a_tenth": budget,
        "planted_best_auc": best,
        "served_auc_with_a_tenth": float(found),
        "ratio": float(found) / best,
        "largest_difference": float(np.abs(scores[small] - scores[config.model_name]).max()),
        "ids_answered": {name: value for name, value in metrics.items() if "ids" in name or "hits" in name},
        "seconds": time.monotonic() - began,
    }


if __name__ == "__main__":
    main()
