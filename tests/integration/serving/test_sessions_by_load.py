"""Sessions that follow the load of a server: they come, end again, and leave an operator's number alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from emberline.cli import sessions
from serving import Server
from serving.repository import session_scaler
from tests.integration.serving.conftest import Published, append_config
from tests.integration.serving.http_calls import ask, until

SESSIONS = "/v2/repository/models/ranker/sessions"
_UP_TO_4 = 'parameters { key: "max_sessions" value { string_value: "4" } }\n'


@pytest.fixture
def server(
    repository: Path, tmp_path: Path, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """Starts a server that looks at its sessions more often than servers do."""
    monkeypatch.setattr(session_scaler, "LOOK_S", 0.03)
    append_config(repository, _UP_TO_4)
    running = start_server(repository, tmp_path / "store")
    yield running
    running.stop()


@contextmanager
def load(server: Server, published: Published) -> Iterator[None]:
    """Sends requests from eight clients, and checks their answers."""
    rows = published.random_rows(64, 3)
    expected = published.score(rows)["score"].ravel()
    stop = threading.Event()
    failed: list[Any] = []

    def client() -> None:
        while not stop.is_set():
            answer = ask(server.http_port, "POST", "/v1/models/ranker:predict", {"instances": rows})
            if answer.status != 200 or not np.allclose(
                [row["score"] for row in answer.json["predictions"]], expected, atol=1e-6
            ):
                failed.append(answer)

    clients = [threading.Thread(target=client) for _ in range(8)]
    for thread in clients:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in clients:
            thread.join(30)
    assert not failed


def state(server: Server) -> Any:
    return ask(server.http_port, "GET", SESSIONS).json["versions"][0]


def fix(server: Server, count: int | None) -> None:
    assert ask(server.http_port, "POST", SESSIONS, {"count": count}).status == 200


def shown(server: Server) -> str:
    """Returns what the command prints, its lines put together."""
    result = CliRunner().invoke(sessions.command, ["ranker", "--url", f"http://127.0.0.1:{server.http_port}"])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_sessions_come_with_the_load_and_end_after_it(server: Server, published: Published) -> None:
    assert state(server)["scaling"] == {"least": 1, "most": 4, "fixed": False, "last": None}
    assert "1 to 4 sessions by load (max_sessions); there was no change so far" in shown(server)
    with load(server, published):
        until(lambda: (last := state(server)["scaling"]["last"]) is not None and last["after"] > 1)
    until(lambda: state(server)["count"] == 1)
    last = state(server)["scaling"]["last"]
    assert last["direction"] in ("down", "back")
    assert last["after"] == 1
    page = ask(server.metrics_port, "GET", "/metrics").content.decode()
    counted = [line for line in page.splitlines() if line.startswith("emberline_session_changes_total{")]
    ups = next(float(line.rpartition(" ")[2]) for line in counted if 'direction="up"' in line)
    assert ups >= 1
    assert f"1 instead of {last['before']} since " in shown(server)


def test_the_number_of_an_operator_is_left_alone_until_it_is_freed(server: Server, published: Published) -> None:
    fix(server, 2)
    with load(server, published):
        looks = server.repository._scaler
        until(lambda: state(server)["sessions"][0]["batches"] > 20)
        looks.look()
        assert (state(server)["count"], state(server)["scaling"]["last"]) == (2, None)
        assert "an operator has fixed their number" in shown(server)
        fix(server, None)
        until(lambda: state(server)["scaling"]["last"] is not None)
    until(lambda: state(server)["count"] == 1)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            _UP_TO_4.replace('"4"', '"0"'),
            "parameters.max_sessions: Input should be greater than or equal to 1, got '0'",
        ),
        (_UP_TO_4.replace('"4"', '"many"'), "parameters.max_sessions"),
        (
            _UP_TO_4 + 'parameters { key: "pick" value { string_value: "key" } }',
            "is for pick least_loaded, and pick is key",
        ),
        (_UP_TO_4.replace('"4"', '"2"') + "instance_group { count: 3 }", "is 2, and instance_group has"),
    ],
)
def test_bounds_that_cannot_be_are_refused_by_name(
    repository: Path, tmp_path: Path, start_server: Callable[..., Server], config: str, reason: str
) -> None:
    append_config(repository, config)
    running = start_server(repository, tmp_path / "store")
    try:
        (entry,) = running.repository.index()
        assert reason in entry.reason
        assert "max_sessions" in entry.reason
    finally:
        running.stop()
