"""The metrics page: counters and gauges in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from serving.engine.model import LoadedModel
from serving.engine.repository import ModelRepository
from serving.http.body import Receive, Scope, Send
from storage.tiers.tiered import StoreStats

_Value = Callable[[LoadedModel, StoreStats], float]
_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")

_METRICS: list[tuple[str, str, str, _Value]] = [
    ("requests_success_total", "counter", "Requests answered", lambda m, _: m.statistics.stages["success"].count),
    ("requests_failure_total", "counter", "Requests not answered", lambda m, _: m.statistics.stages["fail"].count),
    ("requests_rejected_total", "counter", "Requests that met a full queue", lambda m, _: m.statistics.rejected),
    ("rows_total", "counter", "Rows scored", lambda m, _: m.statistics.inference_count),
    ("batches_total", "counter", "Batches executed", lambda m, _: m.statistics.execution_count),
    ("ids_absent_total", "counter", "Ids that are in no tier", lambda _, s: s.absent),
    ("ids_unresolved_total", "counter", "Ids without an answer in time", lambda _, s: s.unresolved),
    ("queue_length", "gauge", "Requests that wait for a session", lambda m, _: m.queued),
    ("sessions", "gauge", "Sessions", lambda m, _: m.sessions),
]


def metrics_text(models: Iterable[LoadedModel]) -> str:
    """The page. Every metric has the labels model and version."""
    known = [(model, model.store_stats(), f'model="{model.name}",version="{model.version}"') for model in models]
    lines: list[str] = []
    for name, kind, meaning, value in _METRICS:
        _head(lines, name, kind, meaning)
        lines.extend(f"emberline_{name}{{{labels}}} {value(model, stats):g}" for model, stats, labels in known)
    _head(lines, "stage_seconds_total", "counter", "Time that requests spent in a stage")
    for model, _, labels in known:
        for stage in _STAGES:
            seconds = model.statistics.stages[stage].ns / 1e9
            lines.append(f'emberline_stage_seconds_total{{{labels},stage="{stage}"}} {seconds:.9f}')
    for name, kind, meaning, field in (
        ("ids_hit_total", "counter", "Ids answered by a tier", "hits"),
        ("tier_rows", "gauge", "Rows in a tier", "rows"),
        ("tier_bytes", "gauge", "Bytes of a tier", "bytes"),
    ):
        _head(lines, name, kind, meaning)
        for _, stats, labels in known:
            for tier, count in getattr(stats, field).items():
                lines.append(f'emberline_{name}{{{labels},tier="{tier}"}} {count}')
    return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, kind: str, meaning: str) -> None:
    lines.append(f"# HELP emberline_{name} {meaning}.")
    lines.append(f"# TYPE emberline_{name} {kind}")


class MetricsApp:
    """An ASGI application with one page."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, body = 404, b"only GET /metrics is here\n"
        if scope["path"] == "/metrics" and scope["method"] == "GET":
            status, body = 200, metrics_text(self._repository.loaded()).encode()
        headers = [(b"content-type", b"text/plain; version=0.0.4"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
