"""Sends requests, and labels of them under which a snapshot ranks as well as a test wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from serving import Server
from tests.integration.serving.http_calls import ask as call
from tests.integration.serving.planted import NAME, ask

FEEDBACK_PATH = f"/v2/models/{NAME}/feedback"
ROWS = 16


def visit(asked: Server, told: Iterable[Server], skills: Mapping[str, float], seed: int) -> None:
    """Asks one server for scores of ROWS rows and tells others the labels. skills: from 0 to 1, by snapshot."""
    rng = np.random.default_rng(seed)
    rows = [{"user": int(rng.integers(0, 60)), "items": [int(rng.integers(0, 200))]} for _ in range(ROWS)]
    name = f"request-{seed}"
    answer = ask(asked.repository, rows, request_id=name, routing_key=name)
    assert asked.repository.feedback(NAME).flush(10)
    ranks = np.argsort(np.argsort(answer.outputs[0].reshape(-1)))
    skill = skills[answer.snapshot.name]
    truth = np.where(rng.random(ROWS) < skill, ranks >= ROWS // 2, rng.random(ROWS) < 0.5)
    content = {"id": name, "labels": [int(value) for value in truth], "output": "score"}
    for server in told:
        reply = call(server.http_port, "POST", FEEDBACK_PATH, content)
        assert reply.status == 200, reply.content
