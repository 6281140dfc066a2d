"""Defines who judges a canary: a server alone, or the replicas of a fleet together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from storage.objects.trials import Evidence, TrialReport


class Judges(Protocol):
    """Is asked by the trials of a model, on one thread. All raise EmberlineError."""

    #: Seconds between two looks at a canary.
    look_s: float

    def pooled(self, own: Evidence) -> Sequence[Evidence] | None:
        """Tells the others what the labels of this server say of a canary.

        Returns what those of all servers say, or None where another one judges by them now.
        """

    def age_s(self, here_s: float) -> float:
        """Returns how long the canary has run. here_s: as far as this server has seen."""

    def say(self, report: TrialReport) -> None:
        """Keeps what came of a judgement."""

    def said(self) -> TrialReport | None:
        """Returns what came of the last judgement of any server; None where there was none."""

    def decide(self, canary: str, *, promotes: bool, why: str, due_s: float = 0.0) -> None:
        """Promotes a canary at all servers, or stops it and says why.

        due_s: the age that it must have. Raises Conflict where it runs no more, or is not so old.
        """
