"""Holds the objects by which the replicas of a model judge a canary: what the labels of each say, and the verdict.

Each process of a replica writes an object of its own under a name that no other process has. So the labels of one that
has ended or begun anew count on. Whoever holds the lease of the fleet reads them all.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import Field, ValidationError

from storage.checkpoint.signed import SNAPSHOT_PATTERN, Part
from storage.checkpoint.strict_json import canonical_json
from storage.errors import NotFound
from storage.objects.fleet import REPLICAS
from storage.objects.published import PublishedModel
from storage.objects.urls import join

_READS = 8
# What processes wrote about other canaries is deleted when it is as old as this.
_FORGET_MS = 600_000
# Below the objects of the replicas, so that the rights to those are enough.
LABELS, VERDICT = f"{REPLICAS}/trial/labels", f"{REPLICAS}/trial/verdict.json"


class Arm(Part):
    """Says how good the scores of an arm were. A figure is None where it cannot be computed."""

    #: Labelled rows, and those whose label is above 0.5.
    rows: int = Field(default=0, ge=0)
    positives: int = Field(default=0, ge=0)
    auc: float | None = None
    auc_error: float | None = None


class Evidence(Part):
    """Says how good scores were at one server, since it scored the first row of the canary that has a label."""

    #: The snapshots.
    canary: str = Field(pattern=SNAPSHOT_PATTERN)
    main: str = Field(pattern=SNAPSHOT_PATTERN)
    output: str
    of_canary: Arm = Arm()
    of_main: Arm = Arm()

    def is_about(self, other: Evidence) -> bool:
        """Returns whether both compare the same."""
        return (self.canary, self.main, self.output) == (other.canary, other.main, other.output)


class _Written(Part):
    """Holds evidence with when it was written."""

    evidence: Evidence
    unix_ms: int = Field(ge=0)


class TrialReport(Part):
    """Says what live AUC last said of a canary."""

    #: Names of the canary and of what was served, such as 1.18.
    snapshot: str
    against: str
    verdict: Literal["waits", "passes", "fails"]
    reason: str
    #: Id of the replica that judged; "" without a fleet.
    by: str = ""
    unix_ms: int = Field(default=0, ge=0)


class TrialObjects:
    """The objects of one model by which its replicas judge a canary. Thread-safe. All raise ObjectStoreError."""

    def __init__(self, model: PublishedModel) -> None:
        self._model = model

    def share(self, process: str, evidence: Evidence) -> None:
        """Writes what the labels of a process say, whatever they said before."""
        written = _Written(evidence=evidence, unix_ms=time.time_ns() // 1_000_000)
        self._model.objects.put(self._key(process), canonical_json(written.model_dump(mode="json")))

    def shared(self, about: Evidence) -> list[Evidence]:
        """Returns what all processes say about the canary that `about` is about; deletes what is left of older ones."""
        names = self._model.objects.names(join(self._model.name, LABELS))
        with ThreadPoolExecutor(_READS, thread_name_prefix="emberline-trials") as pool:
            written = dict(zip(names, pool.map(self._written, names), strict=True))
        before = time.time_ns() // 1_000_000 - _FORGET_MS
        found = []
        for name, each in written.items():
            if each is not None and each.evidence.is_about(about):
                found.append(each.evidence)
            elif each is not None and each.unix_ms < before:
                self._model.objects.delete([join(self._model.name, LABELS, name)])
        return found

    def say(self, report: TrialReport) -> None:
        """Writes what came of a judgement."""
        key = join(self._model.name, VERDICT)
        self._model.objects.put(key, canonical_json(report.model_dump(mode="json")))

    def said(self) -> TrialReport | None:
        """Returns what came of the last judgement; None where there was none."""
        try:
            found = self._model.objects.read(join(self._model.name, VERDICT))
            assert found is not None
            return TrialReport.model_validate_json(found.data)
        except (NotFound, ValidationError):
            return None

    def _written(self, name: str) -> _Written | None:
        try:
            found = self._model.objects.read(join(self._model.name, LABELS, name))
            assert found is not None
            return _Written.model_validate_json(found.data)
        except (NotFound, ValidationError):
            return None

    def _key(self, process: str) -> str:
        return join(self._model.name, LABELS, f"{process}.json")
