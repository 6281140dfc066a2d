"""JSON that is small on the wire and large in memory is refused before anything is made of it."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.protocol.json_text import MAX_JSON_BYTES, MAX_JSON_MARKS, parse_json
from serving.server import Server
from storage.errors import InvalidInput
from tests.integration.serving.http_calls import ask

INFER, PREDICT = "/v2/models/ranker/infer", "/v1/models/ranker:predict"
# Each is tens of megabytes, and is made by the test that sends it.
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "lists": (INFER, lambda: b'{"inputs":[' + b"[]," * 20_000_000 + b"[]]}"),
    "keys": (INFER, lambda: b"{" + b",".join(b'"k%d":0' % each for each in range(3_000_000)) + b"}"),
    "equal inputs": (INFER, lambda: b'{"inputs":[' + b",".join([b'{"name":"a","shape":[1]}'] * 700_000) + b"]}"),
    "instances": (PREDICT, lambda: b'{"instances":[' + b"{}," * 2_500_000 + b"{}]}"),
    "numbers": (INFER, lambda: b'{"inputs":[{"name":"a","data":[' + b"1," * 4_000_000 + b"1]}]}"),
}


@pytest.fixture(scope="module")
def server(
    version_dir: Path, tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Server]
) -> Iterator[Server]:
    """Starts a server with a body limit of 64 MiB, the default."""
    place = tmp_path_factory.mktemp("bombs")
    shutil.copytree(version_dir.parent, place / "models" / "ranker")
    running = start_server(place / "models", place / "store", max_body_bytes=64 << 20)
    yield running
    running.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_it_is_refused_and_others_go_on(server: Server, name: str) -> None:
    path, made = BOMBS[name]
    packed = gzip.compress(made(), 6)
    waits: list[float] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            began = time.perf_counter()
            assert ask(server.http_port, "GET", "/v2/health/live").status == 200
            waits.append(time.perf_counter() - began)

    beside = threading.Thread(target=look)
    beside.start()
    answers = [ask(server.http_port, "POST", path, packed, {"Content-Encoding": "gzip"}) for _ in range(3)]
    ended.set()
    beside.join()
    assert [answer.status for answer in answers] == [400] * 3
    assert "at most" in str(answers[0].content)
    assert max(waits) < 2.0  # of 8.5 s that the first of them took; no figure, only a bound that a shared machine holds


@pytest.mark.parametrize("piece", [b"1", b"0.12345678", b"[]", b'"abc"', b"{}"])
def test_what_is_within_the_bounds_is_read(piece: bytes) -> None:
    marks = max(1, sum(piece.count(mark) for mark in (b",", b"[", b"{", b'"'))) + 1
    count = (MAX_JSON_MARKS - 1) // marks
    text = b"[" + b",".join([piece] * count) + b"]"
    assert len(parse_json(text, what="the request")) == count


@pytest.mark.parametrize("text", [b'"' + b"a" * MAX_JSON_BYTES + b'"', b"[" + b"1," * MAX_JSON_MARKS + b"1]"])
def test_what_is_over_a_bound_says_which(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="at most"):
        parse_json(text, what="the request")


def test_a_large_request_within_the_bounds_is_answered(server: Server) -> None:
    rows = {"inputs": [{"name": "nothing", "datatype": "FP32", "shape": [1, 100_000], "data": [0.5] * 100_000}]}
    answer = ask(server.http_port, "POST", INFER, json.dumps(rows).encode())
    assert (answer.status, "no input" in str(answer.content)) == (400, True)
