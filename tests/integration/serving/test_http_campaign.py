"""Unusual HTTP requests, and what the RFCs ask for; `python -m tests.external.http_campaign` has the peers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving import Server, ServerConfig
from tests.external.http_campaign import ask, fault
from tests.external.http_cases import CHANGES, Case, cases
from tests.integration.serving.http_calls import ask as ask_usual
from tests.integration.serving.identity_models import write_identity


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_outcome_is_what_the_rfcs_ask_for(seed: int, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "echo", {"A": ("FP32", [4])}, max_batch=64)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    every = list(cases(600, seed))
    assert len({case.name for case in every}) == 600
    with (
        Server(ServerConfig(model_repository=tmp_path / "models", store=tmp_path / "store", **ports)) as server,
        ThreadPoolExecutor(32) as threads,
    ):

        def wrong(case: Case) -> str:
            found = ask(server.http_port, case)
            return f"{case.name}: {found}; {why}" if (why := fault(case, found)) else ""

        assert [why for why in threads.map(wrong, every) if why] == []
        assert ask_usual(server.http_port, "GET", "/v2/health/ready").status == 200


def test_every_change_changes_the_request_and_has_a_place_in_the_rfcs_where_it_is_refused() -> None:
    usual = next(iter(cases(1, 0))).draft
    for change in CHANGES:
        made = change.make(usual)
        assert made.written() != usual.written() or made.pieces != usual.pieces, change.name
