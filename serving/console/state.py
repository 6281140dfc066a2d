"""Collects what the pages show, once for all of them, as events that are encoded already."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.engine.model import LoadedModel
from serving.engine.statistics import ModelStatistics
from serving.protocol.json_text import dump_json
from serving.repository.model_repository import Answerer, ModelRepository, VersionEntry
from storage.errors import EmberlineError, StoreError
from storage.tiers.tiered import StoreStats, TableStats

# What needs more time of a core to collect is collected less often, so that it takes a bounded share of one.
_LEAST_S, _SHARE = 5.0, 0.01
# Where the figures come from the published version and not from traffic.
_PUBLISHED_S = 600.0

_COUNTERS = (
    *("deltas_applied", "versions_loaded", "rollbacks", "refused", "merges", "merge_failures", "last_visible_ms"),
    *("last_delta_rows", "overlays", "overlay_bytes", "newest_event_unix_ms"),
)


@dataclass(frozen=True)
class Seen:
    """Is the state of all models at one moment."""

    #: In milliseconds, of a clock that only goes forward.
    at_ms: float
    #: A line of the list of models by name of the model.
    models: Mapping[str, bytes]
    #: Events about models that a page watches, by name of the event and of the model.
    events: Mapping[tuple[str, str], bytes]


@dataclass(frozen=True)
class _Kept:
    """An event that is not made anew each time."""

    event: bytes
    #: What was served then.
    served: Any
    #: When it may be made anew: from `soonest_s` on if something else is served by then.
    soonest_s: float
    due_s: float


class Look:
    """Collects the state of a repository. `now` and `slowly` may be called at the same time, each once at a time."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._kept: dict[tuple[str, str], _Kept] = {}

    def now(self, watched: Iterable[str]) -> Seen:
        """Returns the list of models, and the events of those that are watched."""
        at_ms = time.monotonic() * 1e3
        entries: dict[str, list[VersionEntry]] = {}
        for entry in self._repository.index():
            entries.setdefault(entry.model, []).append(entry)
        answerers: dict[str, list[Answerer]] = {}
        for answerer in self._repository.answerers():
            answerers.setdefault(answerer.name, []).append(answerer)
        models = {name: _json(self._line(name, entries[name], answerers.get(name, []))) for name in sorted(entries)}
        events: dict[tuple[str, str], bytes] = {}
        for name in watched:
            if name in entries:
                events["model", name] = _json(self._model(name, entries[name]))
                events["load", name] = _json(_load(name, at_ms, answerers.get(name, [])))
        return Seen(at_ms, models, events)

    def slowly(self, watched: Iterable[str]) -> dict[tuple[str, str], bytes]:
        """Returns further events of models, which may be some seconds old: those that read much, or ask others."""
        names = sorted(set(watched) & set(self._repository.names))
        asked: dict[str, Callable[[str], Mapping[str, Any]]] = {"memory": self._repository.memory}
        if self._repository.fleet is not None:
            asked["fleet"] = self._repository.fleet_view
        self._kept = {key: kept for key, kept in self._kept.items() if key[1] in names}
        for name in names:
            for event, ask in asked.items():
                self._renew(event, name, ask)
        return {key: kept.event for key, kept in self._kept.items()}

    def _renew(self, event: str, name: str, ask: Callable[[str], Mapping[str, Any]]) -> None:
        started, used = time.monotonic(), time.thread_time()
        served = _told(lambda: self._repository.outline(name)).get("served")
        kept = self._kept.get((event, name))
        if kept is not None and started < (kept.due_s if served == kept.served else kept.soonest_s):
            return
        found = _told(lambda: ask(name))
        soonest = started + max(_LEAST_S, (time.thread_time() - used) / _SHARE)
        due = started + _PUBLISHED_S if found.get("source") == "published" else soonest
        self._kept[event, name] = _Kept(_json({"name": name, **found}), served, soonest, max(due, soonest))

    def _line(self, name: str, entries: list[VersionEntry], answerers: list[Answerer]) -> dict[str, Any]:
        ready = [entry for entry in entries if entry.state == "READY"]
        reason = next((entry.reason for entry in reversed(entries) if entry.reason), "")
        arms = [arm for each in answerers for arm in each.arms.values()]
        return {
            "name": name,
            "state": "READY" if ready else entries[-1].state,
            "versions": [entry.version for entry in ready],
            "reason": reason,
            "answered": sum(arm.stages["success"].count for arm in arms),
            "failed": sum(arm.stages["fail"].count for arm in arms),
            "rows": sum(arm.inference_count for arm in arms),
            "queued": sum(each.queued for each in answerers),
            "updates": _told(lambda: self._repository.outline(name)),
        }

    def _model(self, name: str, entries: list[VersionEntry]) -> dict[str, Any]:
        def counters() -> dict[str, Any]:
            found = self._repository.update_counters(name)
            return {key: getattr(found, key) for key in _COUNTERS}

        return {
            "name": name,
            "versions": [{"version": each.version, "state": each.state, "reason": each.reason} for each in entries],
            "snapshots": _told(lambda: self._repository.snapshots(name)),
            "counters": _told(counters),
        }


def _load(name: str, at_ms: float, answerers: list[Answerer]) -> dict[str, Any]:
    return {"name": name, "at_ms": at_ms, "versions": [_version(each) for each in answerers]}


def _json(value: Any) -> bytes:
    """Writes JSON, also of names that are no Unicode: names of folders may be any bytes."""
    try:
        return dump_json(value)
    except TypeError:
        return json.dumps(value).encode("ascii")


def _told(ask: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what was asked for, or `error` with the reason where a model has nothing of the kind, or not now."""
    try:
        return {**ask()}
    except EmberlineError as error:
        return {"error": str(error)}


def _version(answerer: Answerer) -> dict[str, Any]:
    told: dict[str, Any] = {
        "version": answerer.version,
        "queued": answerer.queued,
        "arms": {name: _arm(arm) for name, arm in answerer.arms.items() if name == "main" or _is_used(arm)},
    }
    if isinstance(answerer, LoadedModel):
        told["sessions"] = [
            {
                "name": session.name,
                "device": "cpu" if session.place is None else f"cuda:{session.place}",
                "batches": session.statistics.batches,
                "rows": session.statistics.rows,
                "busy_s": session.statistics.busy_ns / 1e9,
            }
            for session in answerer.group.sessions
        ]
        try:
            told["store"] = _store(answerer.store_stats())
        except StoreError:  # it is being closed just now
            told["store"] = None
    return told


def _is_used(arm: ModelStatistics) -> bool:
    return arm.stages["success"].count + arm.stages["fail"].count > 0


def _arm(arm: ModelStatistics) -> dict[str, Any]:
    return {
        "answered": arm.stages["success"].count,
        "failed": arm.stages["fail"].count,
        "rejected": arm.rejected,
        "failures": arm.failures.copy(),
        "rows": arm.inference_count,
        "batches": arm.execution_count,
        "latencies": arm.fine_latencies.copy(),
        "stages_ms": {name: duration.ns / 1e6 for name, duration in arm.stages.items()},
    }


def _store(stats: StoreStats) -> dict[str, Any]:
    whole = {key: value for key, value in vars(stats).items() if key != "tables"}
    return {**whole, "tables": {name: _table(table) for name, table in stats.tables.items()}}


def _table(stats: TableStats) -> dict[str, Any]:
    return dataclasses.asdict(stats)
