"""Frames of HTTP/2 on which servers have been wrong, and floods of them, at the gRPC port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.grpc.native_server import HAS_NATIVE_GRPC
from tests.external.h2_conformance import findings, flood, infer_call, is_allowed, live_call, outcome
from tests.external.h2_floods import FLOODS, Flood
from tests.external.h2_vectors import ANSWERED, IGNORED, Call, Vector, vectors
from tests.integration.serving.conftest import Published
from tests.support.server_process import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_NATIVE_GRPC, reason="native code was built without nghttp2; grpc.aio is more lenient"),
]


@pytest.fixture(scope="module")
def served(version_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("h2")
    with ServerProcess(version_dir.parent.parent, folder / "store", folder / "log") as running:
        yield running


@pytest.fixture(scope="module")
def calls(published: Published) -> dict[str, Call]:
    return {"ModelInfer": infer_call(published), "ServerLive": live_call()}


def test_every_outcome_is_one_that_the_rfc_allows(served: ServerProcess, calls: dict[str, Call]) -> None:
    before = served.metrics()["emberline_grpc_native_requests_total"]
    found = list(findings(served.grpc_port, calls))
    assert [(call, vector.name, what) for call, vector, what in found if not is_allowed(vector, what)] == []
    answered = sum(call == "ModelInfer" and what == ANSWERED for call, _, what in found)
    assert served.metrics()["emberline_grpc_native_requests_total"] - before >= answered > 20


@pytest.mark.parametrize("attack", FLOODS, ids=lambda attack: attack.name)
def test_a_flood_takes_no_memory_and_stops_nobody(served: ServerProcess, calls: dict[str, Call], attack: Flood) -> None:
    for call in calls.values():
        why, _ = flood(served, attack, call)
        assert not why


def test_an_outcome_that_is_not_allowed_is_a_finding(served: ServerProcess, calls: dict[str, Call]) -> None:
    call = calls["ModelInfer"]
    assert not is_allowed(Vector("", call.sent(), frozenset({IGNORED}), ""), ANSWERED)
    by_name = {vector.name: vector for vector in vectors(call)}
    assert outcome(served.grpc_port, by_name["a call"], call) == ANSWERED
    assert outcome(served.grpc_port, by_name["an even stream"], call).startswith("connection")
    assert outcome(served.grpc_port, by_name["te: gzip"], call).startswith("stream")
