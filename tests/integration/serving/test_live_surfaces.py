"""Live updates as callers meet them: over HTTP, over gRPC, with the real clients, and from the command line."""

from __future__ import annotations

import http.client
import json
import shutil
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from emberline.cli import live, predict, snapshots
from serving import Server
from storage import open_version
from storage.errors import EmberlineError
from tests.integration.serving.changed_rows import Line
from tests.integration.serving.conftest import SPEC, Published

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent, which tritonclient.http imports, warns about what it patches
    import tritonclient.grpc as triton_grpc
    import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

CONTROL = "/v2/repository/models/ranker"
VERBS = ["load", "unload", "rollback", "resume", "pause", "pin", "canary", "shadow", "allow"]
EXACT = 1e-6


class Caller:
    """One server over one model with a chain of deltas, and the reference answers of its snapshots."""

    def __init__(self, server: Server, line: Line, published: Published) -> None:
        self.server = server
        self.line = line
        self.rows = published.random_rows(24, 5)
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http_port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, Any]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.connection.request(method, path, data, headers or {})
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None, answer.headers

    @property
    def answered_natively(self) -> int:
        """Returns how many requests the native server has answered."""
        assert self.server.native is not None
        return self.server.native.native.answered

    def control(self, verb: str, body: Any = None) -> dict[str, Any]:
        status, state, _ = self.ask("POST", f"{CONTROL}/{verb}", body)
        assert status == 200, state
        return state if state is not None else {}

    def state(self) -> dict[str, Any]:
        status, state, _ = self.ask("GET", f"{CONTROL}/snapshots")
        assert status == 200, state
        return dict(state)

    def predict(self, **headers: str) -> tuple[int, Any, Any]:
        named = {"Emberline-" + name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", "/v1/models/ranker:predict", {"instances": self.rows}, named)

    def infer(self, headers: dict[str, str] | None = None, **parameters: Any) -> tuple[int, Any]:
        inputs = [
            {"name": "item", "shape": [1, 1], "datatype": "INT64", "data": [3]},
            {"name": "user", "shape": [1, 1], "datatype": "INT64", "data": [1]},
            {"name": "price", "shape": [1, 2], "datatype": "FP32", "data": [[0.5, 1]]},
        ]
        body = {"inputs": inputs, "parameters": parameters}
        status, answer, _ = self.ask("POST", "/v2/models/ranker/infer", body, headers)
        return status, answer

    def answered_by(self, **headers: str) -> str:
        """Returns the snapshot that answers now; its scores are compared with the reference."""
        status, answer, got = self.predict(**headers)
        assert status == 200, answer
        snapshot = str(got["Emberline-Snapshot"])
        assert int(got["Emberline-Sequence"]) == self.line.snapshots.index(snapshot)
        assert got["Emberline-Model-Version"] == "1"
        scores = np.array([row["score"] for row in answer["predictions"]])
        assert np.abs(scores - self.line.scores(self.rows, snapshot)).max() <= EXACT
        return snapshot

    def publish(self, seed: int, **changes: Any) -> str:
        """Publishes a delta and waits until it answers."""
        snapshot = self.line.publish(seed=seed, **changes)
        assert self.answered_by(min_snapshot=snapshot) == snapshot
        return snapshot

    def publish_version(self, published: Published) -> str:
        """Publishes a full version, and returns its snapshot when the server has taken it or waits with it."""
        snapshot = open_version(published.publish(self.line.version_dir.parent)).snapshot
        self.control("load")
        return snapshot

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.metrics_port}/metrics") as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@pytest.fixture
def caller(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], published: Published
) -> Iterator[Caller]:
    shutil.copytree(version_dir.parent, tmp_path / "models" / "ranker")
    server = start_server(tmp_path / "models", tmp_path / "store")
    made = Caller(server, Line(published, tmp_path / "models" / "ranker" / "1"), published)
    yield made
    made.connection.close()
    server.stop()


def command(found: Any, caller: Caller, *arguments: str) -> Result:
    return CliRunner().invoke(found, [*arguments, "--url", caller.url], catch_exceptions=False)


