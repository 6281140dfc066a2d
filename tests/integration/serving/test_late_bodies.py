"""Tests requests admitted before their model was replaced, whose bodies come later: no old version answers them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path

import numpy as np
import pytest

from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, OUTPUTS, Planted


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path) as running:
        yield running


class Late:
    """A v1 request whose head was admitted, and whose body has not been sent."""

    def __init__(self, live: Live, known: Planted) -> None:
        self.rows = live.world.rows_of(known, 6)
        self._body = json.dumps({"instances": self.rows}).encode()
        self._socket = socket.create_connection(("127.0.0.1", live.server.http_port), timeout=30)
        head = (
            f"POST /v1/models/{NAME}:predict HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
            f"Content-Length: {len(self._body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        assert self._socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"

    def end(self) -> HTTPResponse:
        """Sends the body; returns the response."""
        self._socket.sendall(self._body)
        answer = HTTPResponse(self._socket)
        answer.begin()
        self._socket.close()
        return answer


def check(live: Live, late: Late, expected: Planted) -> None:
    """Asserts that the answer is that of exactly this snapshot."""
    answer = late.end()
    content = json.loads(answer.read())
    assert answer.status == 200, content
    assert answer.headers["emberline-snapshot"] == expected.id
    name = OUTPUTS[0].name
    got = [row[name] if isinstance(row, dict) else row for row in content["predictions"]]
    np.testing.assert_allclose(np.ravel(got), np.ravel(expected.answer(late.rows)[name]), atol=2e-6)


def go_on(live: Live, one: Planted) -> Planted:
    """Switches to a version with the same rows, on the same store."""
    two = live.version(equals=one)
    live.reaches(two)
    return two


def replace_store(live: Live, one: Planted) -> Planted:
    """Switches to a version in a store of its own; the previous one is closed."""
    two = live.version(parent=one)
    live.reaches(two)
    return two


def go_back(live: Live, one: Planted) -> Planted:
    """Switches to the previous version, whose sessions were kept."""
    live.repository.rollback(NAME, to=one.name)
    live.reaches(one)
    return one


def load_again(live: Live, one: Planted) -> Planted:
    live.repository.unload(NAME)
    live.repository.load(NAME)
    return one


@pytest.mark.parametrize("exchange", [go_on, replace_store, load_again])
def test_a_late_body_is_answered_by_what_is_served_then(
    live: Live, exchange: Callable[[Live, Planted], Planted]
) -> None:
    one = live.version()
    live.start()
    live.reaches(one)
    late = Late(live, one)
    check(live, late, exchange(live, one))


def test_a_version_that_was_rolled_back_meanwhile_answers_no_late_body(live: Live) -> None:
    one = live.version()
    live.start()
    live.reaches(one)
    go_on(live, one)
    late = Late(live, one)
    check(live, late, go_back(live, one))


def test_a_late_body_finds_no_version_that_is_about_to_be_closed(live: Live) -> None:
    """Between the moment at which a version is taken out of the routes and the one at which its sessions end."""
    one = live.version()
    live.start()
    live.reaches(one)
    model = live.repository._models[NAME].model
    served = model.default
    assert served is not None
    late = Late(live, one)
    with model.lock:
        mounts = model.mounts
        model.default = None
        model.replace_mounts(())
    try:
        answer = late.end()
    finally:
        with model.lock:
            model.default = served
            model.replace_mounts(mounts)
    assert answer.status == 503
    check(live, Late(live, one), one)


def test_a_late_body_for_a_model_that_was_unloaded_is_refused(live: Live) -> None:
    one = live.version()
    live.start()
    live.reaches(one)
    late = Late(live, one)
    live.repository.unload(NAME)
    answer = late.end()
    assert answer.status == 503
    assert "is not loaded" in json.loads(answer.read())["error"]
