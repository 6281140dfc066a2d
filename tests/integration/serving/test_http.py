"""The HTTP side byte by byte: what a client that is wrong, slow or hostile gets."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from serving import Server

INFER = "/v2/models/ranker/infer"


@pytest.fixture
def connection(server: Server) -> Iterator[http.client.HTTPConnection]:
    made = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    yield made
    made.close()


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text else None


def infer_request(**changes: Any) -> dict[str, Any]:
    item = {"name": "item", "shape": [1, 1], "datatype": "INT64", "data": [3], **changes}
    return {
        "inputs": [
            item,
            {"name": "user", "shape": [1, 1], "datatype": "INT64", "data": [1]},
            {"name": "price", "shape": [1, 2], "datatype": "FP32", "data": [[0.5, 1]]},
        ]
    }


def test_v1_gives_the_scores_of_the_module(connection: http.client.HTTPConnection, published: Any) -> None:
    rows = published.random_rows(64, 17)
    expected = published.score(rows)
    status, answer = ask(connection, "POST", "/v1/models/ranker:predict", {"instances": rows})
    assert status == 200
    for name in expected:
        served = np.array([row[name] for row in answer["predictions"]])
        assert np.abs(served - expected[name][:, 0]).max() <= 1e-6
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    status, answer = ask(connection, "POST", "/v1/models/ranker:predict", {"inputs": columns})
    assert np.abs(np.array(answer["outputs"]["score"]) - expected["score"][:, 0]).max() <= 1e-6


def test_json_nulls_mean_null(connection: http.client.HTTPConnection, published: Any) -> None:
    rows = published.random_rows(3, 19)
    for row in rows:
        row.update(user=1, history=None)
    inputs = [
        {"name": "item", "shape": [3, 1], "datatype": "INT64", "data": [[row["item"]] for row in rows]},
        {"name": "user", "shape": [1, 1], "datatype": "INT64", "data": [[None]]},
        {"name": "history", "shape": [1, 4], "datatype": "INT64", "data": [None]},
        {"name": "price", "shape": [3, 2], "datatype": "FP32", "data": [row["price"] for row in rows]},
    ]
    for row in rows:
        row.update(tags=[])
    status, answer = ask(connection, "POST", INFER, {"inputs": inputs})
    assert status == 200
    assert answer["outputs"][0]["shape"] == [3, 1]
    assert np.abs(np.array(answer["outputs"][0]["data"]) - published.score(rows)["score"][:, 0]).max() <= 1e-6


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v2/models/ranker/versions/1/ready", 200),
        ("GET", "/v2/models/nope/ready", 400),
        ("GET", "/v2/models/nope", 404),
        ("GET", "/v2/models/ranker/versions/2", 404),
        ("GET", "/v2/models/ranker/", 404),
        ("GET", "/nothing", 404),
        ("GET", INFER, 405),
        ("GET", "/v2/", 200),
        ("HEAD", "/v2", 200),
        ("HEAD", "/v2/health/ready", 200),
        ("GET", "/v2/repository/index", 405),
        ("GET", "/v2/repository/models/ranker/snapshots", 200),
        ("GET", "/v2/repository/models/ranker/load", 405),
        ("POST", "/v2/repository/models/ranker/snapshots", 404),
        ("POST", "/v2", 405),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/ranker", 200),
        ("GET", "/v1/models/nope", 404),
        ("POST", "/v1/models/nope:predict", 404),
        ("POST", "/v2/models/nope/infer", 404),
    ],
)
def test_routes_and_their_status(connection: http.client.HTTPConnection, method: str, path: str, status: int) -> None:
    got, answer = ask(connection, method, path)
    assert got == status
    if status >= 404:
        assert isinstance(answer["error"], str)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/ranker/ready", {"name": "ranker", "ready": True}),
        ("/v2/models/nope/ready", {"name": "nope", "ready": False}),
    ],
)
def test_health_has_the_bodies_of_the_protocol(
    connection: http.client.HTTPConnection, path: str, expected: dict[str, Any]
) -> None:
    assert ask(connection, "GET", path) == (200 if expected.get("ready", True) else 400, expected)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v2/health/live", "GET, HEAD"),
        ("POST", "/v2", "GET, HEAD"),
        ("GET", INFER, "POST"),
        ("DELETE", "/v2/models/ranker/versions/1/infer", "POST"),
        ("GET", "/v1/models/ranker:predict", "POST"),
        ("OPTIONS", "/v2/logging", "GET, HEAD, POST"),
        ("PUT", "/v2/repository/models/ranker/budget", "GET, HEAD, POST"),
        ("GET", "/v2/repository/index", "POST"),
    ],
)
def test_a_method_that_is_not_allowed_learns_of_all_that_are(
    connection: http.client.HTTPConnection, method: str, path: str, allow: str
) -> None:
    connection.request(method, path)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Allow"]) == (405, allow)
    answer.read()


def test_an_encoded_slash_divides_nothing(connection: http.client.HTTPConnection) -> None:
    for path in ("/v2/models%2Franker", "/v2/models/ranker%2Fready", "/v2/models/ranker%2finfer"):
        assert ask(connection, "GET", path)[0] == 404
    assert ask(connection, "POST", "/v2/repository/models/ranker%2Funload", {})[0] in (404, 405)
    assert ask(connection, "GET", "/v2/models/ranker/ready")[0] == 200


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"shape": [2**40, 1]}, "item"),
        ({"shape": [2**40, 2**40]}, "item"),
        ({"shape": [-1, 1]}, "item"),
        ({"shape": "many"}, "item"),
        ({"data": [1.5]}, "item"),
        ({"data": ["1"]}, "item"),
        ({"data": [2**64]}, "item"),
        ({"datatype": "FP32"}, "item"),
        ({"name": "itme"}, "item"),
        ({"parameters": {"binary_data_size": 8}}, "item"),
    ],
)
def test_a_malformed_input_is_400_with_its_name(
    connection: http.client.HTTPConnection, change: dict[str, Any], name: str
) -> None:
    status, answer = ask(connection, "POST", INFER, infer_request(**change))
    assert status == 400
    assert name in answer["error"]
    assert "Traceback" not in answer["error"]


def test_malformed_bodies_are_400_and_the_connection_lives_on(connection: http.client.HTTPConnection) -> None:
    for body in (b"", b"{", b"null", b"[" * 9000, b"\x00" * 100, b'{"inputs": [{}]}'):
        assert ask(connection, "POST", INFER, body)[0] == 400
    assert ask(connection, "POST", INFER, infer_request())[0] == 200


@pytest.mark.parametrize("length", ["-1", "99999", "x", "1" * 30])
def test_a_wrong_header_length_is_400(connection: http.client.HTTPConnection, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    status, answer = ask(connection, "POST", INFER, infer_request(), headers)
    assert (status, "Inference-Header-Content-Length" in answer["error"]) == (400, True)


def test_an_encoding_that_is_not_known_is_415_and_names_what_is_taken(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", INFER, b"x", {"Content-Encoding": "br"})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Accept-Encoding"]) == (415, "gzip, deflate")
    assert "'br'" in json.loads(answer.read())["error"]


@pytest.mark.parametrize("path", [INFER, "/v1/models/ranker:predict"])
def test_a_compressed_request_gives_the_same_scores(connection: http.client.HTTPConnection, path: str) -> None:
    rows = [{"user": 1, "history": None, "item": 2, "tags": ["war"], "price": [0.5, 1.0]}] * 60
    body = json.dumps(infer_request() if path == INFER else {"instances": rows}).encode()
    plain = ask(connection, "POST", path, body)
    assert plain[0] == 200
    for encoding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        connection.request("POST", path, packed, {"Content-Encoding": encoding, "Accept-Encoding": encoding})
        answer = connection.getresponse()
        content = answer.read()
        if path != INFER:
            assert answer.headers["Content-Encoding"] == encoding
            content = gzip.decompress(content) if encoding == "gzip" else zlib.decompress(content)
        assert json.loads(content) == plain[1]


def test_a_bomb_is_refused_and_the_connection_goes_on(connection: http.client.HTTPConnection) -> None:
    bomb = gzip.compress(bytes(256 << 20))
    assert len(bomb) < 1 << 20
    connection.request("POST", INFER, bomb, {"Content-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.status == 413
    assert "1048576" in json.loads(answer.read())["error"]
    connection.close()
    status, answer = ask(connection, "POST", INFER, b"not gzip", {"Content-Encoding": "gzip"})
    assert (status, "not gzip" in answer["error"]) == (400, True)
    assert ask(connection, "POST", INFER, infer_request())[0] == 200


def test_a_body_over_the_limit_is_413_before_it_is_read(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as plain:
        plain.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {2**40}\r\n\r\n".encode())
        assert plain.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_chunked_body_is_cut_off_at_the_limit(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as plain:
        plain.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        answer = b""
        try:
            for _ in range(64):
                plain.sendall(chunk)
            answer = plain.recv(4096)
        except (ConnectionResetError, BrokenPipeError):
            answer = plain.recv(4096)
        assert answer.startswith(b"HTTP/1.1 413")


def test_bad_requests_leave_no_memory_behind(server: Server, connection: http.client.HTTPConnection) -> None:
    bad = [
        infer_request(shape=[2**40, 13]),
        infer_request(data=list(range(5000))),
        infer_request(name="x" * 50_000),
        {"inputs": [{"name": f"n{i}"} for i in range(2000)]},
    ]

    def all_of_them(times: int) -> int:
        for _ in range(times):
            for body in bad:
                assert ask(connection, "POST", INFER, body)[0] == 400
        return int(psutil.Process().memory_info().rss)

    before = all_of_them(30)
    after = all_of_them(150)
    assert after - before < 16 << 20


def test_the_metrics_page_counts_requests_and_hits(server: Server, connection: http.client.HTTPConnection) -> None:
    def read() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    before = read()
    assert ask(connection, "POST", INFER, infer_request())[0] == 200
    after = read()
    labels = 'model="ranker",version="1"'
    for arm, count in (("main", 1), ("canary", 0)):
        answered = f'emberline_requests_success_total{{arm="{arm}",{labels}}}'
        assert after[answered] - before[answered] == count
    assert after[f"emberline_ids_absent_total{{{labels}}}"] - before[f"emberline_ids_absent_total{{{labels}}}"] == 2


def test_the_index_can_be_asked_for_ready_models_only(connection: http.client.HTTPConnection) -> None:
    status, answer = ask(connection, "POST", "/v2/repository/index", {"ready": True})
    assert status == 200
    assert answer == [{"name": "ranker", "version": "1", "state": "READY"}]
    assert ask(connection, "POST", "/v2/repository/index", b"")[0] == 200
    assert ask(connection, "POST", "/v2/repository/index", b"[]")[0] == 400


@pytest.mark.parametrize(("path", "size", "status"), [("/v2/models/nope/infer", 900_000, 404), (INFER, 3 << 20, 413)])
def test_a_client_that_sends_all_before_it_reads_has_its_refusal(
    server: Server, path: str, size: int, status: int
) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}{path}", bytes(size))
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=30)
    with raised.value as answer:
        assert answer.code == status
        assert "error" in json.loads(answer.read())


def test_a_refused_body_that_does_not_end_is_not_read_for_ever(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as plain:
        plain.sendall(b"POST /v2/models/nope/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"40000\r\n" + bytes(0x40000) + b"\r\n"

        def send() -> None:
            for _ in range(4000):
                plain.sendall(chunk)

        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            send()


def test_metrics_are_compressed_for_who_accepts_it(server: Server) -> None:
    name = b"emberline_requests_success_total"
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=20)) as connection:
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        assert answer.headers["Content-Encoding"] == "gzip"
        assert name in gzip.decompress(answer.read())
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.headers["Content-Encoding"] is None
        assert name in answer.read()
