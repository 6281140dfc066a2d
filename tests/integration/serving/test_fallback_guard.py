"""The live guard of a model with chains: rows that stand in for others neither hide a loss of rows nor escape it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.integration.serving.http_calls import ask
from tests.integration.serving.test_fallback_served import KNOWN, World

NEW = 500  # items from here on have no row


@pytest.fixture
def world(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    caplog.set_level("INFO")
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.server.stop()


def send(world: World, first_item: int) -> None:
    """Sends requests for KNOWN items from `first_item` on, five of each author."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        places = rng.integers(0, KNOWN, 16)
        items, authors = first_item + places, places // 5
        given = {"user": rng.integers(0, 20, 16), "item": items, "author": authors, "seen": items, "authors": authors}
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [16, 1], "data": ids.tolist()} for name, ids in given.items()
        ]
        reply = ask(world.server.http_port, "POST", "/v2/models/shop/infer", {"inputs": inputs})
        assert reply.status == 200, reply.json


def judgement(world: World, caplog: pytest.LogCaptureFixture) -> str:
    """Publishes a delta, and returns what the server says of it."""
    world.publisher.publish("delta")
    give_up = time.monotonic() + 20
    while True:
        for record in list(caplog.records):
            if "live guard: " in record.getMessage():
                return record.getMessage()
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_items_that_lose_their_rows_are_noticed_though_their_authors_answer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    send(world, 0)
    world.shop.items.erase(np.arange(KNOWN // 4))
    said = judgement(world, caplog)
    assert "refused (GuardError)" in said
    # A quarter of the items, in two of five features.
    assert "10.1% of the ids have no row, 0.0% now" in said


def test_rows_that_only_new_items_read_are_judged_by_their_scores(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    send(world, NEW)
    world.shop.authors.erase(np.arange(KNOWN // 5))
    said = judgement(world, caplog)
    assert "refused (GuardError): live guard: output 'score': psi" in said
    assert "absent ids 40.0% -> 80.0%" in said  # the items had none before either
