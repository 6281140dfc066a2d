"""Decides whether a canary may be served to everybody, by the labels of both arms at one server or at several.

Rows of the main arm count from when the first labelled row of the canary was scored, so that both are judged by the
same hours. The arms answer different requests, so the variance of the difference is the sum of theirs.

Each server knows the labels of the requests that it answered. So the estimate is stratified: the difference is taken
within each server, where both arms have the same requests but for chance, and the mean of the differences is weighted
by what their variance would be if all rows were alike. Weights by the estimated errors would prefer servers that have
a small error by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from serving.feedback.labelled_rows import Quality
from serving.feedback.score_window import ScoreWindow
from storage.objects.trials import Arm, Evidence

# One-sided 95%.
_Z = 1.645


@dataclass(frozen=True)
class Verdict:
    """Says whether a canary ranks as well as what is served."""

    kind: Literal["waits", "passes", "fails"]
    reason: str


def arms(window: ScoreWindow, output: str, main: str, canary: str) -> tuple[Arm, Arm]:
    """Returns the live AUC of two snapshots at this server, such as 1.17 and 1.18, by labels of an output."""
    # A canary that is another version has requests of its own, which count as those of its main arm.
    key = (canary, "canary" if window.first_served((canary, "canary", output)) is not None else "main", output)
    since = window.first_served(key)
    of_main = window.quality((main, "main", output), math.inf if since is None else since)
    return _arm(of_main), _arm(window.quality(key))


def judge(
    evidence: Sequence[Evidence], output: str, main: str, canary: str, min_labels: int, max_drop: float
) -> Verdict:
    """Compares the live AUC of two snapshots, such as 1.17 and 1.18, by what servers know.

    It passes when the AUC of the canary is surely, at 95%, not more than `max_drop` below that of the main arm, and
    fails when it surely is; `min_labels` rows of each arm are waited for in any case. A server where an arm has labels
    of one kind only counts for nothing.
    """
    rows = [sum(each.of_canary.rows for each in evidence), sum(each.of_main.rows for each in evidence)]
    if min(rows) < min_labels:
        text = f"{rows[0]} labelled rows of {canary} and {rows[1]} of {main} so far, {min_labels} of each are needed"
        return Verdict("waits", text)
    known = [each for each in evidence if _is_known(each.of_canary) and _is_known(each.of_main)]
    rows = [sum(each.of_canary.rows for each in known), sum(each.of_main.rows for each in known)]
    if min(rows) < min_labels:
        text = f"{rows[0]} labelled rows of {canary} and {rows[1]} of {main} are of servers where both have labels of "
        return Verdict("waits", f"{text}both kinds, of two requests at least; {min_labels} of each are needed")
    weights = [1 / (_spread(each.of_canary) + _spread(each.of_main)) for each in known]
    total = sum(weights)
    auc, other, variance = 0.0, 0.0, 0.0
    for weight, each in zip(weights, known, strict=True):
        auc += weight / total * (each.of_canary.auc or 0.0)
        other += weight / total * (each.of_main.auc or 0.0)
        errors = math.hypot(each.of_canary.auc_error or 0.0, each.of_main.auc_error or 0.0)
        variance += (weight / total * errors) ** 2
    difference, margin = auc - other, _Z * math.sqrt(variance)
    figures = (
        f"live AUC of {output!r} {auc:.4f} with {canary} and {other:.4f} with {main}, a difference of "
        f"{difference:+.4f} ± {margin:.4f} (95%), over {rows[0]} and {rows[1]} labelled rows; at most "
        f"{max_drop:g} less is allowed"
    )
    if difference - margin >= -max_drop:
        return Verdict("passes", figures)
    if difference + margin < -max_drop:
        return Verdict("fails", figures)
    return Verdict("waits", f"{figures}; more labels are needed to tell")


def _arm(quality: Quality) -> Arm:
    return Arm(rows=quality.rows, positives=quality.above, auc=quality.auc, auc_error=quality.auc_error)


def _is_known(arm: Arm) -> bool:
    return arm.auc is not None and arm.auc_error is not None


def _spread(arm: Arm) -> float:
    """Returns what the variance of an AUC is proportional to, roughly: the rarer kind of label sets it."""
    positives = min(max(arm.positives, 1), arm.rows - 1)
    return 1 / positives + 1 / (arm.rows - positives)
