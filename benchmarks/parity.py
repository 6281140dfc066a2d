"""Claim: 10,000 requests of one row each, through every transport and budget, give the trainer's scores to 1e-6.

Trains the quickstart's model on MovieLens, publishes it, serves it with every row in DRAM and with a tenth, and sends
each test row as a request of its own over HTTP JSON, HTTP binary and gRPC. The third reference (tests/reference: plain
Python, float64, none of our code) scores the same rows from the published files.

    python -m benchmarks.parity              # 10,000 requests a transport and budget, about five minutes
    python -m benchmarks.parity --quick      # 500
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.machine import machine_line
from loadtest.rows import input_table, model_inputs, request_tensors
from storage import open_version
from tests.reference.scorer import ReferenceScorer
from tests.support.server_process import ServerProcess
from tests.support.small_model import small_model, tenth_of
from tests.support.transports import ask_all
from trainer import load_config, load_trained, train
from trainer.datasets import write_movielens

ROOT = Path(__file__).parent.parent
TOLERANCE = 1e-6
REFERENCE_TOLERANCE = 5e-6


def measure(work: Path, count: int) -> dict[str, float]:
    written = write_movielens(work / "data", cache=Path.home() / ".cache" / "emberline")
    test = written.directory / "test.parquet"
    config = load_config(ROOT / "trainer" / "configs" / "movielens.yaml")
    report = train(
        config, work / "data" / "train.parquet", output=work / "run", repository=work / "models", progress=False
    )
    assert report.published is not None
    expected = load_trained(work / "run").predict(test).reshape(-1)[:count]
    small = small_model(
        work / "models", config.model_name, report.published, dram_bytes=tenth_of(open_version(report.published))
    )
    figures: dict[str, float] = {}
    with ServerProcess(work / "models", work / "store", work / "server.log") as server:
        inputs = model_inputs(server.url, config.model_name)
        table = input_table(test, inputs, count)
        requests = [request_tensors(inputs, table.slice(row, 1)) for row in range(count)]
        for model in (config.model_name, small):
            for transport, scores in ask_all(server.url, server.grpc, model, requests):
                figures[f"{model}, {transport}"] = float(np.abs(scores.astype(np.float64) - expected).max())
    reference = ReferenceScorer(report.published).score(pq.read_table(test).slice(0, count).to_pylist())
    figures["third reference against the trainer"] = float(np.abs(reference - expected).max())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 requests a transport")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    count = 500 if options.quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), count)
    print(machine_line())
    print(f"largest difference to the trainer's score over {count:,} requests of one row")
    for name, difference in figures.items():
        print(f"{name:<40} {difference:.2g}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    bounds = [REFERENCE_TOLERANCE if "reference" in name else TOLERANCE for name in figures]
    if any(difference > bound for difference, bound in zip(figures.values(), bounds, strict=True)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
