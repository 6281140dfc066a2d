"""Collects the metrics of the shadows of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric

from serving.engine.shadow_comparison import OutputFigures
from serving.engine.shadow_verdict import VERDICTS
from serving.http.prometheus import Labels, family, label_value
from serving.repository.model_repository import ModelRepository
from serving.updates.shadowing import ShadowReport
from storage.errors import NotFound, Unsupported

_Figure = Callable[[ShadowReport], float | None]
# Labels: model, and snapshot, such as 1.18.
_OF_SHADOWS: list[tuple[str, str, _Figure]] = [
    ("share", "Share of the requests that the shadow scores too; 0 when its time is up", lambda r: _share(r)),
    ("requests_total", "Requests that were compared", lambda r: r.figures.requests),
    ("rows_total", "Rows that were compared", lambda r: r.figures.rows),
    ("failures_total", "Requests that the shadow could not score", lambda r: r.figures.failures),
    ("waiting", "Copies of requests that wait for spare cycles", lambda r: r.waiting),
    ("memory_bytes", "Memory that the shadow takes", lambda r: r.memory_bytes),
    (
        "slowdown",
        "Time of a request on the shadow in times of that on the main arm, on one thread; the median",
        lambda r: r.figures.timing.slowdown,
    ),
]
# One more label: output.
_OF_OUTPUTS: list[tuple[str, str, Callable[[OutputFigures], float | None]]] = [
    ("mean_shift", "Mean of the shadow's scores less the main arm's", lambda o: o.mean_shift),
    ("mean_absolute_shift", "Mean absolute difference of the scores", lambda o: o.mean_absolute_shift),
    ("calibration", "Sum of the shadow's scores over the sum of the main arm's", lambda o: o.calibration),
    ("overlap", "Share of the main arm's top K rows that are the shadow's too; the mean", lambda o: o.overlap),
    ("rank_correlation", "Rank correlation within a request; the mean", lambda o: o.rank_correlation),
    ("not_finite_total", "Scores of the shadow that are no numbers", lambda o: o.not_finite),
]


def shadows(repository: ModelRepository) -> Iterator[Metric]:
    """Yields what was compared with the shadows of models; names without values where there are none."""
    known: list[tuple[ShadowReport, Labels]] = []
    for model in repository.names:
        try:
            report = repository.shadow_report(model)
        except (NotFound, Unsupported):  # removed since the names were read; or a model that has no updates
            continue
        if report is not None:
            name = report.state.to if report.entry is None else report.entry.name
            known.append((report, {"model": label_value(model), "snapshot": label_value(name)}))
    for name, meaning, of_shadow in _OF_SHADOWS:
        yield _family(name, meaning, [(of, of_shadow(report)) for report, of in known])
    dropped = [
        ({**of, "reason": reason}, float(count))
        for report, of in known
        for reason, count in sorted(vars(report.dropped).items())
    ]
    yield _family("dropped_total", "Sampled requests that were dropped, for the server was busy", dropped)
    verdicts = [
        ({**of, "verdict": each}, float(each == report.verdict.kind)) for report, of in known for each in VERDICTS
    ]
    yield _family("verdict", "1 for what the comparison says now", verdicts)
    outputs = [
        (each, {**of, "output": label_value(each.output)}) for report, of in known for each in report.figures.outputs
    ]
    for name, meaning, of_output in _OF_OUTPUTS:
        yield _family(name, meaning, [(of, of_output(each)) for each, of in outputs])


def _share(report: ShadowReport) -> float:
    return report.state.share if report.is_running else 0.0


def _family(name: str, meaning: str, values: Sequence[tuple[Labels, float | None]]) -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    known = [(of, float(value)) for of, value in values if value is not None]
    return family(f"emberline_shadow_{name}", kind, meaning, known)
