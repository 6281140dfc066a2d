"""Keeps what is known of a model's answered requests, while its versions come and go: the log, labels and figures."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import JsonValue

from serving.config import ServerConfig
from serving.engine.requests import InferenceResult, QueuedRequest, Sampled
from serving.engine.tap import RequestTap, sample_point
from serving.feedback.drift import DriftOfColumns, drift_of
from serving.feedback.score_window import Label, ScoreWindow, WindowSettings
from serving.feedback.served_batch import ServedBatch
from serving.feedback.settings import LogSettings
from serving.feedback.tap import Tap
from serving.model_config.options import ModelOptions
from serving.protocol.signature import ModelSignature
from storage.checkpoint import PublishedVersion
from storage.errors import ConfigError, Conflict

if TYPE_CHECKING:
    from serving.feedback.label_log import LabelLog
    from serving.feedback.request_log import RequestLog

logger = logging.getLogger("emberline.serving")

_Settings = tuple[LogSettings | None, WindowSettings | None]


class _Watch:
    """Passes requests on to the log and to the window of scores."""

    def __init__(self, model: str, log: LogSettings | None, window: WindowSettings | None) -> None:
        self.log: RequestLog | None = None
        self.labels: LabelLog | None = None
        if log is not None:
            # They need Arrow, whose import starts a thread: not in the supervisor, which forks.
            from serving.feedback.label_log import LabelLog
            from serving.feedback.request_log import RequestLog

            self.log = RequestLog(model, log)
            if window is not None:
                self.labels = LabelLog(log)
        self.window = None if window is None else ScoreWindow(window)
        # How requests differ from training, and the signature of the version that both belong to.
        self.drift: tuple[ModelSignature, DriftOfColumns] | None = None
        share = max(0.0 if log is None else log.share, 0.0 if window is None else window.share)
        self.tap = Tap(model, share, self)

    def take(self, batch: ServedBatch) -> None:
        """See Consumer."""
        drift = self.drift
        if drift is not None and batch.signature is drift[0]:
            drift[1].add(batch, time.monotonic())
        if self.window is not None:
            self.window.add(batch, time.time())
        if self.log is not None:
            self.log.take(batch)

    def tick(self, now: float) -> None:
        """See Consumer."""
        for each in (self.log, self.labels):
            if each is not None:
                each.tick(now)
        if self.window is not None:
            self.window.tick(time.time())

    def close(self) -> None:
        """See Consumer."""
        for each in (self.log, self.labels):
            if each is not None:
                each.close()


class ModelFeedback:
    """Looks at the requests of a model, as its options say. Thread-safe. It is a RequestTap, for every version."""

    def __init__(self, model: str, config: ServerConfig) -> None:
        self._model = model
        self._config = config
        self._lock = threading.Lock()
        self._settings: _Settings = (None, None)
        self._watch: _Watch | None = None
        # The references of loaded versions, by the signatures that their requests have, and that of the served one.
        self._references: weakref.WeakKeyDictionary[ModelSignature, DriftOfColumns] = weakref.WeakKeyDictionary()
        self._served: weakref.ref[ModelSignature] | None = None
        #: Why the log cannot be kept as the options say; "" when it can.
        self.trouble = ""
        #: Events of feedback whose time was ahead of this machine's clock.
        self.skewed = 0
        self._skewed_lock = threading.Lock()

    def follow(self, options: ModelOptions) -> RequestTap | None:
        """Returns what looks at requests by these options, which goes on where they are the same; None for nobody."""
        with self._lock:
            settings = (self._log_settings(options), _window_settings(options))
            if settings != self._settings:
                self._end()
                self._settings = settings
                if settings != (None, None):
                    self._watch = _Watch(self._model, *settings)
                    self._compare()
            return None if self._watch is None else self

    @property
    def share(self) -> float:
        """See RequestTap."""
        watch = self._watch
        return 0.0 if watch is None else watch.tap.share

    @property
    def window(self) -> ScoreWindow | None:
        """Returns the scores that wait for their labels, and the figures; None where no feedback is taken."""
        watch = self._watch
        return None if watch is None else watch.window

    def know(self, signature: ModelSignature, published: PublishedVersion) -> None:
        """Reads what requests to a version are compared with while it is served: its golden requests."""
        if self._watch is not None and signature not in self._references:
            self._references[signature] = drift_of(published)
            self._compare()

    def serves(self, signature: ModelSignature) -> None:
        """Compares the requests to this version with its reference from now on. It takes no lock, and no time."""
        self._served = weakref.ref(signature)
        self._compare()

    def _compare(self) -> None:
        watch, served = self._watch, None if self._served is None else self._served()
        if watch is not None:
            reference = None if served is None else self._references.get(served)
            watch.drift = None if served is None or reference is None else (served, reference)

    def offer(
        self, call: QueuedRequest, result: InferenceResult, sampled: Sequence[Sampled], signature: ModelSignature
    ) -> None:
        """See RequestTap."""
        watch = self._watch
        if watch is not None:
            watch.tap.offer(call, result, sampled, signature)

    def label(self, labels: Sequence[Label], skewed: int = 0) -> dict[str, int]:
        """Takes labels of rows that were scored; returns how many came to what, see `ScoreWindow.label`.

        skewed: how many had a time ahead of this machine's clock. Raises Conflict where the model takes none.
        """
        watch = self._watch
        if watch is None or watch.window is None:
            raise Conflict(f"model {self._model!r} takes no feedback; set feedback_share in its config.pbtxt")
        now = time.time()
        counts: dict[str, int] = {}
        for label in labels:
            outcome = watch.window.label(label, now)
            counts[outcome] = counts.get(outcome, 0) + 1
            # Another server may have answered, whose log lies beside this one's.
            if watch.labels is None or watch.log is None or outcome in ("twice", "misfit"):
                continue
            if sample_point(label.id) < watch.log.settings.share:
                watch.labels.add(label)
        if skewed:
            with self._skewed_lock:
                self.skewed += skewed
        return counts

    def flush(self, timeout_s: float) -> bool:
        """Waits until all requests that were answered so far were looked at; returns False when that takes too long."""
        watch = self._watch
        return watch is None or watch.tap.flush(timeout_s)

    def close(self) -> None:
        """Writes what waits, and ends."""
        with self._lock:
            self._end()

    def report(self) -> dict[str, JsonValue]:
        """Returns what is logged and how good scores were; docs/feedback.md describes it."""
        watch = self._watch
        return {
            "log": self._log_report(watch),
            "drift": None if watch is None or watch.drift is None else _drift_report(watch.drift[1]),
            "feedback": None if watch is None or watch.window is None else self._window_report(watch, watch.window),
        }

    def _log_report(self, watch: _Watch | None) -> dict[str, JsonValue] | None:
        if watch is None or watch.log is None:
            return {**_NOTHING, "trouble": self.trouble} if self.trouble else None
        log, files = watch.log, watch.log.files
        labels = None if watch.labels is None else watch.labels.counts
        label_trouble, dropped_labels = "", 0
        if watch.labels is not None:
            label_trouble, dropped_labels = watch.labels.trouble, watch.labels.dropped
        return {
            "share": log.settings.share,
            "folder": str(log.settings.folder),
            "requests": log.requests,
            "rows": log.rows,
            "waiting": watch.tap.waiting,
            "dropped": {**watch.tap.dropped, "refused": log.refused},
            "dropped_labels": dropped_labels,
            "files": files.counts.files,
            "written_rows": files.counts.rows,
            "written_labels": 0 if labels is None else labels.rows,
            "lost_rows": files.counts.lost_rows,
            "deleted": {"bytes": files.counts.deleted_bytes, "age": files.counts.deleted_age},
            "bytes": files.bytes,
            "trouble": self.trouble or log.refusal or files.trouble or label_trouble,
        }

    def _window_report(self, watch: _Watch, window: ScoreWindow) -> dict[str, JsonValue]:
        return {
            "share": window.settings.share,
            "requests": len(window),
            "bytes": window.bytes,
            "labels": dict(window.outcomes),
            "early": window.early,
            "skewed": self.skewed,
            "negatives": window.negatives,
            "repeated_ids": window.repeated,
            "pushed_out": window.pushed_out,
            "dropped": dict(watch.tap.dropped),
            "quality": [
                {"snapshot": snapshot, "arm": arm, "output": output, **asdict(quality)}
                for (snapshot, arm, output), quality in window.qualities()
            ],
        }

    def _log_settings(self, options: ModelOptions) -> LogSettings | None:
        try:
            settings = LogSettings.of(self._config, options, self._model)
        except ConfigError as error:
            if str(error) != self.trouble:
                logger.error("%s: requests are not logged: %s", self._model, error)
            self.trouble = str(error)
            return None
        self.trouble = ""
        return settings

    def _end(self) -> None:
        watch, self._watch = self._watch, None
        self._settings = (None, None)
        if watch is not None:
            watch.tap.close()


def _window_settings(options: ModelOptions) -> WindowSettings | None:
    if options.feedback_share == 0:
        return None
    return WindowSettings(
        options.feedback_share, options.feedback_keep_s, options.feedback_max_bytes, options.feedback_negative_after_s
    )


def _drift_report(drift: DriftOfColumns) -> dict[str, JsonValue]:
    return {
        "inputs": [asdict(each) for each in drift.inputs()],
        "scores": [asdict(each) for each in drift.scores()],
    }


_NOTHING: dict[str, JsonValue] = {
    "share": 0.0,
    "folder": "",
    "requests": 0,
    "rows": 0,
    "waiting": 0,
    "dropped": {},
    "dropped_labels": 0,
    "files": 0,
    "written_rows": 0,
    "written_labels": 0,
    "lost_rows": 0,
    "deleted": {},
    "bytes": 0,
}
