"""Tests front ends and an engine that die, are replaced, or stop: what callers notice, and what remains."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.integration.serving.front_processes import TIMEOUT_S, Frontends, HeldRequest, until
from tests.integration.serving.planted import NAME, SPEC, World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="front ends in processes of their own need Linux"),
]

INFER = f"/v2/models/{NAME}/infer"
CONTROL = f"/v2/repository/models/{NAME}"


def request(*names: str, **parameters: Any) -> dict[str, Any]:
    values = {"user": [3], "items": [5], "extra": [7], "other": [9]}
    inputs = [
        {"name": name, "shape": [1, 1], "datatype": "INT64", "data": values[name]}
        for name in (*("user", "items"), *names)
    ]
    return {"inputs": inputs, "parameters": parameters}


BODY = json.dumps(request()).encode()


def message() -> Any:
    made = service_pb2.ModelInferRequest(model_name=NAME)
    made.inputs.add(name="user", datatype="INT64", shape=[1, 1])
    made.raw_input_contents.append((3).to_bytes(8, "little"))
    return made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("lives") / "repository")
    made.publish()
    return made


@pytest.fixture(scope="module")
def served(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontends]:
    with Frontends(world.repository, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def running(served: Frontends) -> Frontends:
    """Returns the module's server, complete: tests restore what they break."""
    until(lambda: served.is_ready() and len(served.fronts()) == served.count)
    return served


def infer(running: Frontends, body: Any = BODY) -> Any:
    reply = running.ask("POST", INFER, body)
    assert reply.status == 200, reply.json
    return reply.json["outputs"]


def held_by_all(running: Frontends) -> dict[HeldRequest, int]:
    """Makes requests that front ends hold while the engine is suspended, at least one for every front end."""
    held: dict[HeldRequest, int] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while set(held.values()) != set(running.fronts()):
        assert time.monotonic() < deadline
        made = HeldRequest(running.port, INFER, BODY)
        held[made] = running.holder(made)
    return held


def test_a_front_end_that_is_killed_takes_its_own_requests_along_and_comes_back(running: Frontends) -> None:
    before = infer(running)
    engine = running.stop_engine()
    held = held_by_all(running)
    victim, *_ = running.fronts()
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in running.fronts())
    engine.send_signal(signal.SIGCONT)
    for entry, pid in held.items():
        answer = entry.answer()
        if pid == victim:
            assert answer is None
        else:
            assert answer is not None
            assert answer.json["outputs"] == before
    # Those that are left take what comes meanwhile.
    for _ in range(10):
        assert infer(running) == before
    until(lambda: len(running.fronts()) == running.count)
    assert "ended with signal 9; it is started again" in running.log.read_text()
    with grpc.insecure_channel(running.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelInfer(message(), timeout=TIMEOUT_S).model_version == "1"


def test_front_ends_are_exchanged_under_load_and_no_new_connection_fails(running: Frontends) -> None:
    before, expected = running.fronts(), infer(running)
    failed: list[Any] = []
    stop = threading.Event()
    asked = [0, 0, 0]

    def client(number: int) -> None:
        while not stop.is_set():
            asked[number] += 1
            try:
                if infer(running) != expected:
                    failed.append("another answer")
            except Exception as error:
                failed.append(repr(error))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(len(asked))]
    for thread in clients:
        thread.start()
    try:
        running.supervisor.send_signal(signal.SIGHUP)
        until(lambda: len(running.fronts()) == running.count and not set(running.fronts()) & set(before))
        done = list(asked)
        until(lambda: all(now > then + 5 for now, then in zip(asked, done, strict=True)))
    finally:
        stop.set()
        for thread in clients:
            thread.join(TIMEOUT_S)
    assert not failed, (failed[:5], len(failed), sum(asked))
    with grpc.insecure_channel(running.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelInfer(message(), timeout=TIMEOUT_S).model_version == "1"


def test_an_engine_that_is_killed_fails_what_it_held_and_comes_back(running: Frontends) -> None:
    before, fronts = infer(running), running.fronts()
    engine = running.stop_engine()
    held = held_by_all(running)
    with grpc.insecure_channel(running.grpc) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(message(), timeout=TIMEOUT_S)
        engine.kill()
        for entry in held:
            answer = entry.answer()
            assert answer is not None
            assert answer.status == 503
            assert answer.json == {"error": "the engine ended before it answered; try again"}
        error = call.exception()
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "try again" in error.details()
    # Nobody waits for an engine that is being started.
    assert running.ask("GET", "/v2/health/live").status == 200
    assert running.ask("GET", "/v2/health/ready").status == 400
    refused = running.ask("POST", INFER, BODY)
    assert (refused.status, refused.json) == (503, {"error": "the engine is being started; try again"})
    refused = running.ask("GET", f"/v2/models/{NAME}")
    assert (refused.status, refused.json) == (503, {"error": "the engine is being started; try again"})
    until(running.is_ready)
    for _ in range(6):
        assert infer(running) == before
    assert running.fronts() == fronts
    assert running.engine().pid != engine.pid


def test_a_client_that_goes_away_and_a_deadline_that_passes_are_settled(running: Frontends) -> None:
    late = json.dumps(request(timeout=100_000)).encode()
    engine = running.stop_engine()
    gone = [HeldRequest(running.port, INFER, BODY) for _ in range(4)]
    waiting = [HeldRequest(running.port, INFER, late) for _ in range(2)]
    for entry in gone:
        entry._socket.close()
    with grpc.insecure_channel(running.grpc) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message(), timeout=0.3)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    engine.send_signal(signal.SIGCONT)
    for entry in waiting:
        answer = entry.answer()
        assert answer is not None
        assert answer.status == 504
        assert "expired in the queue" in answer.json["error"]
    infer(running)


