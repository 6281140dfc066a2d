"""The native HTTP server: what it answers is what the Python path answers, and what it does not take goes there."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from serving import Server
from serving.http.native_server import NativeHttpServer
from tests.integration.serving.conftest import Published
from tests.integration.serving.http_calls import Reply, ask, until
from tests.integration.serving.native_clients import (
    BY_PYTHON,
    LENGTH,
    Client,
    answered_alike,
    body_of,
    header,
    request_bytes,
    tensors,
)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server.http_port)
    yield made
    made.connection.close()


def scores(reply: Reply, rows: int) -> dict[str, np.ndarray]:
    length = int(reply.headers[LENGTH.lower()])
    at, found = length, {}
    for entry in json.loads(reply.content[:length])["outputs"]:
        found[entry["name"]] = np.frombuffer(reply.content, np.float32, rows, at).reshape(rows, 1)
        at += 4 * rows
    assert at == len(reply.content)
    return found


def test_an_ordinary_request_is_answered_without_the_python_path(
    native: NativeHttpServer, client: Client, published: Published
) -> None:
    raw = published.random_rows(7, 5)
    plain = [{**row, "history": None, "tags": []} for row in raw]
    before = native.native.answered
    reply = client.post(*body_of(tensors(published, 7, 5)))
    assert reply.status == 200
    assert native.native.answered == before + 1
    expected = published.score(plain)
    for name, values in scores(reply, 7).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5)


def variants(published: Published) -> list[tuple[bytes, int]]:
    """Returns ordinary and less ordinary forms of the same request."""
    values = tensors(published, 3)
    made = [body_of(values), body_of(values, id="request-17"), body_of(values, id="")]
    made.append(body_of(dict(reversed(values.items()))))
    made.append(body_of({**values, "user": values["user"].reshape(3, 1), "item": values["item"].reshape(3)}))
    made.append(body_of({**values, "item": values["item"].astype(np.int32)}))
    made.append(body_of({**values, "user": values["user"].astype(np.uint64)}))
    made.append(body_of({**values, "price": values["price"].astype(np.float64)}))
    outputs: list[list[dict[str, Any]]] = [
        [{"name": "like", "parameters": {"binary_data": True}}],
        [{"name": "like"}, {"name": "score"}],
        [{"name": "like"}, {"name": "like"}],
        [{"name": "like", "parameters": {"binary_data": False}}],
        [{"name": "nobody"}],
        [],
    ]
    made += [body_of(values, outputs=wanted) for wanted in outputs]
    made.append(body_of(values, unknown={"a": [1, None]}))
    made.append(body_of(values, parameters={"binary_data_output": True, "priority": 1}))
    made.append(body_of(values, parameters={"binary_data_output": "yes"}))
    made.append(body_of(values, parameters={}))
    made.append(body_of(values, id="ü"))
    made.append(body_of(values, id='"'))
    made.append(body_of(values, id=5))
    made.append(body_of({name: value for name, value in values.items() if name != "item"}))
    made.append(body_of({**values, "price": values["price"][:2]}))
    made.append(body_of({**values, "price": np.full((3, 2), np.inf, np.float32)}))
    made.append(body_of({**values, "price": np.full((3, 2), 3e38, np.float32)}))
    made.append(body_of({name: value[:0] for name, value in values.items()}))
    made.append(body_of({name: np.repeat(value, 40, axis=0) for name, value in values.items()}))
    text = json.dumps(header(values), indent=2).replace("\n", "\r\n\t").encode()
    made.append((text + b"".join(value.tobytes() for value in values.values()), len(text)))
    return made


def test_every_form_of_a_request_gets_the_answer_of_the_python_path(server: Server, published: Published) -> None:
    for form in variants(published):
        answered_alike(server, form, natively=None)


def test_damaged_requests_get_the_answer_of_the_python_path(server: Server, published: Published) -> None:
    rng = random.Random(7)
    bodies = variants(published)[:12]
    for _ in range(400):
        body, length = rng.choice(bodies)
        damaged = bytearray(body)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(length + 8)
            is_mark = rng.random() < 0.7
            damaged[place] = rng.choice(b'{}[]":,0123456789 tfn\\\x00\xff') if is_mark else rng.randrange(256)
        length = max(1, length + rng.choice((0, 0, 0, 0, -1, 1, 8)))
        answered_alike(server, (bytes(damaged), length), natively=None)


def test_a_connection_comes_back_after_other_requests(
    native: NativeHttpServer, client: Client, published: Published
) -> None:
    body = body_of(tensors(published, 2))
    for _ in range(5):
        before = native.native.answered
        assert client.get("/v2/models/ranker").status == 200
        assert client.post(*body).status == 200
        assert native.native.answered == before + 1


def test_a_connection_whose_requests_are_for_python_stays_there(
    native: NativeHttpServer, client: Client, published: Published
) -> None:
    values = tensors(published, 2)
    for _ in range(6):
        assert client.post(*body_of(values, unknown=1)).status == 200
    before = native.native.passed_on
    for _ in range(5):
        assert client.post(*body_of(values, unknown=1)).status == 200
    assert native.native.passed_on == before


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_requests_arrive_in_pieces_and_ahead_of_their_answers(server: Server, published: Published, piece: int) -> None:
    count = 3 if piece == 1 else 20
    bodies = [body_of(tensors(published, 1 + index % 5, index), id=f"r{index}") for index in range(count)]
    data = b"".join(request_bytes(*each) for each in bodies)
    with socket.create_connection(("127.0.0.1", server.http_port), 30) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            for at in range(0, len(data), piece):
                end.sendall(data[at : at + piece])

        sender = threading.Thread(target=send)
        sender.start()
        # One buffered reader for all answers: HTTPResponse reads ahead.
        with end.makefile("rb") as reader:
            for index in range(count):
                status = reader.readline()
                assert status == b"HTTP/1.1 200 OK\r\n"
                headers = {}
                while (line := reader.readline()) != b"\r\n":
                    name, _, value = line.partition(b": ")
                    headers[name] = value
                content = reader.read(int(headers[b"content-length"]))
                assert f'"id":"r{index}"'.encode() in content
        sender.join()


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("1.0", ""),
        ("1.1", "Expect: 100-continue\r\n"),
        ("1.1", "Connection: close\r\n"),
        ("1.1", "Host: b\r\n"),
        ("1.1", "Content-Length: 5\r\n"),
        ("1.1", "Transfer-Encoding: chunked\r\n"),
        ("1.1", f"{LENGTH}: 3\r\n"),
        ("1.1", "Content-Encoding: gzip\r\n"),
        ("1.1", "A b: c\r\n"),
        ("1.1", " folded: c\r\n"),
        ("1.1", "no-colon\r\n"),
        ("1.1", "Bad: \x01\r\n"),
        ("1.1", "Bare: a\nTransfer-Encoding: chunked\r\n"),
        ("1.1", "Emberline-Routing-Key: k\r\nEmberline-Routing-Key: k\r\n"),
        ("1.1", f"Emberline-Routing-Key: {'k' * 1025}\r\n"),
        ("1.1", "Emberline-Min-Snapshot: 9.9\r\n"),
        ("2.0", ""),
    ],
)
def test_unusual_heads_are_for_the_python_path(
    native: NativeHttpServer, server: Server, published: Published, version: str, headers: str
) -> None:
    before = native.native.answered, native.native.passed_on
    with socket.create_connection(("127.0.0.1", server.http_port), 30) as end:
        end.sendall(request_bytes(*body_of(tensors(published, 1)), version=version, headers=headers))
        assert end.recv(4096).startswith(b"HTTP/1.1 ")
    assert (native.native.answered, native.native.passed_on) == (before[0], before[1] + 1)


def test_a_client_that_leaves_frees_its_place(native: NativeHttpServer, server: Server, published: Published) -> None:
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", server.http_port), 30) as end:
            end.sendall(request_bytes(*body_of(tensors(published, 1))))
    until(lambda: native.native.in_flight == 0 and native.native.connections == 0)


def test_the_metrics_page_says_how_many_were_answered_natively(
    native: NativeHttpServer, server: Server, client: Client, published: Published
) -> None:
    assert client.post(*body_of(tensors(published, 2))).status == 200
    page = ask(server.metrics_port, "GET", "/metrics").content.decode()
    assert f"\nemberline_http_native_requests_total {native.native.answered}\n" in page
    assert f"\nemberline_http_handed_over_total {native.native.passed_on}\n" in page


def test_answers_are_counted(server: Server, client: Client, published: Published) -> None:
    statistics = server.repository.get("ranker").statistics
    before, rows = statistics.stages["success"].count, statistics.inference_count
    assert client.post(*body_of(tensors(published, 2))).status == 200
    until(lambda: statistics.stages["success"].count == before + 1)
    assert statistics.inference_count == rows + 2


def test_a_token_that_nobody_asked_for_changes_nothing(
    native: NativeHttpServer, client: Client, published: Published
) -> None:
    form = body_of(tensors(published, 2))
    reply, before = client.post(*form), native.native.passed_on
    for shown in ("Bearer none", "Basic eDp5", ""):
        assert client.post(*form, {"Authorization": shown}) == reply
    assert native.native.passed_on == before


def test_a_batch_that_cannot_be_answered_is_answered_by_python_one_by_one(
    native: NativeHttpServer, client: Client, published: Published
) -> None:
    values = tensors(published, 2)
    values["price"][:] = 3e38
    reply = client.post(*body_of(values))
    assert reply.status in (200, 400)
    assert client.post(*body_of(values), BY_PYTHON) == reply


@pytest.mark.slow
def test_a_connection_with_unsent_answers_is_not_given_back(
    native: NativeHttpServer, server: Server, published: Published
) -> None:
    look = b"GET /v2/models/ranker/config HTTP/1.1\r\nHost: a\r\n\r\n"
    connections = native._protocol.__self__.server_state.connections  # type: ignore[attr-defined]
    until(lambda: native.native.connections == 0)
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.settimeout(30)
        end.connect(("127.0.0.1", server.http_port))
        end.sendall(look)
        until(lambda: connections)
        (protocol,) = connections
        count = 1
        # Until what the system buffers is full, and a part of an answer waits in the process.
        while protocol._transport.get_write_buffer_size() == 0:
            end.sendall(look * 10)
            count += 10
            until(lambda count=count: protocol._completed == count and protocol._active is None)  # type: ignore[misc]
        end.sendall(request_bytes(*body_of(tensors(published, 1), id="last")))
        with end.makefile("rb") as reader:
            for index in range(count + 1):
                assert reader.readline() == b"HTTP/1.1 200 OK\r\n", (count, index)
                length = 0
                while (line := reader.readline()) != b"\r\n":
                    length = int(line[15:]) if line.startswith(b"content-length:") else length
                content = reader.read(length)
            assert b'"id":"last"' in content
