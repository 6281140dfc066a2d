"""Collects the metrics of logged requests, of labels, and of how good scores were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import Metric

from serving.http.prometheus import Labels, family, label_value
from serving.repository.model_repository import ModelRepository
from storage.errors import NotFound, Unsupported

_Known = list[tuple[Any, Labels]]
_Figures = list[tuple[str, str, Callable[[Any], float | None]]]
# Labels: model.
_OF_LOGS: _Figures = [
    ("feature_log_share", "Share of the requests that are logged", lambda r: r["share"]),
    ("feature_log_requests_total", "Requests that were taken for the log", lambda r: r["requests"]),
    ("feature_log_rows_total", "Rows of them", lambda r: r["rows"]),
    ("feature_log_lost_rows_total", "Rows that could not be written", lambda r: r["lost_rows"]),
    ("feature_log_dropped_labels_total", "Labels that found no room beside the log", lambda r: r["dropped_labels"]),
    ("feature_log_files_total", "Files that were written", lambda r: r["files"]),
    ("feature_log_bytes", "Bytes of the files that are there", lambda r: r["bytes"]),
    (
        "feature_log_failing",
        "1 while requests cannot be logged; `emberline snapshots` says why",
        lambda r: bool(r["trouble"]),
    ),
]
_OF_FEEDBACK: _Figures = [
    ("feedback_share", "Share of the requests whose scores wait for labels", lambda r: r["share"]),
    ("feedback_requests", "Requests whose scores wait for labels", lambda r: r["requests"]),
    ("feedback_bytes", "Memory of them", lambda r: r["bytes"]),
    ("feedback_early_labels", "Labels that wait for their request", lambda r: r["early"]),
    ("feedback_skewed_total", "Labels with a time ahead of the server's clock", lambda r: r["skewed"]),
    ("feedback_negatives_total", "Rows that count as negative, since no label came", lambda r: r["negatives"]),
    ("feedback_repeated_ids_total", "Requests with an id that was there already", lambda r: r["repeated_ids"]),
    ("feedback_pushed_out_total", "Requests that left before their time for want of memory", lambda r: r["pushed_out"]),
]
# Labels: model, snapshot, arm, output.
_OF_QUALITY: _Figures = [
    ("live_rows", "Rows with a label that the figures are of", lambda q: q["rows"]),
    ("live_positives", "Sum of their labels", lambda q: q["positives"]),
    ("live_auc", "Area under the ROC curve", lambda q: q["auc"]),
    ("live_auc_error", "Its standard error, by requests", lambda q: q["auc_error"]),
    ("live_log_loss", "Mean logarithmic loss", lambda q: q["log_loss"]),
    ("live_calibration", "Sum of the scores over the sum of the labels", lambda q: q["calibration"]),
    ("live_ece", "Expected calibration error over ten bins", lambda q: q["ece"]),
    ("live_mean_score", "Mean of the scores", lambda q: q["mean_score"]),
]

# Labels: model, kind (inputs or scores), name.
_OF_DRIFT: _Figures = [
    ("drift_rows", "Live rows that were counted", lambda d: d["rows"]),
    ("drift_psi", "Population stability index of live rows against those of training", lambda d: d["psi"]),
    ("drift_psi_by_chance", "Its mean where nothing has drifted", lambda d: d["by_chance"]),
    ("drift_nulls", "Share of nulls", lambda d: d["nulls"]),
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
    for name, meaning, of_log in _OF_LOGS:
        yield _family(name, meaning, [(of, of_log(report)) for report, of in logs])
    for name, meaning, key in (
        ("feature_log_dropped_total", "Requests of the sample that are not in the log", "dropped"),
        ("feature_log_deleted_files_total", "Files that were deleted for the bound on bytes or age", "deleted"),
    ):
        reasons = [
            ({**of, "reason": reason}, float(count)) for report, of in logs for reason, count in report[key].items()
        ]
        yield _family(name, meaning, reasons)
    for name, meaning, of_window in _OF_FEEDBACK:
        yield _family(name, meaning, [(of, of_window(report)) for report, of in windows])
    outcomes = [
        ({**of, "outcome": outcome}, float(count))
        for report, of in windows
        for outcome, count in report["labels"].items()
    ]
    yield _family("feedback_labels_total", "Labels by what came of them", outcomes)
    dropped = [
        ({**of, "reason": reason}, float(count))
        for report, of in windows
        for reason, count in report["dropped"].items()
    ]
    yield _family("feedback_dropped_total", "Requests whose scores were not kept", dropped)
    quality: _Known = [
        (
            each,
            {
                **of,
                "snapshot": label_value(each["snapshot"]),
                "arm": each["arm"],
                "output": label_value(each["output"]),
            },
        )
        for report, of in windows
        for each in report["quality"]
    ]
    for name, meaning, of_quality in _OF_QUALITY:
        yield _family(name, meaning, [(of, of_quality(each)) for each, of in quality])
    columns: _Known = [
        (each, {**of, "kind": kind, "name": label_value(each["name"])})
        for report, of in drifts
        for kind in ("inputs", "scores")
        for each in report[kind]
    ]
    for name, meaning, of_column in _OF_DRIFT:
        yield _family(name, meaning, [(of, of_column(each)) for each, of in columns])


def _family(name: str, meaning: str, values: Sequence[tuple[Labels, float | None]]) -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    known = [(of, float(value)) for of, value in values if value is not None]
    return family(f"emberline_{name}", kind, meaning, known)
