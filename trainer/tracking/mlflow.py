"""Writes runs of MLflow."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.errors import ConfigError
from trainer.tracking.base import imported
from trainer.tracking_config import MlflowConfig

_METRICS_AT_ONCE = 1000
_PARAMETERS_AT_ONCE = 100
_LONGEST_PARAMETER = 6000
_ENDED = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


class MlflowTracker:
    """Writes one run of MLflow. Numbers are sent in batches, all of them by the next `flush`.

    note: the file that names the run, by which a resumed training finds it. step: training steps made before; above 0
    the run is continued.
    """

    def __init__(self, config: MlflowConfig, output: Path, note: Path, run_name: str, model: str, step: int) -> None:
        mlflow = imported("mlflow", "mlflow-skinny", "mlflow")
        imported("sqlalchemy", "sqlalchemy", "mlflow")
        self._entities = imported("mlflow.entities", "mlflow-skinny", "mlflow")
        self._error: type[Exception] = imported("mlflow.exceptions", "mlflow-skinny", "mlflow").MlflowException
        uri = config.uri
        if uri is None and mlflow.tracking.is_tracking_uri_set():
            uri = mlflow.get_tracking_uri()
        known = _read(note) if step else {}
        self._uri = str(known.get("uri") or uri or f"sqlite:///{(output / 'mlflow.db').absolute()}")
        self._waiting: list[Any] = []
        #: The last step that the run has of a metric, in what an earlier process wrote.
        self._written: dict[str, int] = {}
        try:
            self._client = mlflow.MlflowClient(self._uri)
            self._run = str(known.get("run") or self._new_run(config.experiment or model, config.run_name or run_name))
            if known:
                self._continue()
        except self._error as error:
            raise ConfigError(f"tracking: MLflow at {self._uri}: {error}", field="tracking") from error
        note.write_text(json.dumps({"uri": self._uri, "run": self._run}) + "\n", encoding="utf-8")

    def _new_run(self, experiment: str, run_name: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        if found is None:
            try:
                made = self._client.create_experiment(experiment)
            except self._error:  # another trial of a sweep was faster
                found = self._client.get_experiment_by_name(experiment)
                if found is None:
                    raise
        number = found.experiment_id if found is not None else made
        return str(self._client.create_run(number, run_name=run_name).info.run_id)

    def _continue(self) -> None:
        self._client.update_run(self._run, status="RUNNING")
        for name in self._client.get_run(self._run).data.metrics:
            self._written[name] = max(each.step for each in self._client.get_metric_history(self._run, name))

    def parameters(self, values: Mapping[str, str]) -> None:
        """Writes the parameters of a new run; MLflow keeps the first value of each."""
        if self._written:
            return
        made = [self._entities.Param(name, value[:_LONGEST_PARAMETER]) for name, value in values.items()]
        for first in range(0, len(made), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=made[first : first + _PARAMETERS_AT_ONCE])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes metrics; those that the run has of this step already are the same, and left out."""
        now = math.floor(time.time() * 1000)
        for name, value in values.items():
            if step > self._written.get(name, -1):
                self._waiting.append(self._entities.Metric(name, value, now, step))
        if len(self._waiting) >= _METRICS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Sends what waits. Raises ConfigError when MLflow does not take it."""
        waiting, self._waiting = self._waiting, []
        try:
            for first in range(0, len(waiting), _METRICS_AT_ONCE):
                self._client.log_batch(self._run, metrics=waiting[first : first + _METRICS_AT_ONCE])
        except self._error as error:
            raise ConfigError(f"tracking: MLflow at {self._uri}: {error}", field="tracking") from error

    def close(self, ended: str) -> None:
        """Sends what waits, and sets the status of the run."""
        self.flush()
        self._client.set_terminated(self._run, _ENDED[ended])


def _read(note: Path) -> dict[str, Any]:
    try:
        content = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
