"""`emberline serve` as processes: a server that crashes is started again, and both processes stop together."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.grpc.native_server import HAS_NATIVE_GRPC
from serving.supervisor import MAX_CRASHES
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a supervisor needs Linux")

TINY = Path(__file__).parents[2] / "model_repo" / "tiny"
TIMEOUT_S = 30.0
INFER = "/v2/models/tiny/infer"
BODY = json.dumps(
    {
        "inputs": [
            {"name": "words", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]},
            {"name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.5]},
        ]
    }
).encode()
# Models whose answers take so long that a request is in flight for as long as a test needs it.
DELAYS_MS = {"slow": 2000, "endless": 60_000}
DELAYED = """
name: "%s"  backend: "identity"  max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
parameters { key: "execute_delay_ms" value { string_value: "%d" } }
"""
DELAYED_BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [4.0]}]}).encode()


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Lets servers heed all signals also where this process ignores some: as a background job, or under nohup."""
    ignored = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    shutil.copytree(TINY, made / "tiny")
    for name, delay_ms in DELAYS_MS.items():
        (made / name).mkdir()
        (made / name / "config.pbtxt").write_text(DELAYED % (name, delay_ms))
    return made


@pytest.fixture(scope="module")
def steady(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server that all tests leave as it is."""
    place = tmp_path_factory.mktemp("steady")
    with ServerProcess(repository, place / "store", place / "log") as server:
        yield server


@pytest.fixture
def running(repository: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """Runs a server with the arguments that a test asks for."""
    arguments = getattr(request, "param", ())
    with ServerProcess(repository, tmp_path / "store", tmp_path / "log", arguments=arguments) as server:
        yield server


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def child_of(server: ServerProcess) -> psutil.Process:
    """Returns the process that serves."""
    (child,) = psutil.Process(server.process.pid).children()
    return child


def ask(port: int, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Sends one request over a connection of its own; returns status and content. Raises OSError, HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def in_flight(server: ServerProcess, model: str, pool: ThreadPoolExecutor) -> Future[tuple[int, bytes]]:
    """Sends a request; returns its future once the model has it."""
    sent = pool.submit(ask, server.http_port, f"/v2/models/{model}/infer", DELAYED_BODY)
    counter = f'nv_inference_request_success{{model="{model}",version="1"}}'
    until(lambda: server.metrics()[counter] == 1)  # it is counted when it is begun
    return sent


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:  # it was taken from the queue of a socket that closed at this moment
        return True
    return True


# With a rate limit, Python accepts the connections.
@pytest.mark.parametrize("running", [(), ("--max-requests-per-second", "1e6")], ids=["native", "python"], indirect=True)
def test_a_server_that_is_killed_is_started_again_and_answers_what_came_meanwhile(running: ServerProcess) -> None:
    expected = ask(running.http_port, INFER, BODY)
    assert expected[0] == 200
    old = child_of(running)
    old.suspend()
    until(lambda: old.status() == psutil.STATUS_STOPPED)
    waiting = [socket.create_connection(("127.0.0.1", running.http_port), timeout=TIMEOUT_S) for _ in range(20)]
    for connection in waiting:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    old.kill()
    for connection in waiting:
        with connection, connection.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 200 OK\r\n")
    until(lambda: ask(running.http_port, "/v2/health/ready")[0] == 200)
    assert ask(running.http_port, INFER, BODY) == expected
    assert child_of(running).pid != old.pid
    assert running.metrics()["emberline_restarts_total"] == 1
    assert f"the server process {old.pid} was ended by SIGKILL" in running.log.read_text()


@pytest.mark.skipif(not HAS_NATIVE_GRPC, reason="native code was built without nghttp2")
def test_calls_over_grpc_wait_likewise(running: ServerProcess) -> None:
    old = child_of(running)
    old.suspend()
    until(lambda: old.status() == psutil.STATUS_STOPPED)
    with grpc.insecure_channel(running.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ServerLive.future(service_pb2.ServerLiveRequest(), timeout=TIMEOUT_S)
        old.kill()
        assert call.result().live


def has_answered_more(answered: list[int], before: list[int]) -> bool:
    return all(now > then + 20 for now, then in zip(answered, before, strict=True))


def restarts(server: ServerProcess) -> int:
    return server.log.read_text().count("it is started again")


def test_callers_under_load_see_broken_connections_at_most_and_none_is_refused(running: ServerProcess) -> None:
    stop, refused, wrong, answered = threading.Event(), [], [], [0] * 4

    def call(number: int) -> None:
        while not stop.is_set():
            try:
                status, content = ask(running.http_port, INFER, BODY)
            except ConnectionRefusedError as error:
                refused.append(error)
            except (OSError, http.client.HTTPException):
                continue  # the process that had this connection is gone
            else:
                answered[number] += status == 200
                if status not in (200, 503):  # 503 until the model is loaded
                    wrong.append((status, content))

    clients = [threading.Thread(target=call, args=(number,)) for number in range(len(answered))]
    for thread in clients:
        thread.start()
    try:
        for _ in range(MAX_CRASHES - 1):
            before = list(answered)
            child_of(running).kill()
            until(partial(has_answered_more, answered, before))
    finally:
        stop.set()
        for thread in clients:
            thread.join(TIMEOUT_S)
    assert not refused
    assert not wrong
    assert running.metrics()["emberline_restarts_total"] == MAX_CRASHES - 1
    with grpc.insecure_channel(running.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        ready = service_pb2.ServerReadyRequest()
        assert stub.ServerReady(ready, timeout=TIMEOUT_S, wait_for_ready=True).ready


def test_a_crash_in_native_code_is_logged_with_the_threads_at_that_moment(running: ServerProcess) -> None:
    old = child_of(running)
    os.kill(old.pid, signal.SIGSEGV)
    until(lambda: restarts(running) == 1)
    log = running.log.read_text()
    assert "Fatal Python error: Segmentation fault" in log
    # "Current thread" unless the kernel gave the signal to a thread of native code.
    assert re.search(r"hread 0x[0-9a-f]+ .*\(most recent call first\)", log)
    assert f"the server process {old.pid} was ended by SIGSEGV after" in log
    until(lambda: ask(running.http_port, "/v2/health/ready")[0] == 200)


def test_a_server_that_crashes_again_and_again_is_given_up(running: ServerProcess) -> None:
    for count in range(1, MAX_CRASHES):
        old = child_of(running)
        old.kill()
        while restarts(running) < count:
            time.sleep(0.01)
        until(lambda: ask(running.http_port, "/v2/health/live")[0] == 200)
    child_of(running).kill()
    assert running.process.wait(TIMEOUT_S) == 128 + signal.SIGKILL
    assert f"it is not started again, because that was crash {MAX_CRASHES} within" in running.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("whom", ["the supervisor", "both"])
def test_a_signal_drains(running: ServerProcess, number: signal.Signals, whom: str) -> None:
    """Both get it where a terminal sends Ctrl-C, or systemd its SIGTERM."""
    child = child_of(running)
    with ThreadPoolExecutor() as pool:
        sent = in_flight(running, "slow", pool)
        for pid in (running.process.pid, child.pid) if whom == "both" else (running.process.pid,):
            os.kill(pid, number)
        until(lambda: not is_listening(running.http_port))
        assert not sent.done()
        status, content = sent.result()
    assert status == 200
    assert json.loads(content)["outputs"][0]["data"] == [4.0]
    assert running.process.wait(TIMEOUT_S) == 0
    assert not child.is_running()
    log = running.log.read_text()
    assert log.rstrip().endswith("stopped")
    assert "Traceback" not in log


def test_a_hang_up_that_no_terminal_has_sent_changes_nothing(repository: Path, tmp_path: Path) -> None:
    """Log rotation sends it to services."""
    with ServerProcess(repository, tmp_path / "store", tmp_path / "log", new_session=True) as server:
        child = child_of(server)
        for pid in (server.process.pid, child.pid):
            os.kill(pid, signal.SIGHUP)
        assert ask(server.http_port, INFER, BODY)[0] == 200
        assert child_of(server).pid == child.pid
        server.process.terminate()
        assert server.process.wait(TIMEOUT_S) == 0


def test_a_second_signal_ends_both_at_once(running: ServerProcess) -> None:
    child = child_of(running)
    with ThreadPoolExecutor() as pool:
        sent = in_flight(running, "endless", pool)
        running.process.terminate()
        until(lambda: not is_listening(running.http_port))
        running.process.terminate()
        assert running.process.wait(TIMEOUT_S) == 1
        assert isinstance(sent.exception(), OSError | http.client.HTTPException)
    until(lambda: not child.is_running())


def test_a_supervisor_that_is_killed_takes_the_server_along(running: ServerProcess) -> None:
    child = child_of(running)
    running.process.kill()
    running.process.wait()
    until(lambda: not child.is_running())
    with socket.create_server(("127.0.0.1", running.http_port)):
        pass


def test_the_supervisor_has_no_thread_that_a_fork_could_not_copy(steady: ServerProcess) -> None:
    # A fork copies the calling thread alone. OpenBLAS has one of its own, which it ends before each fork.
    assert len(os.listdir(f"/proc/{steady.process.pid}/task")) == 1


def test_what_is_wrong_with_a_command_ends_it_with_one_line(tmp_path: Path) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    command = [sys.executable, "-m", "emberline", "serve", "--model-repository", str(tmp_path / "nothing"), *ports]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("emberline: model repository")


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port", "--metrics-port"])
def test_a_port_that_another_server_has_is_named(steady: ServerProcess, repository: Path, option: str) -> None:
    ports = {"--http-port": steady.http_port, "--grpc-port": steady.grpc_port, "--metrics-port": steady.metrics_port}
    flags = [text for name, port in ports.items() for text in (name, str(port) if name == option else "0")]
    command = [sys.executable, "-m", "emberline", "serve", "--model-repository", str(repository), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"emberline: {option}: port {ports[option]} of 127.0.0.1 is in use")


def test_as_the_first_process_of_a_container_it_stops_and_leaves_no_zombies(repository: Path, tmp_path: Path) -> None:
    # The shell leaves it a process that it did not start, as `docker exec` may.
    serve = f"(sleep 0.2 &); exec {sys.executable} -m emberline serve --model-repository {repository}"
    space = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a PID namespace")
    log = tmp_path / "log"
    options = f"--store {tmp_path / 'store'} --http-port 0 --grpc-port 0 --metrics-port 0"
    with log.open("w") as output:
        outside = subprocess.Popen([*space, "sh", "-c", f"{serve} {options}"], stderr=output)
    try:
        until(lambda: "model versions ready" in log.read_text())
        (first,) = psutil.Process(outside.pid).children()
        (server,) = first.children()
        server.kill()
        until(lambda: log.read_text().count("model versions ready") == 2)
        (server,) = first.children()
        assert server.status() != psutil.STATUS_ZOMBIE
        first.terminate()
        assert outside.wait(TIMEOUT_S) == 0
    finally:
        outside.kill()
        outside.wait()
    assert log.read_text().rstrip().endswith("stopped")
