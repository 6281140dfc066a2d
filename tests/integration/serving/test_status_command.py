"""`emberline status` against a server: what it serves since when, what it answered, and what an operator must see."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emberline.cli import plan, status
from storage.errors import EmberlineError
from tests.integration.serving.identity_models import write_identity
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        version = running.version()
        running.start()
        monkeypatch.setenv("EMBERLINE_URL", f"http://127.0.0.1:{running.server.http_port}")
        monkeypatch.setenv("COLUMNS", "80")
        running.reaches(version)
        yield running


def said(*arguments: str) -> str:
    done = CliRunner().invoke(status.command, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def told() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said("--json"))
    return found


def test_it_says_what_is_served_since_when_and_by_which_server(live: Live) -> None:
    began = time.time() * 1000
    (start,) = live.snapshots.values()
    newer = live.delta(start)
    live.reaches(newer)
    served = told()["models"][NAME]["snapshots"]["served"]
    assert (served["id"], served["name"]) == (newer.id, newer.name)
    assert began - 1000 <= served["since_unix_ms"] <= time.time() * 1000 + 1
    text = said()
    assert text.startswith(f"http://127.0.0.1:{live.server.http_port}: emberline ")
    assert ", ready\n" in text
    (row,) = (line for line in text.splitlines() if line.startswith(NAME))
    assert row.split()[:2] == [NAME, newer.name]
    assert "following" in row
    assert max(map(len, text.splitlines())) <= 80


def test_a_rollback_begins_anew_and_shows_what_is_held(live: Live) -> None:
    (start,) = live.snapshots.values()
    newer = live.delta(start)
    live.reaches(newer)
    since = told()["models"][NAME]["snapshots"]["served"]["since_unix_ms"]
    time.sleep(0.01)
    live.repository.rollback(NAME)
    assert told()["models"][NAME]["snapshots"]["served"]["since_unix_ms"] > since
    assert f"{NAME}: held: {newer.name}\n" in said()


def test_answers_are_counted_and_a_refusal_is_shown_with_its_reason(live: Live) -> None:
    before = told()["models"][NAME]["answered"]
    live.served()
    after = told()["models"][NAME]
    assert (after["answered"], after["failed"]) == (before + 1, 0)
    live.world.change(next(iter(live.snapshots.values())), wrong_row=True)
    live.until(live.refused)
    (line,) = (line for line in said().splitlines() if line.startswith(f"{NAME}: refused "))
    assert "golden requests" in line


def test_a_model_that_serves_nothing_is_named_with_the_reason(live: Live) -> None:
    live.repository.unload(NAME)
    text = said()
    (row,) = (line for line in text.splitlines() if line.startswith(f"{NAME} "))
    assert row.split()[:2] == [NAME, "nothing"]
    assert f"{NAME}: UNAVAILABLE: unloaded\n" in text


def test_an_identity_model_is_served_without_snapshots(live: Live) -> None:
    write_identity(live.world.repository, "echo", {"x": ("FP32", [3])}, max_batch=4)
    live.repository.load("echo")
    text = said()
    (row,) = (line for line in text.splitlines() if line.startswith("echo"))
    assert row.split()[:3] == ["echo", "version", "1"]
    model = told()["models"]["echo"]
    assert model["versions"] == [{"version": "1", "state": "READY"}]
    assert model["snapshots"] is None
    assert "trouble" not in model
    live.repository.unload("echo")
    lines = [line for line in said().splitlines() if line.startswith("echo")]
    assert lines[0].split()[:2] == ["echo", "nothing"]
    assert lines[1:] == ["echo: UNAVAILABLE: unloaded"]


def test_no_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERLINE_URL", "http://127.0.0.1:1")
    done = CliRunner().invoke(status.command, [])
    assert "no answer from http://127.0.0.1:1/v2" in str(done.exception)


def test_a_model_that_is_not_loaded_has_no_plan(live: Live) -> None:
    live.repository.unload(NAME)
    done = CliRunner().invoke(plan.command, [NAME, "--url", f"http://127.0.0.1:{live.server.http_port}"])
    assert isinstance(done.exception, EmberlineError), repr(done.exception)
