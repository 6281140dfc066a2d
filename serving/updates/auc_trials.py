"""Lets updates be canaries first, and serves them to everybody, or holds them, by what their labels say.

It decides as an operator would, by the same commands: an arrival becomes the canary, and that is promoted or stopped.
"""

from __future__ import annotations

import logging
import time

from pydantic import JsonValue

from serving.feedback.live_auc import FAILS, PASSES, WAITS, Verdict, judge
from serving.model_config.options import ModelOptions
from serving.protocol.signature import ModelSignature
from serving.updates import commands
from serving.updates.agreement import Alone
from serving.updates.change import carry_out
from serving.updates.live_model import LiveModel
from serving.updates.state import CanaryState
from storage.errors import EmberlineError

logger = logging.getLogger("emberline.serving")

_LOOK_S = 1.0


def waits_for_trial(model: LiveModel) -> bool:
    """Returns whether what arrives next is tried by live AUC, and nothing is so far. Call it under the model's lock."""
    canary = model.facts.canary
    if canary is None or canary.snapshot or canary.to or model.config is None:
        return False
    return canary.fraction == model.config.options.live_auc_fraction


class AucTrials:
    """Decides about the canaries of a model while its options say so. One thread uses it, but for `report`."""

    def __init__(self, model: LiveModel) -> None:
        self._model = model
        self._running = ""
        # What `expect` has set and nobody has changed since; None for nothing.
        self._expected: CanaryState | None = None
        self._since = self._look_at = 0.0
        model.trial_report = self.report
        self._report: dict[str, JsonValue] | None = None
        self._trouble = ""

    def report(self) -> dict[str, JsonValue] | None:
        """Returns what it last decided, and why; None for nothing."""
        return self._report

    def expect(self) -> None:
        """Makes what is taken next a canary, where something is served already and no operator has decided.

        Where the options do not say so any more, it is served to all again.
        """
        model, options = self._model, self._options()
        wanted = None if options is None else CanaryState(fraction=options.live_auc_fraction)
        with model.lock:
            facts = model.facts
            is_own = self._expected is not None and facts.canary == self._expected
            is_decided = facts.canary is not None or facts.shadow is not None or facts.pinned or facts.paused
            if facts.canary == wanted:
                self._expected = wanted
                return
            if model.default is None or (is_decided and not is_own):
                return
            model.commit(facts=facts.model_copy(update={"canary": wanted}))
            self._expected = wanted

    def tick(self) -> None:
        """Judges the canary that runs. A failure is logged, and the next call tries again."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        try:
            options = self._options()
            if options is not None:
                self._judge(options, now)
        except EmberlineError as error:
            logger.error("%s: the canary could not be judged: %s", self._model.name, error)

    def _judge(self, options: ModelOptions, now: float) -> None:
        model = self._model
        with model.lock:
            running = model.canary_entry()
            default = model.default
        if running is None or default is None:
            self._running = ""
            return
        entry, served = running[1], default.view.current
        if entry.id != self._running:
            self._running, self._since = entry.id, now
        window = model.feedback.window
        assert window is not None
        output = options.live_auc_output or first_output(served.loaded.model.signature)
        verdict = judge(window, output, served.name, entry.name, options.live_auc_min_labels, options.live_auc_max_drop)
        if verdict.kind == WAITS and now - self._since >= options.live_auc_timeout_s:
            text = f"no judgement within {options.live_auc_timeout_s:g} s: {verdict.reason}"
            verdict = Verdict(FAILS, text, verdict.main, verdict.canary)
        names: dict[str, JsonValue] = {"snapshot": entry.name, "against": served.name}
        self._report = {**names, "verdict": verdict.kind, "reason": verdict.reason}
        if verdict.kind != WAITS:
            self._decide(entry.id, entry.name, verdict)

    def _decide(self, snapshot: str, name: str, verdict: Verdict) -> None:
        model = self._model
        with model.lock:
            running = model.canary_entry()
            if running is None or running[1].id != snapshot:  # an operator was faster
                return
            if verdict.kind == PASSES:
                carry_out(model, commands.promote(model))
            else:
                carry_out(model, commands.stop_canary(model, why=f"of its live AUC: {verdict.reason}"))
        if verdict.kind == PASSES:
            logger.info("%s: %s is served to all: %s", model.name, name, verdict.reason)
        else:
            model.counters.live_auc_held += 1
            logger.error("%s: %s is held: %s", model.name, name, verdict.reason)

    def _options(self) -> ModelOptions | None:
        """Returns the options of a model whose updates are tried; None for others."""
        model = self._model
        options = None if model.config is None else model.config.options
        if options is None or options.live_auc_fraction == 0:
            if self._trouble:
                self._report, self._trouble = None, ""
            return None
        trouble = ""
        if model.feedback.window is None:
            trouble = "live_auc_fraction needs labels; set feedback_share"
        elif not isinstance(model.agreement, Alone):
            trouble = "live_auc_fraction is for servers without a fleet, whose replicas switch together"
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