def test_every_answer_names_its_snapshot_and_min_snapshot_waits_for_it(caller: Caller) -> None:
    assert caller.answered_by() == caller.line.snapshots[0]
    first = caller.publish(1)
    assert caller.answered_by(min_snapshot="1.1") == first
    second = caller.line.publish(seed=2)
    status, answer = caller.infer(min_snapshot="1.2")
    assert status == 200
    assert answer["parameters"] == {"snapshot": second, "sequence": 2}
    assert answer["model_version"] == "1"
    status, answer = caller.infer(min_snapshot=first)  # an older one is covered
    assert (status, answer["parameters"]["snapshot"]) == (200, second)


@pytest.mark.parametrize("given", ["models", "../place/models", "link"])
def test_a_delta_is_heard_of_however_the_repository_is_named(
    version_dir: Path,
    tmp_path: Path,
    start_server: Callable[..., Server],
    published: Published,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
) -> None:
    place = tmp_path / "place"
    shutil.copytree(version_dir.parent, place / "models" / "ranker")
    (place / "link").symlink_to("models")
    monkeypatch.chdir(place)
    server = start_server(Path(given), tmp_path / "store", poll_s=3600)  # nothing but inotify would be in time
    caller = Caller(server, Line(published, place / "models" / "ranker" / "1"), published)
    try:
        caller.publish(1)
        caller.publish(2)
    finally:
        caller.connection.close()
        server.stop()


def test_grpc_answers_name_their_snapshot_too(caller: Caller) -> None:
    snapshot = caller.line.publish(seed=1)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{caller.server.grpc_port}") as client:
        inputs = []
        for name, values, dtype in (
            ("item", np.array([[3]], np.int64), "INT64"),
            ("user", np.array([[1]], np.int64), "INT64"),
            ("price", np.array([[0.5, 1]], np.float32), "FP32"),
        ):
            inputs.append(triton_grpc.InferInput(name, list(values.shape), dtype))
            inputs[-1].set_data_from_numpy(values)
        result = client.infer("ranker", inputs, parameters={"min_snapshot": "1.1", "routing_key": 7})
        parameters = result.get_response().parameters
        assert (parameters["snapshot"].string_param, parameters["sequence"].int64_param) == (snapshot, 1)
        with pytest.raises(InferenceServerException, match=r"1\.9") as late:
            client.infer("ranker", inputs, timeout=1000, parameters={"min_snapshot": "1.9"})
        assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        with pytest.raises(InferenceServerException, match="min_snapshot") as wrong:
            client.infer("ranker", inputs, parameters={"min_snapshot": "newest"})
        assert wrong.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_min_snapshot_that_does_not_come_says_what_is_served(caller: Caller) -> None:
    status, answer = caller.infer(min_snapshot="1.1", timeout=20_000)
    assert status == 504
    assert "1.0" in answer["error"]
    for wrong in ("1", "newest", "0" * 31):
        status, answer = caller.infer(min_snapshot=wrong)
        assert (status, "min_snapshot" in answer["error"]) == (400, True)


def test_rollback_holds_until_resume(caller: Caller) -> None:
    first, second = caller.publish(1), caller.publish(2)
    state = caller.control("rollback")
    assert (state["mode"], state["served"]["name"]) == ("held", "1.1")
    assert caller.answered_by() == first
    status, answer, _ = caller.predict(min_snapshot=second)
    assert (status, "1.1" in answer["error"]) == (503, True)
    third = caller.line.publish(seed=3)  # descends from what is held
    assert caller.predict(min_snapshot=third)[0] in (503, 504)
    assert caller.answered_by() == first
    caller.control("resume", {})
    assert caller.answered_by(min_snapshot=third) == third
    assert caller.state()["mode"] == "following"
    assert caller.control("rollback", {"to": "1.0"})["served"]["id"] == caller.line.snapshots[0]
    status, answer, _ = caller.ask("POST", f"{CONTROL}/rollback", {"to": "1.77"})
    assert status == 404
    assert caller.metrics()['emberline_rollbacks_total{model="ranker"}'] == 2


