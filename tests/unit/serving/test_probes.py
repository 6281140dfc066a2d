"""Tests who counts as somebody that keeps asking whether a server is ready."""

from __future__ import annotations

import pytest

from serving.repository.probes import Probes


def test_two_positive_answers_are_regular_until_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("serving.repository.probes.time.monotonic", lambda: now)
    ready = False
    asked = Probes(lambda: ready)
    assert not any(asked.answer() for _ in range(5))  # a script that waits for the server
    ready = True
    assert asked.answer()
    assert not asked.are_regular
    now = 30.0
    assert asked.answer()
    assert asked.are_regular
    now = 89.0
    assert asked.are_regular
    now = 91.0
    assert not asked.are_regular


def test_a_server_that_is_about_to_stop_is_not_ready() -> None:
    asked = Probes(lambda: True)
    assert asked.is_ready()
    asked.retire()
    assert not asked.is_ready()
    assert not asked.answer()
