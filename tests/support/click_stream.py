"""Clicks that are followed while a server serves what was learned of them: what soaks and storms have in common."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.e2e.storm_clients import Asker
from tests.support.asking_threads import AskingThreads
from trainer import load_trained
from trainer.checkpoint import checkpoints, read_commit

NAME = "clicks"
CONFIG = """
model_name: clicks
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: item, dtype: INT64}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], output: ids, table: items}
  - {name: price, inputs: [price], transforms: [{op: log}], output: dense}
tables:
  - {name: users, dim: 8, admit_after: 2}
  - {name: items, dim: 8}
model: {type: dlrm, bottom: [8], top: [16]}
optimizer: {sparse: {lr: 0.1}, dense: {lr: 0.005}}
training: {batch_size: 256, epochs: 1, seed: 3, shuffle_rows: 4000, checkpoint_every_steps: 40}
"""
_ASKED = 16
_TOLERANCE = 1e-5


def click_rows(number: int, rows: int) -> pa.Table:
    """Makes the rows of a file. Users and items that nobody has seen come with each file."""
    random_ = np.random.default_rng(number)
    user = random_.integers(0, 500 + 20 * number, rows)
    item = random_.integers(0, 300 + 5 * number, rows)
    likes = 1 / (1 + np.exp(-2.0 * np.cos(user * 12.9898 + item * 78.233)))
    return pa.table(
        {
            "user": user * 7919 - 50_000,
            "item": item * 104_729,
            "price": random_.exponential(10.0, rows).astype(np.float32),
            "clicked": (random_.random(rows) < likes).astype(np.int8),
        }
    )


def train_first(place: Path, ranks: int, rows: int = 20_000) -> None:
    """Trains on clicks into `place / "run"`, and publishes into `place / "models"`."""
    place.mkdir(exist_ok=True)
    (place / "clicks.yaml").write_text(CONFIG, encoding="utf-8")
    pq.write_table(click_rows(0, rows), place / "history.parquet")
    command = [sys.executable, "-m", "emberline", "train", str(place / "clicks.yaml"), "--quiet"]
    command += ["--data", str(place / "history.parquet"), "--output", str(place / "run"), "--nproc", str(ranks)]
    command += ["--repository", str(place / "models")]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


class Clients(AskingThreads):
    """Threads that ask the same requests again and again. They stop at the end of `with`."""

    def __init__(self, port: int, count: int = 2) -> None:
        super().__init__()
        self.answers = 0
        #: By snapshot and request, the scores.
        self.scores: dict[tuple[str, int], list[float]] = {}
        self.wrong: list[str] = []
        self._port = port
        self._requests = [_request(number) for number in range(_ASKED)]
        self._threads = [threading.Thread(target=self._ask, args=(index,)) for index in range(count)]

    def _ask(self, index: int) -> None:
        newest = (0, 0)
        number = index
        while not self._stop.is_set():
            try:
                with Asker(self._port) as asker:
                    while not self._stop.is_set():
                        status, answer = asker.post(f"/v2/models/{NAME}/infer", self._requests[number % _ASKED])
                        newest = self._judge(number % _ASKED, status, answer, newest)
                        number += 1
                        time.sleep(0.01)
            except (OSError, ValueError, HTTPException):  # the server was killed
                time.sleep(0.2)

    def _judge(self, number: int, status: int, answer: dict[str, Any], newest: tuple[int, int]) -> tuple[int, int]:
        with self._lock:
            if status == 503:  # it starts
                return newest
            if status != 200:
                self.wrong.append(f"status {status}: {answer}")
                return newest
            self.answers += 1
            parameters = answer["parameters"]
            snapshot = (int(answer["model_version"]), int(parameters["sequence"]))
            scores = answer["outputs"][0]["data"]
            known = self.scores.setdefault((parameters["snapshot"], number), scores)
            if known != scores:
                self.wrong.append(f"snapshot {snapshot} answered {known}, and then {scores}")
            if snapshot < newest:
                self.wrong.append(f"snapshot {snapshot} answered after {newest}")
            return max(newest, snapshot)


def _request(number: int) -> dict[str, Any]:
    columns = click_rows(number, 8)
    shapes = {"user": "INT64", "item": "INT64", "price": "FP32"}
    return {
        "inputs": [
            {"name": name, "datatype": dtype, "shape": [8, 1], "data": columns[name].to_pylist()}
            for name, dtype in shapes.items()
        ]
    }


def check_last(place: Path, port: int) -> None:
    """Asserts that what is served in the end are the scores of what was trained."""
    trained = load_trained(place / "run")
    columns = [click_rows(number, 8).drop_columns(["clicked"]) for number in range(_ASKED)]
    wanted = [trained.predict(each).reshape(-1) for each in columns]
    deadline = time.monotonic() + 30.0
    while True:
        with Asker(port) as asker:
            answers = [asker.post(f"/v2/models/{NAME}/infer", _request(number)) for number in range(_ASKED)]
        found = [np.array(answer["outputs"][0]["data"]) for status, answer in answers if status == 200]
        if len(found) == _ASKED:
            worst = max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True))
            if worst < _TOLERANCE:
                return
        if time.monotonic() > deadline:
            with Asker(port) as asker:
                status, answer = asker.get(f"/v2/repository/models/{NAME}/snapshots")
            raise AssertionError(f"the last answers differ by {worst:g} from the trained model's; {status}: {answer}")
        time.sleep(0.2)


def compare(place: Path, other: Path) -> tuple[int, int]:
    """Asserts that two runs have followed a stream to the same bytes; returns its rows, and those of the tables."""
    one, two = (load_trained(each / "run") for each in (place, other))
    streams = [list(read_commit(checkpoints(each / "run")[-1]).state.streams.values()) for each in (place, other)]
    for known in streams[0] + streams[1]:
        for name in ("turn", "taken"):  # whose turn it is while all partitions of a topic are at their end
            known["at"].pop(name, None)
    assert streams[0] == streams[1], streams
    for name, table in one.tables.items():
        for mine, expected in zip(table.export_rows()[:4], two.tables[name].export_rows()[:4], strict=True):
            np.testing.assert_array_equal(mine, expected, err_msg=name)
    weights = two.model.state_dict()
    for name, value in one.model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), weights[name].numpy(), err_msg=name)
    (position,) = streams[0]
    return int(position["rows"]), sum(len(table.export_rows()[0]) for table in one.tables.values())
