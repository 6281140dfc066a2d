"""Priorities, refusals, sessions and users of many items, as callers meet them: HTTP, gRPC, the command line."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from emberline.cli import sessions
from serving import Server
from tests.integration.serving.conftest import Published, append_config, loaded_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent, which tritonclient.http imports, warns about what it patches
    import gevent
    import tritonclient.grpc as triton_grpc
    import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

SESSIONS = "/v2/repository/models/ranker/sessions"
LEVELS = """
dynamic_batching {
  priority_levels: 2 default_priority_level: 2
  priority_queue_policy { key: 1 value { max_queue_size: 2 } }
  priority_queue_policy { key: 2 value { max_queue_size: 1 } }
}
"""


@pytest.fixture
def serve(repository: Path, tmp_path: Path, start_server: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def run(config: str = "") -> Server:
        append_config(repository, config)
        started.append(start_server(repository, tmp_path / "store"))
        return started[-1]

    yield run
    for server in started:
        server.stop()


def ask(server: Server, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def predict(server: Server, rows: list[dict[str, Any]]) -> tuple[int, Any]:
    return ask(server, "POST", "/v1/models/ranker:predict", {"instances": rows})


def test_sessions_are_shown_and_changed_while_requests_run_and_stay_over_a_restart(
    serve: Callable[..., Server], published: Published, repository: Path, tmp_path: Path, start_server: Any
) -> None:
    server = serve()
    rows = published.random_rows(8, 3)
    expected = published.score(rows)["score"].ravel()
    stop = threading.Event()
    failed: list[Any] = []

    def client() -> None:
        while not stop.is_set():
            status, answer = predict(server, rows)
            scores = [row["score"] for row in answer["predictions"]] if status == 200 else []
            if status != 200 or not np.allclose(scores, expected, atol=1e-6):
                failed.append(answer)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    for count in (3, 1, 4, 2):
        status, state = ask(server, "POST", SESSIONS, {"count": count})
        assert (status, state["versions"][0]["count"]) == (200, count)
    stop.set()
    for thread in clients:
        thread.join(20)
    assert not failed
    status, state = ask(server, "GET", SESSIONS)
    (version,) = state["versions"]
    assert (status, state["configured"], version["pick"], version["queued"]) == (200, 1, "least_loaded", 0)
    assert len(version["sessions"]) == 2
    assert all(entry["busy_s"] >= 0 for entry in version["sessions"])

    for body in ({"count": 0}, {"count": 257}, {"count": "many"}, {}, {"counts": 1}):
        assert ask(server, "POST", SESSIONS, body)[0] == 400, body
    assert ask(server, "POST", SESSIONS.replace("ranker", "nobody"), {"count": 1})[0] == 404

    server.stop()
    again = start_server(repository, tmp_path / "store")
    try:
        assert ask(again, "GET", SESSIONS)[1]["versions"][0]["count"] == 2
        assert ask(again, "POST", SESSIONS, {"count": None})[1]["versions"][0]["count"] == 1
    finally:
        again.stop()


def test_the_command_shows_and_changes_sessions(serve: Callable[..., Server], published: Published) -> None:
    server = serve()
    predict(server, published.random_rows(8, 3))
    url = ["--url", f"http://127.0.0.1:{server.http_port}"]
    shown = CliRunner().invoke(sessions.command, ["ranker", *url], catch_exceptions=False).output
    assert "ranker/1: 1 session(s), picked least_loaded; 0 request(s) wait" in shown
    assert "ranker/1#0" in shown
    changed = CliRunner().invoke(sessions.command, ["ranker", "--count", "3", *url], catch_exceptions=False).output
    assert "ranker/1: 3 session(s)" in changed
    assert "config.pbtxt says 1" in changed
    back = CliRunner().invoke(sessions.command, ["ranker", "--configured", "--json", *url], catch_exceptions=False)
    assert json.loads(back.output)["versions"][0]["count"] == 1
    assert CliRunner().invoke(sessions.command, ["ranker", "--count", "2", "--configured", *url]).exit_code == 2


@pytest.fixture
def stuck(serve: Callable[..., Server]) -> Iterator[tuple[Server, Callable[[], None]]]:
    """Returns a server whose one session does not take requests from its queue, and a function that lets it."""
    server = serve(LEVELS)
    queue = loaded_model(server).group._queues[0]
    queue.native.pause()
    with contextlib.ExitStack() as stack:
        stack.callback(queue.native.resume)
        yield server, stack.close


def test_triton_clients_send_priorities_and_a_full_level_refuses_its_own(
    stuck: tuple[Server, Callable[[], None]],
) -> None:
    server, let_go = stuck
    inputs: list[tuple[str, str, np.ndarray]] = [
        ("user", "INT64", np.array([[1]], np.int64)),
        ("item", "INT64", np.array([[2]], np.int64)),
        ("price", "FP32", np.zeros((1, 2), np.float32)),
    ]
    address = f"127.0.0.1:{server.grpc_port}"
    web = triton_http.InferenceServerClient(f"127.0.0.1:{server.http_port}", network_timeout=30, concurrency=8)
    rpc = triton_grpc.InferenceServerClient(address)

    def tensors(module: Any) -> list[Any]:
        made = []
        for name, dtype, values in inputs:
            made.append(module.InferInput(name, values.shape, dtype))
            made[-1].set_data_from_numpy(values)
        return made

    queue = loaded_model(server).group._queues[0]
    waiting = [web.async_infer("ranker", tensors(triton_http), priority=1)]
    answers: list[Any] = []
    rpc.async_infer("ranker", tensors(triton_grpc), lambda result, error: answers.append(error), priority=1)
    waiting.append(web.async_infer("ranker", tensors(triton_http)))
    deadline = threading.Event()
    for _ in range(3000):
        if queue.native.levels == [0, 0, 1]:
            break
        gevent.sleep(0.01)  # the HTTP client goes on sending only meanwhile
    assert queue.native.levels == [0, 0, 1]
    for priority in (0, 1, 2, 9):
        with pytest.raises(InferenceServerException, match="maximum queue size"):
            rpc.infer("ranker", tensors(triton_grpc), priority=priority)
    # Every level is full: that is said before a body is read.
    status, answer = ask(server, "POST", "/v2/models/ranker/infer", {"nonsense": 1})
    assert (status, "maximum queue size" in answer["error"]) == (503, True)
    let_go()
    for request in waiting:
        assert request.get_result().as_numpy("score").shape == (1, 1)
    for _ in range(500):
        if answers:
            break
        deadline.wait(0.01)
    assert answers == [None]
    with pytest.raises(InferenceServerException, match="priority"):
        web.infer("ranker", tensors(triton_http), parameters={"priority": "first"})
    web.close()
    rpc.close()


def test_processors_that_there_are_not_are_a_reason_in_the_index(serve: Callable[..., Server]) -> None:
    server = serve('parameters { key: "cpus" value { string_value: "0,4095" } }\n')
    (entry,) = server.repository.index()
    assert "processor 4095 is not one that this process may use" in entry.reason


def test_many_items_of_one_user_cost_one_user(serve: Callable[..., Server], published: Published) -> None:
    server = serve()
    rows = published.random_rows(40, 9)
    user = {name: rows[0][name] for name in ("user", "history")}
    rows = [{**row, **user} for row in rows]
    inputs = {name: [row[name] for row in rows] for name in ("item", "tags", "price")}
    inputs |= {name: [value] for name, value in user.items()}
    model = loaded_model(server)
    before = sum(model.store_stats().hits.values()) + model.store_stats().absent
    status, answer = ask(server, "POST", "/v1/models/ranker:predict", {"inputs": inputs})
    assert status == 200, answer
    np.testing.assert_allclose(np.ravel(answer["outputs"]["score"]), published.score(rows)["score"].ravel(), atol=1e-6)
    after = sum(model.store_stats().hits.values()) + model.store_stats().absent
    tags = sum(len([tag for tag in row["tags"] if tag in ("action", "drama", "comedy", "war")]) for row in rows)
    assert after - before == 1 + min(3, len(user["history"] or [])) + 40 + tags


WARM_UP = """
model_warmup {
  name: "zeros" batch_size: 5 count: 3
  inputs { key: "user" value { data_type: TYPE_INT64 dims: [1] random_data: true } }
  inputs { key: "item" value { data_type: TYPE_INT64 dims: [1] random_data: true } }
  inputs { key: "history" value { data_type: TYPE_INT64 dims: [4] random_data: true } }
  inputs { key: "tags" value { data_type: TYPE_STRING dims: [2] random_data: true } }
  inputs { key: "price" value { data_type: TYPE_FP32 dims: [2] zero_data: true } }
}
"""


def test_sessions_are_warm_before_they_serve_and_nothing_of_it_is_counted(
    serve: Callable[..., Server], published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.engine.session import Session

    computed: list[str] = []
    compute = Session._compute
    monkeypatch.setattr(Session, "_compute", lambda self, each: (computed.append(each.name), compute(self, each))[1])
    server = serve(WARM_UP)
    model = loaded_model(server)
    assert computed == ["zeros"] * len(model.group)
    stats = model.store_stats()
    assert sum(stats.hits.values()) + stats.absent == 0
    server.repository.set_sessions("ranker", len(model.group) + 2)
    model.group.wait_warm()
    assert computed == ["zeros"] * len(model.group)
    rows = published.random_rows(4, 1)
    status, answer = predict(server, rows)
    assert status == 200
    np.testing.assert_allclose(
        [row["score"] for row in answer["predictions"]], published.score(rows)["score"].ravel(), atol=1e-6
    )


def test_a_warm_up_that_fails_says_so_and_the_version_is_not_served(serve: Callable[..., Server]) -> None:
    server = serve(WARM_UP.replace("zero_data: true", 'input_data_file: "gone"'))
    (entry,) = server.repository.index()
    assert entry.state == "UNAVAILABLE"
    assert "model_warmup[0].inputs['price'].input_data_file" in entry.reason


def test_the_runner_that_was_kept_is_shown(serve: Callable[..., Server]) -> None:
    server = serve('parameters { key: "runners" value { string_value: "eager,script" } }')
    status, state = ask(server, "GET", SESSIONS)
    assert status == 200
    runner = state["versions"][0]["runner"]
    assert [each["name"] for each in runner["compared"]] == ["eager", "script"]
    assert all(each["why_not"] == "" and set(each["us"]) == {"1", "64"} for each in runner["compared"])
    assert (
        runner["name"]
        == min(
            runner["compared"],
            key=lambda each: sum(us / runner["compared"][0]["us"][rows] for rows, us in each["us"].items()),
        )["name"]
    )
    shown = CliRunner().invoke(sessions.command, ["ranker", "--url", f"http://127.0.0.1:{server.http_port}"])
    assert f"the dense graph is run by '{runner['name']}'" in shown.output


def precision(tolerance: float) -> str:
    return (
        'parameters { key: "precision" value { string_value: "bf16" } }\n'
        f'parameters {{ key: "precision_tolerance" value {{ string_value: "{tolerance}" }} }}\n'
    )


def test_products_in_bfloat16_are_near_and_weights_stay_what_was_published(
    serve: Callable[..., Server], published: Published
) -> None:
    server = serve(precision(0.05))
    rows = published.random_rows(40, 5)
    status, answer = predict(server, rows)
    assert status == 200
    scores = np.array([row["score"] for row in answer["predictions"]])
    expected = published.score(rows)["score"].ravel()
    np.testing.assert_allclose(scores, expected, atol=0.05)
    assert np.abs(scores - expected).max() > 1e-5  # it is not float32
    graph = loaded_model(server).history.current.graph
    assert {tensor.dtype for tensor in graph.weights().values()} == {torch.float32}
    assert len(graph.program.rounded) == 4


def test_a_precision_that_the_tolerance_does_not_allow_is_not_served(serve: Callable[..., Server]) -> None:
    server = serve(precision(1e-6))
    (entry,) = server.repository.index()
    assert entry.state == "UNAVAILABLE"
    assert "golden requests: output" in entry.reason
