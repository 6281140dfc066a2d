"""`emberline status` and `emberline snapshots` say in a line each what labels, and the log of requests, say."""

from __future__ import annotations

from typing import Any

from emberline.cli.snapshots import feedback_lines

QUALITY = {"output": "click", "arm": "main", "auc": 0.71234, "auc_error": 0.0123, "rows": 12_345}


def state(**changed: Any) -> dict[str, Any]:
    return {"served": {"name": "1.17"}, "feature_log": None, "feedback": None, "live_auc": None, **changed}


def test_nothing_is_said_of_nothing() -> None:
    assert list(feedback_lines(state())) == []
    assert list(feedback_lines({"served": None})) == []
    assert list(feedback_lines(state(feature_log={"trouble": ""}, feedback={"quality": []}))) == []


def test_the_served_snapshot_and_trouble_have_a_line() -> None:
    others = [{**QUALITY, "snapshot": "1.16"}, {**QUALITY, "snapshot": "1.17", "auc": None}]
    canary = {**QUALITY, "snapshot": "1.17", "arm": "canary", "auc_error": None}
    told = state(
        feature_log={"trouble": "the disk is full"},
        feedback={"quality": [*others, {**QUALITY, "snapshot": "1.17"}, canary]},
        live_auc={"snapshot": "1.18", "verdict": "waits", "reason": "12 labelled rows"},
    )
    assert list(feedback_lines(told)) == [
        "the log of requests: the disk is full",
        "live AUC of click: 0.7123 ± 0.0123 over 12,345 labelled rows",
        "live AUC of click (canary): 0.7123 over 12,345 labelled rows",
        "trial by live AUC of 1.18: waits: 12 labelled rows",
    ]
    trouble = state(live_auc={"snapshot": None, "verdict": "off", "reason": "set feedback_share"})
    assert list(feedback_lines(trouble)) == ["trial by live AUC: off: set feedback_share"]
