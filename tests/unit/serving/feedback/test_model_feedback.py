"""The log, labels and drift of a model go on while its versions come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.config import ServerConfig
from serving.engine.tap import sample_point
from serving.feedback import model_feedback
from serving.feedback import tap as tap_module
from serving.feedback.drift import DriftOfColumns
from serving.feedback.model_feedback import ModelFeedback
from serving.feedback.served_batch import ServedBatch, ServedRequest
from serving.feedback.tap import Tap
from serving.model_config.options import ModelOptions
from serving.protocol.signature import ModelSignature, OutputSignature
from serving.updates import report
from serving.updates.live_model import LiveModel
from storage.features import FeatureSpec, column_from_rows

LIMIT_S = 20.0


def spec(name: str) -> FeatureSpec:
    feature = {"name": "f", "inputs": [name], "output": "dense"}
    return FeatureSpec.model_validate({"inputs": [{"name": name, "dtype": "FP32"}], "features": [feature]})


def signature(name: str) -> ModelSignature:
    return ModelSignature("m", spec(name).inputs, [OutputSignature("score", "FP32", (1,))], 64)


def batch(of: ModelSignature) -> ServedBatch:
    columns = {entry.name: column_from_rows(entry, [1.0, 2.0]) for entry in of.raw}
    request = ServedRequest("a", sample_point("a"), 0, 2, 0)
    return ServedBatch(columns, [np.zeros((2, 1), np.float32)], 2, [request], of, "1.0", "main", 64)


def reference(name: str) -> Any:
    """Stands for a published version; `drift_of` is replaced."""
    inputs = spec(name).inputs
    return DriftOfColumns(inputs, {name: column_from_rows(inputs[0], [1.0, 2.0, 3.0])}, {}, 3, 1800.0)


@pytest.fixture
def feedback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelFeedback]:
    monkeypatch.setattr(model_feedback, "drift_of", lambda published: published)
    made = ModelFeedback("m", ServerConfig(model_repository=tmp_path))
    made.follow(ModelOptions(feedback_share=1.0))
    yield made
    made.close()


def inputs_of(feedback: ModelFeedback) -> list[tuple[str, int]]:
    drift: Any = feedback.report()["drift"]
    return [] if drift is None else [(each["name"], each["rows"]) for each in drift["inputs"]]


def test_drift_is_that_of_the_served_version_whatever_else_is_loaded(feedback: ModelFeedback) -> None:
    served, refused = signature("price"), signature("cost")
    feedback.know(served, reference("price"))
    assert inputs_of(feedback) == []
    feedback.serves(served)
    # A version that is judged and refused, a shadow, or one beside the served one.
    feedback.know(refused, reference("cost"))
    watch = feedback._watch
    assert watch is not None
    watch.take(batch(refused))
    watch.take(batch(served))
    assert inputs_of(feedback) == [("price", 2)]
    feedback.serves(refused)
    assert inputs_of(feedback) == [("cost", 0)]


def test_other_options_keep_the_reference_of_what_is_served(feedback: ModelFeedback) -> None:
    served = signature("price")
    feedback.know(served, reference("price"))
    feedback.serves(served)
    feedback.follow(ModelOptions(feedback_share=0.5))
    assert inputs_of(feedback) == [("price", 0)]


class FailingConsumer:
    def __init__(self) -> None:
        self.taken: list[str] = []
        self.is_failing = True

    def take(self, batch: ServedBatch) -> None:
        if self.is_failing:
            raise ValueError("a fault of ours")
        self.taken.append(batch.requests[0].id)

    def tick(self, now: float) -> None:
        """Has nothing to do."""

    def close(self) -> None:
        """Has nothing to finish."""


def test_requests_that_could_not_be_looked_at_are_counted() -> None:
    consumer = FailingConsumer()
    tap = Tap("m", 1.0, consumer)
    try:
        for is_failing in (True, False):
            consumer.is_failing = is_failing
            tap._waiting.append(batch(signature("price")))
            assert tap.flush(LIMIT_S)
    finally:
        tap.close()
    assert tap.dropped["failed"] == 1
    assert consumer.taken == ["a"]


def test_a_consumer_that_is_stuck_does_not_keep_a_model_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_module, "_END_S", 0.05)
    ends = threading.Event()

    class StuckConsumer(FailingConsumer):
        def take(self, batch: ServedBatch) -> None:
            ends.wait(LIMIT_S)

    tap = Tap("m", 1.0, StuckConsumer())
    tap._waiting.append(batch(signature("price")))
    tap.close()
    assert tap.thread.is_alive()
    ends.set()
    tap.thread.join(LIMIT_S)
    assert not tap.thread.is_alive()


def test_snapshots_are_reported_without_the_lock_that_updates_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LiveModel("m", ServerConfig(model_repository=tmp_path, store=tmp_path / "store"))
    looks: list[bool] = []

    def is_free() -> bool:
        def try_lock() -> None:
            found.append(model.lock.acquire(blocking=False))
            if found[-1]:
                model.lock.release()

        found: list[bool] = []
        thread = threading.Thread(target=try_lock)
        thread.start()
        thread.join()
        return found[0]

    def observed() -> dict[str, Any]:
        looks.append(is_free())
        return {"log": None, "drift": None, "feedback": None}

    monkeypatch.setattr(model.feedback, "report", observed)
    assert report.snapshots(model)["feedback"] is None
    assert looks == [True]
