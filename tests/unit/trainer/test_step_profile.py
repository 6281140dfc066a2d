"""Tests of the figures of training stages."""

from __future__ import annotations

import pytest

from trainer.step_profile import StepProfile


def test_without_a_step_there_is_no_report() -> None:
    assert StepProfile().report() is None


def test_the_stage_ahead_that_takes_longer_than_a_step_holds_the_others_up() -> None:
    profile = StepProfile({"features": 2})
    for stage, seconds in (("read", 0.1), ("features", 1.8), ("lookup", 0.1), ("dense", 0.2), ("update", 0.1)):
        profile.add(stage, seconds)
    profile.add("wait", 0.5)
    profile.step(1.0)
    report = profile.report()
    assert report is not None
    assert report.bound_by == "features"
    assert {stage.name: stage.share for stage in report.stages} == pytest.approx(
        {"read": 0.1, "features": 0.9, "lookup": 0.1, "dense": 0.2, "update": 0.1}
    )
    assert report.line() == (
        "read 10%, features 90%, lookup 10%, dense 20%, update 10%; waited for data 50%; held up by features"
    )


def test_a_step_that_is_longer_than_the_stages_ahead_names_its_longest_part() -> None:
    profile = StepProfile()
    for stage, seconds in (("read", 0.3), ("features", 0.5), ("lookup", 0.2), ("dense", 0.4), ("update", 0.3)):
        profile.add(stage, seconds)
    profile.step(1.0)
    report = profile.report()
    assert report is not None
    assert (report.bound_by, report.short()) == ("dense", "dense 40%")
