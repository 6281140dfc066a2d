"""Background work pauses for requests, and for nobody while it is alone."""

from __future__ import annotations

import time

import pytest

from storage.tiers.pace import Pace


def test_it_pauses_once_it_is_not_alone_any_more_and_not_for_what_it_did_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, slept = [0.0], [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.append(seconds))
    alone = True
    pace = Pace(duty=0.5, alone=lambda: alone)
    for _ in range(100):
        clock[0] += 1.0
        pace.step()
    assert sum(slept) == 0
    alone = False
    clock[0] += 0.001
    pace.step()
    assert sum(slept) == pytest.approx(0.001)
