"""Claim: a session costs at most 64 MiB; all sessions share one copy of tables and weights.

Publishes a model with one table of 1 GiB, serves it with 1 and then with 16 sessions, drives every session, and reads
the server's resident memory. Expected: RSS(16) <= RSS(1) + 15 * 64 MiB. With one copy for each session it
would be 16 GiB.

    python -m benchmarks.session_memory            # 1 GiB of rows
    python -m benchmarks.session_memory --quick    # 128 MiB
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import tritonclient.http as triton
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks.machine import machine_line, rss_bytes
from emberline import publish
from tests.support.server_process import ServerProcess

DIM = 64
SESSION_BUDGET_BYTES = 64 * 2**20
SESSIONS = 16
MODEL = "one_table"


class OneTable(torch.nn.Module):
    """One wide table, ten ids a bag, a small head."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.items = torch.nn.EmbeddingBag(rows, DIM, mode="sum")
        self.head = torch.nn.Sequential(
            torch.nn.Linear(DIM, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1), torch.nn.Sigmoid()
        )

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """items: (B, 10) int64 -> (B, 1) float32."""
        score: torch.Tensor = self.head(self.items(items))
        return score


def drive(port: int, rows: int, requests: int, clients: int) -> None:
    """Sends `requests` batches of 256 from each of `clients` threads, so that every session has worked."""

    def one_client(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            for _ in range(requests):
                ids = rng.integers(0, rows, (256, 10), dtype=np.int64)
                tensor = triton.InferInput("items", list(ids.shape), "INT64")
                tensor.set_data_from_numpy(ids)
                client.infer(MODEL, [tensor])

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one_client, range(clients)))


def measure(repository: Path, store: Path, sessions: int, rows: int) -> int:
    path = repository / MODEL / "config.pbtxt"
    config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    del config.instance_group[:]
    config.instance_group.add(count=sessions, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    path.write_text(text_format.MessageToString(config))
    with ServerProcess(repository, store, store.parent / "server.log") as server:
        drive(server.http_port, rows, requests=40, clients=2 * SESSIONS)
        return rss_bytes(server.serving_pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a table of 128 MiB")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    rows = (2**27 if arguments.quick else 2**30) // (DIM * 4)

    with tempfile.TemporaryDirectory() as folder:
        repository, store = Path(folder, "repository"), Path(folder, "store")
        repository.mkdir()
        torch.manual_seed(1)
        sample = {"items": torch.randint(0, rows, (64, 10))}
        publish(OneTable(rows), sample, repository, name=MODEL)
        one = measure(repository, store, 1, rows)
        many = measure(repository, store, SESSIONS, rows)

    extra = (many - one) / (SESSIONS - 1)
    holds = extra <= SESSION_BUDGET_BYTES
    print(machine_line())
    print(f"rows                  {rows:,} x {DIM} float32 = {rows * DIM * 4 / 2**20:,.0f} MiB")
    print(f"RSS with 1 session    {one / 2**20:8,.0f} MiB")
    print(f"RSS with {SESSIONS} sessions  {many / 2**20:8,.0f} MiB")
    print(f"per further session   {extra / 2**20:8.1f} MiB (budget 64 MiB): {'holds' if holds else 'DOES NOT HOLD'}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rss_1": one, f"rss_{SESSIONS}": many, "holds": holds}, indent=2) + "\n")
    if not holds:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
