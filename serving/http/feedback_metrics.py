"""Collects the metrics of logged requests, of labels, and of how good scores were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import Metric

from serving.http.prometheus import Labels, family, label_value
from serving.repository.model_repository import ModelRepository
from storage.errors import NotFound, Unsupported

_Known = list[tuple[Any, Labels]]
_Figures = list[tuple[str, str, Callable[[Any], float | None]]]
# Labels: model.
_OF_LOGS: _Figures = [
    ("share", "Share of the requests that are logged", lambda r: r["share"]),
    ("requests_total", "Requests that were taken for the log", lambda r: r["requests"]),
    ("rows_total", "Rows of them", lambda r: r["rows"]),
    ("lost_rows_total", "Rows that could not be written", lambda r: r["lost_rows"]),
    ("files_total", "Files that were written", lambda r: r["files"]),
    ("bytes", "Bytes of the files that are there", lambda r: r["bytes"]),
    ("failing", "1 while requests cannot be logged; `emberline snapshots` says why", lambda r: bool(r["trouble"])),
]
_OF_FEEDBACK: _Figures = [
    ("share", "Share of the requests whose scores wait for labels", lambda r: r["share"]),
    ("requests", "Requests whose scores wait for labels", lambda r: r["requests"]),
    ("bytes", "Memory of them", lambda r: r["bytes"]),
    ("early_labels", "Labels that wait for their request", lambda r: r["early"]),
    ("skewed_total", "Labels with a time ahead of the server's clock", lambda r: r["skewed"]),
    ("negatives_total", "Rows that count as negative, since no label came", lambda r: r["negatives"]),
    ("repeated_ids_total", "Requests with an id that was there already", lambda r: r["repeated_ids"]),
    ("pushed_out_total", "Requests that left before their time for want of memory", lambda r: r["pushed_out"]),
]
# Labels: model, snapshot, arm, output.
_OF_QUALITY: _Figures = [
    ("rows", "Rows with a label that the figures are of", lambda q: q["rows"]),
    ("positives", "Sum of their labels", lambda q: q["positives"]),
    ("auc", "Area under the ROC curve", lambda q: q["auc"]),
    ("auc_error", "Its standard error, by requests", lambda q: q["auc_error"]),
    ("log_loss", "Mean logarithmic loss", lambda q: q["log_loss"]),
    ("calibration", "Sum of the scores over the sum of the labels", lambda q: q["calibration"]),
    ("ece", "Expected calibration error over ten bins", lambda q: q["ece"]),
    ("mean_score", "Mean of the scores", lambda q: q["mean_score"]),
]

# Labels: model, kind (inputs or scores), name.
_OF_DRIFT: _Figures = [
    ("rows", "Live rows that were counted", lambda d: d["rows"]),
    ("psi", "Population stability index of live rows against those of training", lambda d: d["psi"]),
    ("psi_by_chance", "Its mean where nothing has drifted", lambda d: d["by_chance"]),
    ("nulls", "Share of nulls", lambda d: d["nulls"]),
]


def feedback(repository: ModelRepository) -> Iterator[Metric]:
    """Yields what models have logged, and what their labels say; names without values where there is nothing."""
    logs: _Known = []
    windows: _Known = []
    drifts: _Known = []
    for model in repository.names:
        try:
            report: Any = repository.feedback(model).report()
        except (NotFound, Unsupported):  # removed since the names were read; or a model that has no updates
            continue
        of = {"model": label_value(model)}
        if report["log"] is not None:
            logs.append((report["log"], of))
        if report["drift"] is not None:
            drifts.append((report["drift"], of))
        if report["feedback"] is not None:
            windows.append((report["feedback"], of))
    yield from _figures("feature_log", _OF_LOGS, logs)
    for name, meaning, key in (
        ("dropped_total", "Requests of the sample that are not in the log", "dropped"),
        ("deleted_files_total", "Files that were deleted for the bound on bytes or age", "deleted"),
    ):
        yield _by(f"emberline_feature_log_{name}", meaning, "reason", key, logs)
    yield from _figures("feedback", _OF_FEEDBACK, windows)
    yield _by("emberline_feedback_labels_total", "Labels by what came of them", "outcome", "labels", windows)
    meaning = "Requests whose scores were not kept"
    yield _by("emberline_feedback_dropped_total", meaning, "reason", "dropped", windows)
    quality: _Known = [
        (each, {**of, **{key: label_value(each[key]) for key in ("snapshot", "arm", "output")}})
        for report, of in windows
        for each in report["quality"]
    ]
    yield from _figures("live", _OF_QUALITY, quality)
    columns: _Known = [
        (each, {**of, "kind": kind, "name": label_value(each["name"])})
        for report, of in drifts
        for kind in ("inputs", "scores")
        for each in report[kind]
    ]
    yield from _figures("drift", _OF_DRIFT, columns)


def _figures(prefix: str, figures: _Figures, known: _Known) -> Iterator[Metric]:
    for name, meaning, value in figures:
        kind = "counter" if name.endswith("_total") else "gauge"
        found = [(of, value(report)) for report, of in known]
        values = [(of, float(each)) for of, each in found if each is not None]
        yield family(f"emberline_{prefix}_{name}", kind, meaning, values)


def _by(name: str, meaning: str, label: str, key: str, known: _Known) -> Metric:
    counts = [({**of, label: each}, float(count)) for report, of in known for each, count in report[key].items()]
    return family(name, "counter", meaning, counts)