def test_a_delta_of_the_served_snapshot_ends_the_hold(caller: Caller) -> None:
    first = caller.publish(1)
    caller.publish(2)
    caller.control("rollback", {"steps": 1})
    rebased = caller.line.publish(seed=3, parent=1)
    assert caller.line.snapshots[1] == first
    assert caller.answered_by(min_snapshot=rebased) == rebased
    assert caller.state()["mode"] == "following"


def test_pause_and_pin_hold_still(caller: Caller) -> None:
    first = caller.publish(1)
    assert caller.control("pause")["mode"] == "paused"
    second = caller.line.publish(seed=2)
    assert caller.infer(min_snapshot=second, timeout=300_000)[0] in (503, 504)
    assert caller.answered_by() == first
    caller.control("resume")
    assert caller.answered_by(min_snapshot=second) == second
    assert caller.control("pin", {"to": "1.1"})["mode"] == "pinned"
    assert caller.answered_by() == first
    caller.control("resume")
    assert caller.answered_by(min_snapshot=second) == second
    state = caller.control("pin")
    assert (state["mode"], state["served"]["id"]) == ("pinned", second)


def test_a_canary_is_sticky_counted_apart_and_ends_in_promotion_or_hold(caller: Caller) -> None:
    first, second = caller.publish(1), caller.publish(2)
    caller.control("rollback")
    state = caller.control("canary", {"fraction": 0.5, "to": "1.2"})
    assert state["canary"]["fraction"] == 0.5
    sides = {str(key): caller.answered_by(routing_key=str(key)) for key in range(40)}
    assert set(sides.values()) == {first, second}
    natively = caller.answered_natively
    for key, snapshot in sides.items():
        assert caller.answered_by(routing_key=key) == snapshot
        status, answer = caller.infer(routing_key=int(key))
        assert (status, answer["parameters"]["snapshot"]) == (200, snapshot)
    assert caller.answered_natively == natively + len(sides)
    on_canary = sum(snapshot == second for snapshot in sides.values())
    found = caller.metrics()
    labels = 'model="ranker",version="1"'
    assert found[f'emberline_requests_success_total{{arm="canary",{labels}}}'] == 3 * on_canary
    assert found[f'emberline_snapshot_sequence{{arm="canary",{labels}}}'] == 2
    assert found[f'emberline_snapshot_sequence{{arm="main",{labels}}}'] == 1
    assert found[f"emberline_canary_fraction{{{labels}}}"] == 0.5
    status, answer, _ = caller.ask("POST", f"{CONTROL}/rollback", {"to": "1.0"})
    assert (status, "canary" in answer["error"]) == (409, True)
    caller.control("canary", {"promote": True})
    assert {caller.answered_by(routing_key=key) for key in sides} == {second}
    status, answer, _ = caller.ask("POST", f"{CONTROL}/canary", {"stop": True})
    assert status == 409
    caller.control("rollback")
    caller.control("canary", {"fraction": 1, "to": second})
    assert caller.answered_by(routing_key="a") == second
    caller.control("canary", {"stop": True})
    assert caller.answered_by(routing_key="a") == first
    assert caller.state()["canary"] is None


def test_a_version_can_be_the_canary_and_is_chosen_before_its_tensors_are_read(
    caller: Caller, published: Published
) -> None:
    assert "next" in caller.control("canary", {"fraction": 0.5})["waiting"]
    caller.publish_version(published)
    state = caller.state()
    assert (state["served"]["name"], state["canary"]["name"]) == ("1.0", "2.0")
    sides = {key: caller.predict(Routing_Key=str(key))[2]["Emberline-Model-Version"] for key in range(40)}
    assert set(sides.values()) == {"1", "2"}
    natively = caller.answered_natively
    for key, version in sides.items():
        status, answer = caller.infer(routing_key=key)
        assert (status, answer["model_version"]) == (200, version)
        status, answer = caller.infer({"Emberline-Routing-Key": "a"}, routing_key=str(key))
        assert (status, answer["model_version"]) == (200, version)
        status, answer = caller.infer({"Emberline-Routing-Key": str(key)})
        assert (status, answer["model_version"]) == (200, version)
    assert {caller.infer()[1]["model_version"] for _ in range(40)} == {"1", "2"}
    assert caller.answered_natively == natively + 3 * len(sides) + 40
    found = caller.metrics()
    of_second = 'emberline_requests_success_total{arm="%s",model="ranker",version="2"}'
    counted = sum(found[of_second % arm] for arm in ("main", "canary"))
    assert counted >= 4 * sum(version == "2" for version in sides.values())
    assert caller.ask("GET", "/v2/models/ranker/versions/2")[0] == 200
    state = caller.control("canary", {"stop": True})
    assert state["canary"] is None
    assert {caller.infer(routing_key=key)[1]["model_version"] for key in sides} == {"1"}
    caller.control("canary", {"fraction": 0.5, "to": "2"})
    caller.control("load")
    assert caller.state()["canary"]["name"] == "2.0"
    assert caller.control("canary", {"promote": True})["served"]["name"] == "2.0"
    assert {caller.infer(routing_key=key)[1]["model_version"] for key in sides} == {"2"}


