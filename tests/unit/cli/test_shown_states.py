"""Checks that what `emberline sessions` and `emberline fleet` print of a state names what does not work."""

from __future__ import annotations

from typing import Any

import pytest

from emberline.cli import fleet, sessions


def gpu(given_up: str, rows: str) -> dict[str, Any]:
    return {"given_up": given_up, "hbm": {"given_up": rows}}


def test_the_sessions_name_gpus_that_are_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    runner: dict[str, Any] = {"name": "fused", "compared": []}
    gpus = {
        "0": gpu("it is lost", "it is lost"),
        "1": gpu("", "no memory"),
        "2": gpu("", ""),
        "3": {**gpu("", ""), "hbm": None},
    }
    version = {
        "version": "1",
        "count": 4,
        "pick": "next_free",
        "queued": 0,
        "runner": runner,
        "gpus": gpus,
        "sessions": [],
    }
    sessions.show({"model": "m", "configured": 4, "versions": [version]})
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "GPU" in line]
    assert lines == ["GPU 0 is not used any more: it is lost", "GPU 1 holds no rows any more: no memory"]


@pytest.mark.parametrize(
    ("health", "behind", "says"),
    [
        ("ready", False, "all serve 1.1"),
        ("unknown", False, "all serve 1.1"),
        ("unready", False, "all that are ready serve 1.1"),
        ("gone", False, "all that are ready serve 1.1"),
        ("ready", True, "all should serve 1.1"),
    ],
)
def test_the_fleet_does_not_say_that_all_serve_what_one_does_not(
    health: str, behind: bool, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replica = {"id": "b", "url": "http://b", "health": health, "behind": behind, "trouble": "", "reported_unix_ms": 0}
    named = {"id": "5c1f", "name": "1.1"}
    state = {
        "model": "m",
        "asked": "a",
        "mode": "following",
        "served": named,
        "newest": named,
        "since_unix_ms": 0,
        "by": "a",
        "store": {"error": ""},
        "canary": None,
        "held": [],
        "refused": [],
        "lease": {"holder": "a"},
        "previous": None,
        "replicas": [{**replica, "serves": named, "staged": None}],
    }
    fleet.show(state)
    assert f"m: following, {says} (5c1f)" in capsys.readouterr().out
