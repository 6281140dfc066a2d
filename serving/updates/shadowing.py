"""Keeps the shadow of a model running on what is served now, and reports on it.

The decision is in the model's state; this is what follows from it in this process: the thread that scores, and the
comparison, which begins anew with each shadow and each start of the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pydantic import JsonValue

from serving.engine.model import LoadedModel
from serving.engine.shadow import Dropped, Shadow, ShadowSettings
from serving.engine.shadow_comparison import Comparison, ComparisonFigures
from serving.engine.shadow_verdict import Verdict, verdict
from serving.model_config.options import ModelOptions
from serving.updates.mount import MountedStore, StagedSnapshot
from serving.updates.state import ShadowState


@dataclass(frozen=True)
class ShadowReport:
    """Says how the shadow of a model does."""

    state: ShadowState
    #: The snapshot that it scores; None while that is not loaded.
    entry: StagedSnapshot | None
    verdict: Verdict
    figures: ComparisonFigures
    dropped: Dropped
    #: Sampled requests that are copied and not compared yet.
    waiting: int
    #: When it began to compare; 0 while it is loaded.
    since_unix_ms: int
    #: Memory that the server would not need without it.
    memory_bytes: int
    #: Whether it takes requests.
    is_running: bool


class Shadowing:
    """The shadow of one model. Its model's lock guards it."""

    def __init__(self) -> None:
        #: Why the last shadow ended by itself; "" when it did not.
        self.ended = ""
        self._run: Shadow | None = None
        # Of the shadow before, which may still work on its last slice.
        self._thread: threading.Thread | None = None
        self._served: LoadedModel | None = None
        # Of which shadow the comparison is.
        self._key: tuple[str, int] = ("", 0)
        self._comparison = Comparison(1)
        self._dropped = Dropped()
        self._since_ms = 0

    def show(
        self,
        state: ShadowState | None,
        entry: StagedSnapshot | None,
        served: LoadedModel | None,
        loaded: Iterable[LoadedModel],
    ) -> None:
        """Makes copies of the requests of `served` be scored on `entry`, as `state` says; on nothing where one lacks.

        loaded: every version of the model that is open.
        """
        candidate = None if entry is None else entry.loaded.model
        for model in loaded:
            model.history.set_shadow(entry.snapshot if entry is not None and model is candidate else None)
        if state is None or candidate is None or served is None:
            self._stop()
            if state is None:
                self._key = ("", 0)  # the same snapshot begins anew the next time
            return
        self._begin(state)
        settings = ShadowSettings(state.share, state.top_k, state.until_unix_ms / 1000)
        run = self._run
        if run is not None and (run.main, run.shadow, run.settings) == (served, candidate, settings):
            return
        self._stop()
        self._served = served
        served.shadow = self._run = Shadow(served, candidate, settings, self._comparison, self._thread)
        self._thread = self._run.thread

    def report(
        self, state: ShadowState, entry: StagedSnapshot | None, mount: MountedStore | None, options: ModelOptions
    ) -> ShadowReport:
        """Returns how the shadow does. mount: that of the entry."""
        is_current = self._key == _key(state)  # else what is known is of the shadow before, while this one is loaded
        figures = (self._comparison if is_current else Comparison(1)).figures()
        run = self._run
        if state.error:
            judged = Verdict("fails", state.error)
        elif entry is None:
            judged = Verdict("loading")
        else:
            judged = verdict(figures, options)
        return ShadowReport(
            state,
            entry,
            judged,
            figures,
            self._all_dropped() if is_current else Dropped(),
            0 if run is None else run.waiting,
            self._since_ms if is_current else 0,
            0 if entry is None or mount is None else _memory_bytes(entry, mount),
            run is not None and not run.is_over,
        )

    def _begin(self, state: ShadowState) -> None:
        if self._key != _key(state):
            self._key = _key(state)
            self._comparison = Comparison(state.top_k)
            self._since_ms = time.time_ns() // 1_000_000
            self._stop()
            self._dropped = Dropped()

    def _all_dropped(self) -> Dropped:
        now = Dropped() if self._run is None else self._run.dropped
        before = self._dropped
        return Dropped(before.busy + now.busy, before.full + now.full, before.large + now.large)

    def _stop(self) -> None:
        run = self._run
        if run is not None:
            self._dropped = self._all_dropped()
            self._served.shadow = self._run = None  # type: ignore[union-attr]
            run.close()


def shadow_json(report: ShadowReport) -> dict[str, JsonValue]:
    """Returns a report as a JSON value; docs/live.md describes it."""
    entry, state, figures = report.entry, report.state, report.figures
    timing = figures.timing
    return {
        "id": None if entry is None else entry.id,
        "name": state.to if entry is None else entry.name,
        "to": state.to,
        "follows": state.follows,
        "share": state.share,
        "top_k": state.top_k,
        "running": report.is_running,
        "since_unix_ms": report.since_unix_ms or None,
        "until_unix_ms": state.until_unix_ms or None,
        "verdict": report.verdict.kind,
        "reason": report.verdict.reason,
        "requests": figures.requests,
        "rows": figures.rows,
        "failures": figures.failures,
        "failure": figures.failure,
        "waiting": report.waiting,
        "dropped": dict(asdict(report.dropped)),
        "memory_bytes": report.memory_bytes,
        "outputs": [
            {
                "output": each.output,
                "rows": each.rows,
                "not_finite": each.not_finite,
                "mean_shift": each.mean_shift,
                "mean_absolute_shift": each.mean_absolute_shift,
                "p99_absolute_shift": each.p99_absolute_shift,
                "spread": each.spread,
                "calibration": each.calibration,
                "overlap": each.overlap,
                "overlap_requests": each.overlap_requests,
                "rank_correlation": each.rank_correlation,
            }
            for each in figures.outputs
        ],
        "main_p50_ms": timing.main_p50_ms,
        "main_p99_ms": timing.main_p99_ms,
        "shadow_p50_ms": timing.shadow_p50_ms,
        "shadow_p99_ms": timing.shadow_p99_ms,
        "slowdown": timing.slowdown,
    }


def _key(state: ShadowState) -> tuple[str, int]:
    return state.snapshot or "", state.top_k


def _memory_bytes(entry: StagedSnapshot, mount: MountedStore) -> int:
    """Returns what a shadow adds: its weights, and its rows, unless requests can reach them without it."""
    weights = sum(tensor.nbytes for tensor in entry.snapshot.graph.weights().values())
    if mount.is_hidden:
        return weights + mount.store.stats().bytes["dram"]
    return weights + sum(each.bytes for each in mount.view.beside)
