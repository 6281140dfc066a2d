"""Shadows as callers meet them: requests by HTTP and gRPC, load, failures, the commands, the metrics, and a fleet."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from emberline.cli import shadow, snapshots
from serving.engine.shadow import MAX_WAITING
from storage.errors import Conflict, StoreError
from tests.integration.serving.fleets import Replicas
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent, which tritonclient imports, warns about what it patches
    import tritonclient.grpc as triton_grpc

CONTROL = f"/v2/repository/models/{NAME}/shadow"
OPTIONS: dict[str, Any] = {"shadow_min_requests": 20}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, **OPTIONS) as running:
        yield running


def call(live: Live, path: str, content: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", live.server.http_port, timeout=60)
    connection.request("POST", path, json.dumps(content))
    answer = connection.getresponse()
    status, text = answer.status, answer.read()
    connection.close()
    return status, json.loads(text)


def inputs_of(rows: int, seed: int) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    rng = np.random.default_rng(seed)
    return {"user": rng.integers(1, 64, (rows, 1)), "items": rng.integers(1, 256, (rows, 2))}


def by_http(live: Live, rows: int, seed: int = 0) -> str:
    """Sends a request; returns the snapshot that answered."""
    inputs = [
        {"name": name, "shape": list(values.shape), "datatype": "INT64", "data": values.tolist()}
        for name, values in inputs_of(rows, seed).items()
    ]
    status, answer = call(live, f"/v2/models/{NAME}/infer", {"inputs": inputs})
    assert status == 200, answer
    return str(answer["parameters"]["snapshot"])


def by_grpc(live: Live, rows: int, seed: int = 0) -> str:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{live.server.grpc_port}") as client:
        inputs = []
        for name, values in inputs_of(rows, seed).items():
            inputs.append(triton_grpc.InferInput(name, list(values.shape), "INT64"))
            inputs[-1].set_data_from_numpy(values)
        answer = client.infer(NAME, inputs)
        return str(answer.get_response().parameters["snapshot"].string_param)


def found(live: Live) -> dict[str, Any]:
    return dict(live.report()["shadow"])


def begin(live: Live, to: str, share: float = 1.0, **options: Any) -> dict[str, Any]:
    status, state = call(live, CONTROL, {"to": to, "share": share, **options})
    assert status == 200, state
    live.until(lambda: found(live)["verdict"] != "loading")
    return dict(state)


def compared(live: Live, count: int) -> None:
    live.until(lambda: found(live)["requests"] + found(live)["failures"] >= count)


def shadowed(live: Live, **options: Any) -> tuple[Planted, Planted]:
    """Serves a version, with a delta of it as the shadow."""
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    tried = live.delta(first, **options)
    begin(live, tried.name)
    return first, tried


def test_requests_that_native_code_answers_are_compared_one_by_one(live: Live) -> None:
    live.world.configure("dynamic_batching { max_queue_delay_microseconds: 1000 }", **OPTIONS)
    first, _ = shadowed(live)
    group = live.repository.get(NAME).group
    (queue,) = group._queues
    queue.native.pause()
    sizes = [4, 9, 12, 16, 25, 30]
    with ThreadPoolExecutor(len(sizes)) as pool:
        ways = [by_http, by_grpc] * 3
        waiting = [pool.submit(way, live, rows, seed) for seed, (way, rows) in enumerate(zip(ways, sizes, strict=True))]
        live.until(lambda: len(queue) == len(sizes))
        queue.native.resume()
        assert {each.result(30) for each in waiting} == {first.id}
    compared(live, len(sizes))
    assert live.server.native is not None
    assert live.server.native_grpc is not None
    assert (live.server.native.native.answered, live.server.native_grpc.native.answered) == (3, 3)
    state = found(live)
    assert (state["requests"], state["rows"], state["failures"]) == (len(sizes), sum(sizes), 0)
    score = next(each for each in state["outputs"] if each["output"] == "score")
    assert (score["mean_absolute_shift"], score["overlap_requests"]) == (pytest.approx(0, abs=1e-6), 4)
    assert 0 < state["main_p50_ms"] <= state["main_p99_ms"] < 30_000


@pytest.mark.slow
def test_a_slow_candidate_is_slower_and_clients_do_not_wait_for_it(live: Live) -> None:
    first = live.version(1)
    live.start()
    live.repository.pause(NAME)
    live.version(2, tables=first.tables, work=1200)
    begin(live, "2")
    for seed in range(88):  # every fourth is timed on both arms
        assert by_http(live, 24, seed) == first.id
        compared(live, seed + 1)
    state = found(live)
    # The planted `trace` names the generation, which the bounds of the verdict must not look at here.
    live.world.configure(**OPTIONS, shadow_max_shift=1e9, shadow_max_miscalibration=1e9, shadow_min_overlap=0)
    live.repository.resume(NAME)
    live.until(lambda: found(live)["verdict"] == "slower")
    assert state["slowdown"] > 1.5
    assert state["shadow_p50_ms"] > 0
    assert "times as long as on the main arm, at most 1.5 is allowed (shadow_max_slowdown)" in found(live)["reason"]


def test_failures_are_counted_and_reach_no_client(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = shadowed(live)
    parts = live.repository.get(NAME).parts

    def broken(*_: Any) -> Any:
        raise StoreError("the page 7 of table 'item' is damaged")

    with monkeypatch.context() as patched:
        patched.setattr(parts.shadow_pipeline, "score", broken)
        assert [by_http(live, 4), by_grpc(live, 4)] == [first.id] * 2
        compared(live, 2)
    state = found(live)
    assert (state["verdict"], state["failures"], state["requests"]) == ("fails", 2, 0)
    assert state["reason"] == "2 of 2 requests, the last: the page 7 of table 'item' is damaged"
    statistics = live.repository.get(NAME).statistics
    assert (statistics.stages["success"].count, statistics.stages["fail"].count) == (2, 0)


def test_a_busy_server_drops_copies_and_answers_requests(live: Live) -> None:
    first, _ = shadowed(live)
    model = live.repository.get(NAME)
    (queue,) = model.group._queues
    queue.native.pause()
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(by_http, live, 4, seed) for seed in range(12)]
        live.until(lambda: len(queue) == 12)
        queue.native.resume()
        assert {each.result(30) for each in waiting} == {first.id}
    assert found(live)["dropped"]["busy"] >= 8
    compared(live, 12 - found(live)["dropped"]["busy"])
    # While all cores are at work for models, copies wait, and those that find no room are dropped.
    release, held = threading.Event(), threading.Barrier(model._cores.slots + 1)

    def hold(number: int) -> None:
        with model._cores.turn(model._cores.account(f"other-{number}", 1.0)):
            held.wait()
            release.wait()

    before = found(live)
    holders = [threading.Thread(target=hold, args=(number,)) for number in range(model._cores.slots)]
    for holder in holders:
        holder.start()
    held.wait(10)
    run = live.repository._models[NAME].model.shadowing._run
    try:
        assert not model.has_spare_cycles
        copies = MAX_WAITING + 10
        for seed in range(copies):  # the answers are those of a request that needs no turn: they are made here
            _offer(live, run, seed)
        assert found(live)["dropped"]["full"] >= 9
        assert found(live)["requests"] == before["requests"]
    finally:
        release.set()
    compared(live, before["requests"] + copies - found(live)["dropped"]["full"])


def _offer(live: Live, run: Any, seed: int) -> None:
    """Hands the shadow a request that the main arm has answered."""
    from serving.engine.requests import InferenceResult, QueuedRequest
    from tests.integration.serving.planted import columns_of

    rows = [{"user": 1 + seed % 60, "items": [seed + 1]}]
    first = next(iter(live.snapshots.values()))
    answer = first.answer(rows)
    request = QueuedRequest(columns_of(rows), 1, None, None, 1)  # type: ignore[arg-type]
    run.offer(request, InferenceResult([answer["score"], answer["trace"]], None), [0], 2)  # type: ignore[arg-type]


def test_the_commands_say_what_was_compared(live: Live) -> None:
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    tried = live.delta(first)

    def command(found_command: Any, *arguments: str) -> Any:
        url = f"http://127.0.0.1:{live.server.http_port}"
        return CliRunner().invoke(found_command, [NAME, *arguments, "--url", url], catch_exceptions=False)

    assert f"{NAME}: no shadow" in command(shadow.command).output
    began = command(shadow.command, tried.name, "--share", "1", "--top-k", "5", "--for", "30m")
    assert began.exit_code == 0, began.output
    live.until(lambda: found(live)["verdict"] != "loading")
    state = found(live)
    assert (state["share"], state["top_k"], state["running"]) == (1.0, 5, True)
    assert state["until_unix_ms"] - state["since_unix_ms"] == pytest.approx(30 * 60_000, abs=5000)
    for seed in range(20):
        by_http(live, 12, seed)
    compared(live, 20)
    shown = command(shadow.command).output
    assert "shadow 1.1 of 1 of the requests, shifted: output 'trace[0]'" in shown.replace("\n", " ")
    assert "20 requests, 240 rows compared, 0 dropped" in command(snapshots.command).output.replace("\n", " ")
    assert command(shadow.command, "--promote").output.startswith(f"{NAME}: paused, serves 1.1")
    assert "there is no shadow to stop" in str(_refused(live, {"stop": True}))
    for wrong, text in (
        ({}, "expected 'to' and 'share'"),
        ({"to": "1.1"}, "'to' and 'share' go together"),
        ({"to": "1.1", "share": 1.5}, "'share': Input should be less than or equal to 1"),
        ({"to": "1.1", "share": 0.5, "top_k": 0}, "'top_k'"),
        ({"to": "1.1", "shar": 0.5}, "did you mean 'share'?"),
        ({"stop": True, "promote": True}, "expected 'to' and 'share'"),
    ):
        status, answer = call(live, CONTROL, wrong)
        assert (status, text in answer["error"]) == (400, True), answer
    for arguments in (["1.1"], ["--share", "0.5"], ["1.1", "--share", "0.5", "--stop"], ["--for", "5m"]):
        assert CliRunner().invoke(shadow.command, [NAME, *arguments]).exit_code == 2, arguments
    refused = CliRunner().invoke(shadow.command, [NAME, "1.1", "--share", "0.5", "--for", "soon"])
    assert "expected a number and s, m, h or d, such as 30m" in refused.output.replace("\n", " ")


def _refused(live: Live, content: Any) -> Any:
    status, answer = call(live, CONTROL, content)
    assert status == 409
    return answer["error"]


def test_the_metrics_have_the_figures_and_the_time_ends(live: Live) -> None:
    first, tried = shadowed(live)
    by_http(live, 12)
    compared(live, 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics") as answer:
        page = answer.read().decode()
    labels = f'{{model="{NAME}",snapshot="{tried.name}"'
    for line in (
        f"emberline_shadow_share{labels}}} 1",
        f"emberline_shadow_requests_total{labels}}} 1",
        f"emberline_shadow_rows_total{labels}}} 12",
        f'emberline_shadow_dropped_total{{model="{NAME}",reason="busy",snapshot="1.1"}} 0',
        f'emberline_shadow_verdict{labels},verdict="not enough requests"}} 1',
        f'emberline_shadow_overlap{{model="{NAME}",output="score",snapshot="1.1"}} 1',
    ):
        assert line in page.splitlines(), [each for each in page.splitlines() if "shadow" in each]
    status, answer_json = call(live, f"/v2/repository/models/{NAME}/canary", {"fraction": 0.5})
    assert (status, "there is a shadow" in answer_json["error"]) == (409, True)
    begin(live, tried.name, for_s=0.05)
    live.until(lambda: not found(live)["running"])
    assert [by_http(live, 12) for _ in range(3)] == [first.id] * 3
    assert (found(live)["requests"], found(live)["verdict"]) == (1, "not enough requests")


@pytest.mark.slow
def test_a_shadow_is_of_one_replica_and_is_not_promoted_in_a_fleet(store_url: str, tmp_path: Path) -> None:
    replicas = Replicas(store_url, tmp_path)
    try:
        line = replicas.serve("one", "two", deltas=2)
        repository = replicas.servers["one"].repository
        repository.shadow(NAME, to=line[1].name, share=0.5, top_k=10)
        replicas.until(lambda: replicas.report("one")["shadow"]["id"] == line[1].id)
        assert replicas.report("two")["shadow"] is None
        with pytest.raises(Conflict, match="a shadow is of one replica"):
            repository.promote_shadow(NAME)
        last = replicas.put(replicas.world.change(line[2]))
        replicas.reach(last)
        assert replicas.report("one")["shadow"]["id"] == line[1].id
        replicas.servers["two"].repository.rollback(NAME)
        replicas.reach(line[2])
        assert repository.stop_shadow(NAME)["shadow"] is None
    finally:
        replicas.stop()