def test_versions_deltas_and_rollbacks_are_seen_through_front_ends(running: Frontends, world: World) -> None:
    for _ in range(4):  # so that both front ends know the first signature
        assert infer(running)[1]["data"][0] == 1
    optional = {**SPEC, "inputs": [*SPEC["inputs"], {"name": "extra", "dtype": "INT64", "missing": "null"}]}
    second = world.publish(spec=optional)
    assert running.ask("POST", f"{CONTROL}/load", {}).status == 200
    # An input that is new is taken at once, though nothing that was sent before has become wrong.
    for _ in range(4):
        assert infer(running, request("extra"))[1]["data"][0] == 2
        assert infer(running)[1]["data"][0] == 2
    assert running.ask("POST", INFER, request("other")).status == 400
    delta = world.change(second)
    assert running.ask("POST", f"{CONTROL}/load", {}).status == 200
    for _ in range(4):
        reply = running.ask("POST", INFER, request(min_snapshot=delta.id))
        assert reply.json["parameters"] == {"snapshot": delta.id, "sequence": 1}
    state = running.ask("GET", f"{CONTROL}/snapshots").json
    assert state["served"]["id"] == delta.id
    assert running.ask("POST", f"{CONTROL}/rollback", {}).json["served"]["id"] == second.id
    assert running.ask("POST", INFER, request()).json["parameters"]["snapshot"] == second.id
    assert running.ask("POST", f"{CONTROL}/resume", {}).status == 200
    until(lambda: running.ask("POST", INFER, request()).json["parameters"]["snapshot"] == delta.id)

    other = {**SPEC, "inputs": [*SPEC["inputs"], {"name": "other", "dtype": "INT64"}]}
    world.publish(spec=other)
    until(lambda: "'extra' is gone" in (running.ask("GET", f"{CONTROL}/snapshots").json["waiting"] or ""))
    allowed = {"version": 3, "inputs": ["extra", "other"]}
    assert running.ask("POST", f"{CONTROL}/allow", allowed).status == 200
    until(lambda: running.ask("GET", f"{CONTROL}/snapshots").json["served"]["version"] == 3)
    for _ in range(4):
        assert infer(running, request("other"))[1]["data"][0] == 4
        for wrong, text in ((request(), "'other'"), (request("extra", "other"), "'extra'")):
            refused = running.ask("POST", INFER, wrong)
            assert refused.status == 400
            assert text in refused.json["error"]


def test_a_signal_lets_what_is_in_flight_be_answered_and_ends_all_processes(served: Frontends) -> None:
    until(lambda: served.is_ready() and len(served.fronts()) == served.count)
    inputs = served.ask("GET", f"/v2/models/{NAME}").json["inputs"]
    body = json.dumps(request(*{each["name"] for each in inputs} & {"other"})).encode()
    expected = infer(served, body)
    processes = [psutil.Process(pid) for pid in served.processes()]
    engine = served.stop_engine()
    held = [HeldRequest(served.port, INFER, body) for _ in range(6)]
    served.process.process.send_signal(signal.SIGTERM)
    until(lambda: "stopping: in-flight requests have" in served.log.read_text())
    engine.send_signal(signal.SIGCONT)
    for entry in held:
        answer = entry.answer()
        assert answer is not None
        assert answer.status == 200
        assert answer.json["outputs"] == expected
    assert served.process.process.wait(TIMEOUT_S) == 0
    assert not [process for process in processes if process.is_running()]
    log = served.log.read_text()
    assert "Traceback" not in log
    assert "leaked" not in log
    assert log.rstrip().endswith("stopped")


def test_what_the_supervisor_leaves_behind_when_it_is_killed_ends_by_itself(world: World, tmp_path: Path) -> None:
    with Frontends(world.repository, tmp_path, frontends=1) as running:
        processes = [psutil.Process(pid) for pid in running.processes()]
        assert len(processes) == 2
        running.supervisor.kill()
        until(lambda: not any(process.is_running() for process in processes))
    with socket.create_server(("127.0.0.1", running.port)):
        pass


def serve(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "emberline", "serve", "--frontends", "2", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("option", ["http_port", "grpc_port", "metrics_port"])
def test_a_port_that_is_taken_is_an_error_that_names_its_option(world: World, tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, option: taken.getsockname()[1]}
        flags = [text for name, port in ports.items() for text in ("--" + name.replace("_", "-"), str(port))]
        code, text = serve("--model-repository", str(world.repository), "--store", str(tmp_path / "s"), *flags)
    assert code == 1
    assert f"--{option.replace('_', '-')}: port {ports[option]} of 127.0.0.1 is in use" in text
    assert len(text.splitlines()) == 1
    assert not (tmp_path / "s").exists()


def test_a_repository_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    ports = [text for name in ("http", "grpc", "metrics") for text in (f"--{name}-port", "0")]
    code, text = serve("--model-repository", str(tmp_path / "nothing"), "--store", str(tmp_path / "s"), *ports)
    assert code == 1
    errors = [line for line in text.splitlines() if " INFO " not in line]
    assert len(errors) == 1, text
    assert errors[0].startswith("emberline: model repository")
    assert "is not a folder" in errors[0]
