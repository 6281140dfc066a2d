"""h2load sees no trailers of gRPC: errors, whose HTTP status is 200, are counted by the bytes that came."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from loadtest.channel import INFER
from loadtest.compiled import CompiledDriver
from loadtest.phases import Phase
from loadtest.prepared import encode
from loadtest.rows import Tensor
from loadtest.target import Target

pytestmark = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
RATE = 60


class _Refusing(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses every `each`-th call after the first one; 0: none."""

    def __init__(self, each: int) -> None:
        self._each, self._numbers = each, itertools.count()

    def service(self, details: Any) -> Any:
        assert details.method == INFER
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, body: bytes, context: Any) -> bytes:
        number = next(self._numbers)
        if number and self._each and number % self._each == 0:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests wait")
        return b"x" * 200


@contextmanager
def serving(each: int) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([_Refusing(each)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("each", [0, 1, 3])
def test_errors_of_grpc_are_failures(tmp_path: Path, each: int) -> None:
    prepared = encode("grpc", "m", [[[Tensor("x", "INT64", np.array([[1]]))]]])
    with serving(each) as address:
        target = Target("http://127.0.0.1:1", address, "m")
        driver = CompiledDriver("h2load", "grpc", target, prepared, tmp_path, connections=2, threads=1)
        record = driver.run(Phase(2, (RATE, RATE)), seed=None, drain_s=1.0, watch=lambda _: False)
    counts = record.counts()
    requests = counts.failed + counts.latency.total
    assert requests > RATE
    assert counts.answered == counts.latency.total
    assert counts.failed == pytest.approx(requests / each if each else 0, abs=2)
