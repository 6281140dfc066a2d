"""Serves one model under every combination of batching, sessions and runner.

Requests of every form must get the reference's scores.
"""

from __future__ import annotations

import itertools
import json
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import Served, rows_of
from tests.e2e.test_parity import REFERENCE_TOLERANCE
from tests.reference.scorer import ReferenceScorer
from tests.support.server_process import ServerProcess

BATCHING = {
    "alone": "",
    "batched": "dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
    "late": "dynamic_batching { priority_levels: 2 default_priority_level: 1 preferred_batch_size: [ 16 ] "
    "max_queue_delay_microseconds: 2000 }",
}
SESSIONS = (1, 3)
RUNNERS = ("eager", "script")
WAYS = list(itertools.product((0, 1, 2), (0, 20_000_000), ("one user", "a user each", "one user in every row")))


def model_name(batching: str, sessions: int, runner: str) -> str:
    return f"din_{batching}_{sessions}_{runner}"


@pytest.fixture(scope="module")
def asked(models: dict[str, Served], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server of the model under a separate name for each combination."""
    place = tmp_path_factory.mktemp("combinations")
    for batching, sessions, runner in itertools.product(BATCHING, SESSIONS, RUNNERS):
        folder = place / "models" / model_name(batching, sessions, runner)
        shutil.copytree(models["din"].version, folder / "1")
        (folder / "config.pbtxt").write_text(
            f'backend: "emberline"\n{BATCHING[batching]}\ninstance_group [{{ kind: KIND_CPU count: {sessions} }}]\n'
            f'parameters {{ key: "runners" value {{ string_value: "{runner}" }} }}\n'
        )
    with ServerProcess(place / "models", place / "store", place / "log") as server:
        yield server


@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("sessions", SESSIONS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_way_to_ask_gives_the_scores_of_the_reference(
    asked: ServerProcess, models: dict[str, Served], batching: str, sessions: int, runner: str
) -> None:
    rows = rows_of(models["din"].data, 600)
    reference = ReferenceScorer(models["din"].version)
    rng = np.random.default_rng(5)
    calls: list[tuple[bytes, np.ndarray[Any, Any]]] = []
    for priority, timeout_us, users in WAYS * 2:
        picked = [dict(rows[index]) for index in rng.integers(0, len(rows), int(rng.integers(1, 12)))]
        if users != "a user each":
            for row in picked:
                row["user"] = picked[0]["user"]
        body = json_request(picked, once=users == "one user", priority=priority, timeout_us=timeout_us)
        calls.append((body, reference.score(picked)))

    def ask(body: bytes) -> np.ndarray[Any, Any]:
        url = f"{asked.url}/v2/models/{model_name(batching, sessions, runner)}/infer"
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=60) as answer:
            return np.array(json.load(answer)["outputs"][0]["data"])

    # At once, so that they share batches and sessions.
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, [body for body, _ in calls]))
    for number, (got, (_, expected)) in enumerate(zip(answers, calls, strict=True)):
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= REFERENCE_TOLERANCE, WAYS[number % len(WAYS)]


def json_request(rows: list[dict[str, Any]], *, once: bool, priority: int, timeout_us: int) -> bytes:
    """Encodes a request of these rows.

    once: the user's side is sent as one row.
    """
    count = len(rows)
    users = [rows[0]["user"]] if once else [row["user"] for row in rows]
    lists = [row["tags"] or [] for row in rows]
    width = max(1, *map(len, lists))
    inputs = [
        {"name": "user", "shape": [len(users), 1], "datatype": "INT64", "data": users},
        {"name": "item", "shape": [count, 1], "datatype": "INT64", "data": [row["item"] for row in rows]},
        {
            "name": "tags",
            "shape": [count, width],
            "datatype": "INT64",
            "data": [value for values in lists for value in [*values, *[0] * (width - len(values))]],
        },
        {"name": "tags.lengths", "shape": [count, 1], "datatype": "INT64", "data": list(map(len, lists))},
        {
            "name": "tags.valid",
            "shape": [count, 1],
            "datatype": "BOOL",
            "data": [row["tags"] is not None for row in rows],
        },
        {"name": "price", "shape": [count, 1], "datatype": "FP32", "data": [row["price"] for row in rows]},
        {"name": "hour", "shape": [count, 1], "datatype": "FP32", "data": [row["hour"] for row in rows]},
    ]
    parameters = {"priority": priority, **({"timeout": timeout_us} if timeout_us else {})}
    return json.dumps({"inputs": inputs, "parameters": parameters}).encode()
