"""Decides whether a canary may be served to everybody, by the labels of both arms.

Rows of the main arm count from when the first labelled row of the canary was scored, so that both are judged by the
same hours. The arms answer different requests, so the variance of the difference is the sum of theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from serving.feedback.labelled_rows import Quality
from serving.feedback.score_window import ScoreWindow

# One-sided 95%.
_Z = 1.645
WAITS, PASSES, FAILS = "waits", "passes", "fails"


@dataclass(frozen=True)
class Verdict:
    """Says whether a canary ranks as well as what is served."""

    #: WAITS, PASSES or FAILS.
    kind: str
    reason: str
    main: Quality
    canary: Quality


def judge(window: ScoreWindow, output: str, main: str, canary: str, min_labels: int, max_drop: float) -> Verdict:
    """Compares the live AUC of two snapshots, such as 1.17, by labels of an output.

    It passes when the AUC of the canary is surely, at 95%, not more than `max_drop` below that of the main arm, and
    fails when it surely is; `min_labels` rows of each arm are waited for in any case.
    """
    # A canary that is another version has requests of its own, which count as those of its main arm.
    key = (canary, "canary" if window.first_served((canary, "canary", output)) is not None else "main", output)
    since = window.first_served(key)
    of_canary = window.quality(key)
    of_main = window.quality((main, "main", output), math.inf if since is None else since)
    fewest = min(of_canary.rows, of_main.rows)
    if fewest < min_labels:
        return Verdict(
            WAITS,
            f"{of_canary.rows} labelled rows of {canary} and {of_main.rows} of {main} so far, {min_labels} of each are "
            "needed",
            of_main,
            of_canary,
        )
    auc, other, error, other_error = of_canary.auc, of_main.auc, of_canary.auc_error, of_main.auc_error
    if auc is None or other is None or error is None or other_error is None:
        return Verdict(WAITS, "labels of one kind only came so far for one of the arms", of_main, of_canary)
    difference, margin = auc - other, _Z * math.hypot(error, other_error)
    figures = (
        f"live AUC of {output!r} {auc:.4f} with {canary} and {other:.4f} with {main}, a difference of "
        f"{difference:+.4f} ± {margin:.4f} (95%), over {of_canary.rows} and {of_main.rows} labelled rows; at most "
        f"{max_drop:g} less is allowed"
    )
    if difference - margin >= -max_drop:
        return Verdict(PASSES, figures, of_main, of_canary)
    if difference + margin < -max_drop:
        return Verdict(FAILS, figures, of_main, of_canary)
    return Verdict(WAITS, f"{figures}; more labels are needed to tell", of_main, of_canary)
