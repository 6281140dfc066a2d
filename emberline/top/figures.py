"""Computes figures of a server and its models from two readings of its metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from emberline.top.readings import Reading, Window

#: Where rows are read, the fastest first.
TIERS = ("hbm", "overlay", "dram", "ssd")
# Requests answered, requests failed, and rows. A model without tables and snapshots has those of Triton alone.
_COUNTERS = ("emberline_requests_success_total", "emberline_requests_failure_total", "emberline_rows_total")
# The parser adds `_total` to the names of theirs.
_TRITON_COUNTERS = (
    "nv_inference_request_success_total",
    "nv_inference_request_failure_total",
    "nv_inference_count_total",
)


@dataclass
class ModelFigures:
    """Says what a model did. Rates and times are None where nothing says them."""

    name: str
    ready: bool
    requests_per_second: float | None = None
    failures_per_second: float | None = None
    rows_per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    #: Mean wait of a request for a session.
    queue_ms: float | None = None
    queued: int = 0
    sessions: int = 0
    #: Share of the ids that each tier answered, and that had no row anywhere.
    hit_rates: dict[str, float] = field(default_factory=dict)
    absent_rate: float | None = None
    unresolved_per_second: float | None = None
    bytes: dict[str, int] = field(default_factory=dict)
    dram_budget_bytes: int | None = None
    #: Versions that answer requests, ascending.
    versions: list[str] = field(default_factory=list)
    #: VERSION.SEQUENCE of what is served; None for nothing, and for a model that has no snapshots.
    snapshot: str | None = None
    published_unix_ms: int | None = None
    #: Counts since the start of the server.
    deltas_applied: int = 0
    versions_loaded: int = 0
    updates_refused: int = 0
    update_waiting: bool = False


@dataclass
class ServerFigures:
    """Says what a server did."""

    ready: bool
    #: The time between the two readings; None after the first one.
    seconds: float | None
    restarts: int
    cpu_utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    models: list[ModelFigures]

    def to_json_value(self) -> dict[str, Any]:
        """Returns them as JSON."""
        return asdict(self)


def figures_of(window: Window) -> ServerFigures:
    """Returns the figures of all models, by name."""
    now = window.now
    names = now.values_of("emberline_model_ready", "model")
    return ServerFigures(
        ready=bool(now.total("emberline_ready")),
        seconds=window.seconds,
        restarts=int(now.total("emberline_restarts_total") or 0),
        cpu_utilization=now.total("nv_cpu_utilization"),
        memory_used_bytes=_whole(now.total("nv_cpu_memory_used_bytes")),
        memory_total_bytes=_whole(now.total("nv_cpu_memory_total_bytes")),
        models=[_model(window, name) for name in sorted(names)],
    )


def _model(window: Window, name: str) -> ModelFigures:
    now = window.now
    found = ModelFigures(name, ready=bool(now.total("emberline_model_ready", model=name)))
    found.versions = sorted({of["version"] for of, _ in now.series(_TRITON_COUNTERS[0], model=name)}, key=int)
    counters = _COUNTERS if now.total(_COUNTERS[0], model=name) is not None else _TRITON_COUNTERS
    rates = (window.rate(counter, model=name) for counter in counters)
    found.requests_per_second, found.failures_per_second, found.rows_per_second = rates
    for share, field_name in ((0.5, "p50_ms"), (0.99, "p99_ms")):
        seconds = window.quantile("emberline_request_seconds", share, model=name)
        setattr(found, field_name, None if seconds is None else seconds * 1000)
    answered = window.increase("emberline_requests_success_total", model=name)
    if window.seconds and answered:
        waited = window.increase("emberline_stage_seconds_total", model=name, stage="queue")
        found.queue_ms = waited / answered * 1000
    found.queued = int(now.total("emberline_queue_length", model=name) or 0)
    found.sessions = int(now.total("emberline_sessions", model=name) or 0)
    _add_rows(found, window)
    _add_snapshot(found, now)
    found.deltas_applied = int(now.total("emberline_deltas_applied_total", model=name) or 0)
    found.versions_loaded = int(now.total("emberline_versions_loaded_total", model=name) or 0)
    found.updates_refused = int(now.total("emberline_updates_refused_total", model=name) or 0)
    found.update_waiting = bool(now.total("emberline_update_waiting", model=name))
    return found


def _add_rows(found: ModelFigures, window: Window) -> None:
    """Adds where ids were found, and what each tier holds."""
    name = found.name
    hits = {tier: window.increase("emberline_ids_hit_total", model=name, tier=tier) for tier in TIERS}
    absent = window.increase("emberline_ids_absent_total", model=name)
    asked = sum(hits.values()) + absent
    if window.seconds and asked:
        there = window.now.values_of("emberline_ids_hit_total", "tier")
        found.hit_rates = {tier: count / asked for tier, count in hits.items() if tier in there}
        found.absent_rate = absent / asked
    found.unresolved_per_second = window.rate("emberline_ids_unresolved_total", model=name)
    sizes = {tier: window.now.total("emberline_tier_bytes", model=name, tier=tier) for tier in TIERS}
    found.bytes = {tier: int(size) for tier, size in sizes.items() if size is not None}
    found.dram_budget_bytes = _whole(window.now.total("emberline_dram_budget_bytes", model=name))


def _add_snapshot(found: ModelFigures, now: Reading) -> None:
    """Adds what is served, of the newest version."""
    served = [
        (int(of["version"]), int(sequence))
        for of, sequence in now.series("emberline_snapshot_sequence", model=found.name, arm="main")
    ]
    if not served:
        return
    version, sequence = max(served)
    found.snapshot = f"{version}.{sequence}"
    seconds = now.total("emberline_snapshot_published_unix_seconds", model=found.name, arm="main", version=str(version))
    found.published_unix_ms = _whole(None if not seconds else seconds * 1000)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