def test_what_is_refused_is_seen_everywhere(caller: Caller) -> None:
    bad = caller.line.publish(seed=1, wrong_by=0.01)
    status, answer, _ = caller.predict(min_snapshot=bad)
    assert (status, "golden" in answer["error"]) == (503, True)
    assert caller.answered_by() == caller.line.snapshots[0]
    state = caller.state()
    assert [(entry["snapshot"], "golden" in entry["reason"]) for entry in state["quarantined"]] == [(bad, True)]
    assert caller.metrics()['emberline_updates_refused_total{model="ranker",reason="ParityError"}'] == 1
    _, index, _ = caller.ask("POST", "/v2/repository/index", {})
    assert [(entry["version"], entry["state"]) for entry in index] == [("1", "READY")]
    assert "golden" in index[0]["reason"]
    caller.line.snapshots.pop(), caller.line.worlds.pop()
    caller.line.snapshots.append("0" * 32), caller.line.worlds.append(caller.line.worlds[0])
    good = caller.line.publish(seed=2, parent=0)
    assert caller.answered_by(min_snapshot=good) == good


def test_a_version_that_breaks_callers_waits_until_it_is_allowed_by_name(
    caller: Caller, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = next(entry for entry in SPEC["inputs"] if entry["name"] == "history")
    monkeypatch.setitem(history, "missing", "error")  # a caller that leaves it out would fail
    second = caller.publish_version(published)
    assert caller.answered_by() == caller.line.snapshots[0]
    assert "'history' may no longer be missing" in caller.state()["waiting"]
    assert "history" in command(snapshots.command, caller, "ranker").output
    _, index, _ = caller.ask("POST", "/v2/repository/index", {})
    assert [(entry["version"], entry["state"]) for entry in index] == [("1", "READY"), ("2", "UNAVAILABLE")]
    assert "history" in index[1]["reason"]
    assert caller.metrics()['emberline_update_waiting{model="ranker"}'] == 1
    status, answer, _ = caller.ask("POST", "/v1/models/ranker:predict", {"instances": []}, {})
    assert status == 200
    command(live.allow, caller, "ranker", "--version", "2", "--input", "history")
    status, answer, headers = caller.predict(Min_Snapshot="2.0")
    assert status == 200, answer
    assert (headers["Emberline-Snapshot"], headers["Emberline-Model-Version"]) == (second, "2")
    assert caller.state()["served"]["name"] == "2.0"
    status, answer, _ = caller.ask("POST", f"{CONTROL}/allow", {"version": 9, "inputs": ["x"]})
    assert status == 404


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_tritonclient_loads_and_unloads(caller: Caller, kind: str) -> None:
    api = triton_http if kind == "http" else triton_grpc
    port = caller.server.http_port if kind == "http" else caller.server.grpc_port
    with api.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.unload_model("ranker")
        assert not client.is_model_ready("ranker")
        assert caller.predict()[0] == 503
        snapshot = caller.line.publish(seed=1)
        client.load_model("ranker")
        assert client.is_model_ready("ranker")
        assert caller.answered_by(min_snapshot=snapshot) == snapshot
        client.load_model("ranker")  # nothing to do
        with pytest.raises(InferenceServerException, match="nope") as unknown:
            client.load_model("nope")
        assert unknown.value.status() == ("404" if kind == "http" else "StatusCode.NOT_FOUND")
        with pytest.raises(InferenceServerException, match="not supported"):
            client.load_model("ranker", config="{}")


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_model_is_404_for_every_call(caller: Caller, verb: str) -> None:
    bodies = {"canary": {"fraction": 0.5}, "shadow": {"to": "1.1", "share": 0.5}}
    body = {**bodies, "allow": {"version": 2, "inputs": ["x"]}}.get(verb, {})
    status, answer, _ = caller.ask("POST", f"/v2/repository/models/nope/{verb}", body)
    assert (status, "nope" in answer["error"]) == (404, True)


@pytest.mark.parametrize("name", ["..", ".", "ranker/..", "../models/ranker", "", ".hidden", "ranker/1", "x\0y"])
def test_no_name_leads_out_of_the_repository(caller: Caller, name: str) -> None:
    with (
        triton_grpc.InferenceServerClient(f"127.0.0.1:{caller.server.grpc_port}") as client,
        pytest.raises(InferenceServerException) as refused,
    ):
        client.load_model(name)
    assert refused.value.status() == "StatusCode.NOT_FOUND"


def test_a_fault_of_ours_is_500_with_a_reference_and_no_more(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(caller.server.repository, "pause", fail)
    status, answer, _ = caller.ask("POST", f"{CONTROL}/pause")
    assert status == 500
    assert "secret" not in answer["error"]
    reference = answer["error"].split()[2].rstrip(";")
    assert [reference in record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [True]


def test_bodies_are_strict_and_the_state_stays(caller: Caller) -> None:
    before = caller.state()
    for verb in VERBS:
        status, answer, _ = caller.ask("POST", f"{CONTROL}/{verb}", {"fractoin": 0.5})
        assert (status, "fractoin" in answer["error"]) == (400, True)
        for wrong in (b"{", b"[]", b"null", b"\xff"):
            assert caller.ask("POST", f"{CONTROL}/{verb}", wrong)[0] == 400
    status, answer, _ = caller.ask("POST", f"{CONTROL}/rolback", {})
    assert (status, "did you mean 'rollback'" in answer["error"]) == (404, True)
    assert caller.ask("GET", f"{CONTROL}/rollback")[0] == 405
    assert caller.ask("GET", "/v2/repository/models/nope/snapshots")[0] == 404
    assert caller.state() == before


def test_the_commands_say_the_state_after_them(caller: Caller) -> None:
    caller.publish(1)
    caller.publish(2)
    assert "1.2" in command(snapshots.command, caller, "ranker").output
    shown = json.loads(command(snapshots.command, caller, "ranker", "--json").output)
    assert shown["served"]["name"] == "1.2"
    assert "ranker: held, serves 1.1" in command(live.rollback, caller, "ranker").output
    assert "serves 1.0" in command(live.rollback, caller, "ranker", "--to", "1.0").output
    assert "ranker: following, serves 1.2" in command(live.resume, caller, "ranker").output
    assert "ranker: paused" in command(live.pause, caller, "ranker").output
    command(live.resume, caller, "ranker")
    assert "ranker: pinned, serves 1.1" in command(live.pin, caller, "ranker", "1.1").output
    command(live.resume, caller, "ranker")
    command(live.rollback, caller, "ranker")
    shown = command(live.canary, caller, "ranker", "--fraction", "0.25", "--to", "1.2").output
    assert "canary 1.2 for 0.25 of the requests" in shown
    assert "serves 1.2" in command(live.canary, caller, "ranker", "--promote").output
    assert "ranker: unloaded" in command(live.unload, caller, "ranker").output
    assert "ranker: following, serves 1.2" in command(live.load, caller, "ranker").output
    row = json.dumps(caller.rows[0])
    options = ("--min-snapshot", "1.2", "--routing-key", "käse")
    done = command(predict.command, caller, "ranker", "--instances", row, *options)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == f"answered by snapshot 1.2 ({caller.line.snapshots[2]})\n"
    with pytest.raises(EmberlineError, match="404"):
        command(live.rollback, caller, "ranker", "--to", "1.77")
    with pytest.raises(EmberlineError, match="404"):
        command(snapshots.command, caller, "nope")
