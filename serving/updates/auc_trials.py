"""Serves updates that were canaries to everybody, or holds them, by what their labels say.

It decides as an operator would, by the same commands. Which arrival becomes a canary is decided when it is committed,
see `applying.agree`, so it is one decision for all replicas of a fleet.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence

from pydantic import JsonValue

from serving.feedback.live_auc import Verdict, arms, judge
from serving.model_config.options import ModelOptions
from serving.protocol.signature import ModelSignature
from serving.updates import commands
from serving.updates.change import carry_out
from serving.updates.judges import Judges
from serving.updates.live_model import LiveModel
from serving.updates.mount import StagedSnapshot
from storage.errors import Conflict, EmberlineError, ObjectStoreError
from storage.objects.trials import Evidence, TrialReport

logger = logging.getLogger("emberline.serving")


class JudgesAlone:
    """The judges of a model that has no other replicas. See Judges."""

    look_s = 1.0

    def __init__(self, model: LiveModel) -> None:
        self._model = model
        self._said: TrialReport | None = None

    def pooled(self, own: Evidence) -> Sequence[Evidence]:
        """See Judges."""
        return (own,)

    def age_s(self, here_s: float) -> float:
        """See Judges."""
        return here_s

    def say(self, report: TrialReport) -> None:
        """See Judges."""
        self._said = report

    def said(self) -> TrialReport | None:
        """See Judges."""
        return self._said

    def decide(self, canary: str, *, promotes: bool, why: str, due_s: float = 0.0) -> None:
        """See Judges."""
        model = self._model
        with model.lock:
            carry_out(model, commands.end_trial(model, canary, promotes=promotes, why=why))


class AucTrials:
    """Decides about the canaries of a model while its options say so.

    One thread uses it, but for `report`: that of the updates, or one of the fleet, whose object store may not answer.
    """

    def __init__(self, model: LiveModel) -> None:
        self._model = model
        self._alone = JudgesAlone(model)
        # The canary that runs, and since when it has here; "" for none. None: what was said before is not read so far.
        self._running: str | None = None
        self._since = self._look_at = 0.0
        model.trial_report, model.judge_canary = self.report, self.tick
        self._report: dict[str, JsonValue] | None = None
        # Why updates are not judged, and why the last look failed; both are logged once.
        self._trouble = self._failure = ""

    def report(self) -> dict[str, JsonValue] | None:
        """Returns what was last decided, and why; None for nothing."""
        return self._report

    def tick_alone(self) -> None:
        """Judges as `tick` does, for a model of no fleet; that of one is judged by a thread of the fleet."""
        if self._model.judges is None:
            self.tick()

    def tick(self) -> None:
        """Judges the canary that runs. A failure is logged, and the next look tries again."""
        judges, now = self._model.judges or self._alone, time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + judges.look_s
        try:
            options = self._options()
            if options is not None:
                self._look(options, judges, now)
            self._failure = ""
        except Exception as error:  # none may end the thread of the updates
            text = str(error) or type(error).__name__
            if text != self._failure:
                known = isinstance(error, EmberlineError)
                name = self._model.name
                logger.error("%s: a canary cannot be judged: %s", name, text, exc_info=None if known else error)
            self._failure = text

    def _look(self, options: ModelOptions, judges: Judges, now: float) -> None:
        model = self._model
        with model.lock:
            running = model.canary_entry()
            served = None if model.default is None else model.default.view.current
        if running is None or served is None:
            if self._running != "":
                with contextlib.suppress(ObjectStoreError):  # the next look asks again
                    self._show(judges.said())
                    self._running = ""
            return
        if running[1].id != self._running:
            self._running, self._since = running[1].id, now
        self._judge(options, judges, served, running[1])

    def _judge(self, options: ModelOptions, judges: Judges, served: StagedSnapshot, canary: StagedSnapshot) -> None:
        window = self._model.feedback.window
        assert window is not None
        output = options.live_auc_output or first_output(served.loaded.model.signature)
        of_main, of_canary = arms(window, output, served.name, canary.name)
        pooled = judges.pooled(
            Evidence(canary=canary.id, main=served.id, output=output, of_canary=of_canary, of_main=of_main)
        )
        if pooled is None:
            self._show(judges.said())
            return
        bounds = (options.live_auc_min_labels, options.live_auc_max_drop)
        verdict = judge(pooled, output, served.name, canary.name, *bounds)
        is_over = judges.age_s(time.monotonic() - self._since) >= options.live_auc_timeout_s
        due_s = 0.0
        if verdict.kind == "waits" and is_over:
            due_s = options.live_auc_timeout_s
            verdict = Verdict("fails", f"no judgement within {options.live_auc_timeout_s:g} s: {verdict.reason}")
        report = TrialReport(snapshot=canary.name, against=served.name, verdict=verdict.kind, reason=verdict.reason)
        # Before the decision holds: whoever sees that the canary has ended finds out why.
        judges.say(report)
        self._show(report)
        if verdict.kind != "waits":
            self._decide(judges, canary, verdict, report, due_s)

    def _decide(
        self, judges: Judges, canary: StagedSnapshot, verdict: Verdict, report: TrialReport, due_s: float
    ) -> None:
        model, promotes = self._model, verdict.kind == "passes"
        try:
            judges.decide(canary.id, promotes=promotes, why=f"of its live AUC: {verdict.reason}", due_s=due_s)
        except Conflict as error:
            # An operator or another replica was faster, and the verdict did not decide.
            report = report.model_copy(update={"verdict": "waits", "reason": f"{error}; {verdict.reason}"})
            judges.say(report)
            self._show(report)
            return
        if promotes:
            logger.info("%s: %s is served to all: %s", model.name, canary.name, verdict.reason)
        else:
            model.counters.live_auc_held += 1
            logger.error("%s: %s is held: %s", model.name, canary.name, verdict.reason)

    def _show(self, report: TrialReport | None) -> None:
        keys = {"snapshot", "against", "verdict", "reason"}
        self._report = None if report is None else report.model_dump(mode="json", include=keys)

    def _options(self) -> ModelOptions | None:
        """Returns the options of a model whose updates are tried; None for others."""
        model = self._model
        options = None if model.config is None else model.config.options
        if options is None or options.live_auc_fraction == 0:
            if self._trouble:
                self._report, self._trouble = None, ""
            return None
        trouble = "" if model.feedback.window is not None else "live_auc_fraction needs labels; set feedback_share"
        if trouble != self._trouble:
            self._trouble, self._report = trouble, None
            if trouble:
                logger.error("%s: %s; updates are not judged by their live AUC", model.name, trouble)
                self._report = {"snapshot": None, "against": None, "verdict": "off", "reason": trouble}
        return None if trouble else options


def first_output(signature: ModelSignature) -> str:
    """Returns the first output of one number a row; "" where there is none."""
    for output in signature.outputs:
        if output.dtype.startswith("FP") and all(size == 1 for size in output.dims):
            return output.name
    return ""
