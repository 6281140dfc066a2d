"""The circle: serve with a log, send feedback, train on the joined files, publish a delta, see its live quality."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from serving import Server, ServerConfig
from tests.integration.serving.http_calls import ask, until
from tests.support.click_stream import CONFIG, NAME, click_rows
from trainer import follow, train
from trainer.config import PublishConfig, parse_content, parse_text

# The first model has learned hardly anything, so the next one has very different scores.
OPTIONS = {"feature_log_share": 1, "feature_log_every_s": 0.1, "feedback_share": 1, "live_guard": "false"}
REQUESTS, ROWS = 60, 20
# A label may be late by as much as a busy machine takes between two calls.
WINDOW_S, LATENESS_S = 4.0, 0.5


class Clients:
    """Users: ask for scores of rows, and click."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sent: dict[str, Any] = {}

    def visit(self, number: int) -> str:
        """Sends a request and the clicks on its rows; returns the snapshot that answered."""
        rows = click_rows(1, REQUESTS * ROWS).slice(number % REQUESTS * ROWS, ROWS)
        inputs = [
            {"name": name, "datatype": dtype, "shape": [ROWS, 1], "data": rows.column(name).to_pylist()}
            for name, dtype in (("user", "INT64"), ("item", "INT64"), ("price", "FP32"))
        ]
        answer = self._post("infer", {"inputs": inputs})
        self.sent[answer["id"]] = rows
        labels = rows.column("clicked").to_pylist()
        self._post("feedback", {"id": answer["id"], "labels": labels})
        return f"{answer['model_version']}.{answer['parameters']['sequence']}"

    def shown(self) -> dict[str, Any]:
        return dict(ask(self._port, "GET", f"/v2/models/{NAME}/feedback").json)

    def quality(self, snapshot: str) -> dict[str, Any]:
        """Returns the figures of a snapshot."""
        return next(dict(each) for each in self.shown()["feedback"]["quality"] if each["snapshot"] == snapshot)

    def _post(self, what: str, content: Any) -> dict[str, Any]:
        reply = ask(self._port, "POST", f"/v2/models/{NAME}/{what}", content)
        assert reply.status == 200, reply.content
        return dict(reply.json)


def test_what_was_served_is_trained_on_and_the_new_snapshot_is_judged(tmp_path: Path) -> None:
    history = click_rows(0, 3000).append_column("served_at", pa.array(np.linspace(1.7e9, 1.7e9 + 100, 3000)))
    pq.write_table(history, tmp_path / "history.parquet")
    content = parse_text(CONFIG).model_dump(mode="json")
    content["training"]["time_column"] = "served_at"
    # It learns rows by heart within the few steps that it gets, so that their scores are better afterwards for certain.
    content["optimizer"] = {"sparse": {"lr": 1.0}, "dense": {"lr": 0.02}}
    content["data"]["join"] = {
        "key": ["served_id", "served_row"],
        "label": "clicked",
        "window_seconds": WINDOW_S,
        "lateness_seconds": LATENESS_S,
        "idle_seconds": 1.0,
    }
    train(parse_content(content), tmp_path / "history.parquet", output=tmp_path / "run", repository=tmp_path / "models")
    with (tmp_path / "models" / NAME / "config.pbtxt").open("a") as file:
        for key, value in OPTIONS.items():
            file.write(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n')
    config = ServerConfig(
        model_repository=tmp_path / "models",
        store=tmp_path / "store",
        feature_log=tmp_path / "log",
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        open_admin=True,
        poll_s=0.2,
    )
    with Server(config) as server:
        clients = Clients(server.http_port)
        assert {clients.visit(number) for number in range(REQUESTS)} == {"1.0"}
        ended = time.monotonic()
        labelled = REQUESTS * ROWS
        number = REQUESTS
        # Until the window of the requests so far is over by the time of later ones.
        while time.monotonic() < ended + WINDOW_S + LATENESS_S + 1.0 or number < REQUESTS + 2:
            clients.visit(number)
            number += 1
        rows = number * ROWS
        clicks = sum(sum(each.column("clicked").to_pylist()) for each in clients.sent.values())
        until(lambda: clients.shown()["log"]["written_rows"] == rows)
        until(lambda: clients.shown()["log"]["written_labels"] == clicks)
        report = follow(
            tmp_path / "run",
            tmp_path / "log" / NAME / "requests",
            labels=tmp_path / "log" / NAME / "labels" / "score",
            repository=tmp_path / "models",
            publish=PublishConfig(delta_every_rows=100_000),
            until_idle=3.0,
            progress=False,
        )
        assert labelled <= report.rows <= rows
        until(lambda: clients.visit(0) == "1.1")
        for each in range(REQUESTS):
            assert clients.visit(each) == "1.1"
        # Labels that came before their request was looked at are joined a moment later.
        until(lambda: clients.quality("1.1")["rows"] >= REQUESTS * ROWS)
        # It has learned the rows that are asked again.
        assert clients.quality("1.1")["auc"] > clients.quality("1.0")["auc"]
        assert clients.shown()["feedback"]["labels"]["misfit"] == 0
