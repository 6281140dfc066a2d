"""Newer clicks: training continues, and the changes reach the running server while it is under load."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emberline.cli.server_call import call_server, model_path
from loadtest.command import locust_command
from storage.checkpoint import PublishedDelta, list_deltas, open_delta
from storage.checkpoint.deltas import DELTAS, sequence_name
from storage.errors import DeadlineExceeded, EmberlineError
from tests.support.server_process import ServerProcess
from trainer import load_trained, update

Array = np.ndarray[Any, np.dtype[Any]]

# The load ends when the last step is done; this is only its bound.
LOAD_SECONDS = 600
WAIT_S = 60.0
REQUESTS_FIRST = 20


@dataclass(frozen=True)
class NewerFindings:
    """Figures of the update of a running server."""

    auc_before: float
    auc_after: float
    delta_bytes: int
    delta_rows: int
    train_rows: int
    #: Milliseconds from the delta's rename to the first answers from it, as the server measured it, of the slowest
    #: model.
    visible_ms: float
    rollback_ms: float
    #: Largest difference to the trainer's scores after the update, by (model, transport).
    parity: dict[tuple[str, str], float]
    #: Largest difference, after the rollback, to the answers from before.
    back: float
    load: dict[str, float]
    #: True if the load lasted from before the update to the last step.
    covered: bool

    def good(self, tolerance: float) -> bool:
        """Returns whether everything that was to be shown was shown."""
        fits = max(self.parity.values()) <= tolerance and self.back <= tolerance
        return fits and self.covered and self.load["failures"] == 0

    def to_json_value(self) -> dict[str, Any]:
        """Returns the entries of report.json."""
        return {
            "auc_before_delta": self.auc_before,
            "auc_after_delta": self.auc_after,
            "delta_bytes": self.delta_bytes,
            "delta_rows": self.delta_rows,
            "visible_ms": self.visible_ms,
            "rollback_ms": self.rollback_ms,
            "failed_during_delta": int(self.load["failures"]),
            "requests_during_delta": int(self.load["requests"]),
            "p99_ms_during_delta": self.load["p99_ms"],
            "load_covered_delta": self.covered,
            "parity_after_delta": max(self.parity.values()),
            "difference_after_rollback": self.back,
        }


class Load:
    """Locust's binary HTTP users on one model, in the background, until `finish`."""

    def __init__(self, server: ServerProcess, model: str, data: Path, figures: Path) -> None:
        figures.unlink(missing_ok=True)
        self._figures = figures
        self._process = subprocess.Popen(
            locust_command(
                "http_binary",
                url=server.url,
                grpc=server.grpc,
                model=model,
                data=data,
                figures=figures,
                seconds=LOAD_SECONDS,
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_running(self) -> bool:
        """Returns whether requests are still sent."""
        return self._process.poll() is None

    def finish(self) -> dict[str, float]:
        """Ends the load and returns its figures."""
        self._process.terminate()
        try:
            _, text = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        if not self._figures.is_file():
            raise EmberlineError(f"the load test failed: {text.strip()[-500:]}")
        found: dict[str, float] = json.loads(self._figures.read_text())
        return found

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running():
            self._process.kill()
            self._process.communicate()


def snapshots(server: ServerProcess, model: str) -> dict[str, Any]:
    """Returns the server's report of a model's snapshots."""
    with urllib.request.urlopen(f"{server.url}/v2/repository/models/{model}/snapshots", timeout=10) as answer:
        content: dict[str, Any] = json.loads(answer.read())
        return content


def command(server: ServerProcess, model: str, verb: str) -> float:
    """Sends a control command, as `emberline rollback` does; returns the milliseconds until it was done."""
    began = time.perf_counter()
    call_server(server.url, model_path(model, verb), 30.0, {})
    return (time.perf_counter() - began) * 1000


def wait_for_load(server: ServerProcess, model: str) -> None:
    """Waits until the load has begun: until the model has answered some requests more than now."""
    sample = f'emberline_requests_success_total{{arm="main",model="{model}",version="1"}}'
    before = server.metrics()[sample]
    deadline = time.monotonic() + WAIT_S
    while server.metrics()[sample] < before + REQUESTS_FIRST:
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"{model}: no load within {WAIT_S:g} s")
        time.sleep(0.05)


def wait_served(server: ServerProcess, model: str, snapshot: str) -> float:
    """Waits until a snapshot is served; returns the milliseconds from its appearance, as the server measured them."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        state = snapshots(server, model)
        if state["served"]["id"] == snapshot:
            own = [entry for entry in state["snapshots"] if entry["id"] == snapshot]
            return float(own[0]["visible_ms"] or 0.0) if own else 0.0
        time.sleep(0.01)
    raise DeadlineExceeded(f"{model}: {snapshot} was not served within {WAIT_S:g} s; the server says {state}")


def copy_delta(delta: Path, version: Path) -> None:
    """Publishes a delta once more, for a model that is a copy of the first: a whole folder, then a rename."""
    target = version / DELTAS / delta.name
    hidden = target.with_name(f".publish-{delta.name}")
    shutil.copytree(delta, hidden)
    hidden.rename(target)


def learn_newer(
    server: ServerProcess,
    *,
    run: Path,
    repository: Path,
    models: list[str],
    newer: Path,
    test: Path,
    figures: Path,
    auc_of: Callable[[Array], float],
    ask: Callable[[list[str]], dict[tuple[str, str], Array]],
    say: Callable[[str], None],
) -> NewerFindings:
    """Trains on `newer`, publishes, and reads the server's answers before, after, rolled back and forward again.

    models: the trained one first, then its copy. ask: returns scores (N,) of all test rows by (model, transport).
    """
    version = repository / models[0] / "1"
    before = ask(models)
    first = snapshots(server, models[0])["served"]["id"]
    with Load(server, models[0], test, figures) as load:
        wait_for_load(server, models[0])
        known = set(list_deltas(version))
        trained = update(run, newer, repository=repository, progress=False)
        deltas = [version / DELTAS / sequence_name(number) for number in list_deltas(version) if number not in known]
        if not deltas:
            raise EmberlineError(f"{version}: training on {newer} published no delta")
        for delta in deltas:
            copy_delta(delta, repository / models[1] / "1")
        published = [open_delta(delta) for delta in deltas]
        newest = published[-1].snapshot
        visible_ms = max(wait_served(server, model, newest) for model in models)
        expected = load_trained(run).predict(test)
        after = ask(models)
        parity = {place: _largest(scores, expected[: len(scores)]) for place, scores in after.items()}
        rollback_ms = command(server, models[0], "rollback")
        wait_served(server, models[0], first)
        transport = next(iter(before))
        back = _largest(ask([models[0]])[transport], before[transport])
        command(server, models[0], "resume")
        wait_served(server, models[0], newest)
        forward = ask([models[0]])[transport]
        parity[models[0], f"{transport[1]}, forward again"] = _largest(forward, expected[: len(forward)])
        covered = load.is_running()
        if not covered:
            say("the load ended before the update did: not shown under load")
        figures_of_load = load.finish()
    return NewerFindings(
        auc_before=auc_of(before[transport]),
        auc_after=auc_of(after[transport]),
        delta_bytes=sum(delta.size_bytes for delta in published),
        delta_rows=sum(_rows(delta) for delta in published),
        train_rows=trained.rows,
        visible_ms=visible_ms,
        rollback_ms=rollback_ms,
        parity=parity,
        back=back,
        load=figures_of_load,
        covered=covered,
    )


def _rows(delta: PublishedDelta) -> int:
    return sum(table.rows for table in delta.tables)


def _largest(scores: Array, expected: Array) -> float:
    return float(np.abs(scores.astype(np.float64) - expected.astype(np.float64)).max())
