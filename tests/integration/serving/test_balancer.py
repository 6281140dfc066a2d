"""Tests replicas behind the real HAProxy, with deploy/haproxy/haproxy.cfg and checks that are faster than its own."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.peers import PeerMissingError
from serving import Server, ServerConfig
from tests.integration.serving.planted import NAME, Planted, World
from tests.support.balancer import CONFIG, NAMES, Balancer, balancer
from tests.support.proxies import fetch, wait_until
from tests.support.server_process import free_ports

ROOT = Path(__file__).parents[3]
PATH = f"/v2/models/{NAME}/infer"
# Longer than HAProxy takes to notice, as the product's own 5 s are.
DRAIN_DELAY_S = 0.8
SERVING = health_pb2.HealthCheckResponse.SERVING
USERS = [f"user-{number}" for number in range(8)]


class Replica:
    """A server in this process, on ports that it keeps when it is started again."""

    def __init__(self, repository: Path, store: Path) -> None:
        self.ports = free_ports(3)
        http_port, grpc_port, metrics_port = self.ports
        self._config = ServerConfig(
            model_repository=repository,
            store=store,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            open_admin=True,
            drain_delay_s=DRAIN_DELAY_S,
            poll_s=0.2,
        )
        self.server = Server(self._config).start()

    def stop(self) -> None:
        """Stops the server at once."""
        self.server.stop()

    def restart(self) -> None:
        """Stops the server as a signal does, and starts it again."""
        assert self.server._loop is not None
        self.server._loop.call_soon_threadsafe(self.server.request_stop)
        assert self.server._thread is not None
        self.server._thread.join()
        self.server = Server(self._config).start()


@contextmanager
def replicas(folder: Path, repositories: list[Path]) -> Iterator[tuple[list[Replica], Balancer]]:
    """Runs a server for each repository, and HAProxy in front of them."""
    with ExitStack() as stack:
        running = []
        for number, repository in enumerate(repositories):
            replica = Replica(repository, folder / f"store{number}")
            stack.callback(replica.stop)
            running.append(replica)
        front = stack.enter_context(balancer(folder, [(each.ports[0], each.ports[1]) for each in running]))
        front.wait_for("UP", NAMES[: len(running)])
        yield running, front


def body() -> bytes:
    """Returns a request that native code answers."""
    inputs = [
        {"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [1]},
        {"name": "items", "datatype": "INT64", "shape": [2, 1], "data": [1, 2]},
    ]
    return json.dumps({"inputs": inputs}).encode()


def post(port: int, path: str, content: bytes, **headers: str) -> tuple[int, Any]:
    """Sends a request on a connection of its own; returns the status and the JSON of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path, content, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def inputs_of(module: Any) -> list[Any]:
    """Returns the same request's tensors for tritonclient."""
    found = []
    for name, values in (("user", [[1]]), ("items", [[1], [2]])):
        found.append(module.InferInput(name, [len(values), 1], "INT64"))
        found[-1].set_data_from_numpy(np.array(values, np.int64))
    return found


def ask_http(front: Balancer, stop: threading.Event) -> int:
    with triton_http.InferenceServerClient(f"127.0.0.1:{front.http_port}") as client:
        count = 0
        while not stop.is_set():
            client.infer(NAME, inputs_of(triton_http))
            count += 1
    return count


def ask_grpc(front: Balancer, stop: threading.Event) -> int:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{front.grpc_port}") as client:
        count = 0
        while not stop.is_set():
            client.infer(NAME, inputs_of(triton_grpc))
            count += 1
    return count


def ask_anew(front: Balancer, stop: threading.Event) -> int:
    count = 0
    while not stop.is_set():
        status, answer = post(front.http_port, PATH, body(), Emberline_Affinity=USERS[count % len(USERS)])
        assert status == 200, answer
        count += 1
    return count


@contextmanager
def load(front: Balancer) -> Iterator[list[str]]:
    """Runs clients of three kinds; yields what went wrong. Every client must have had answers in the end."""
    stop, wrong, counts = threading.Event(), [], []

    def run(ask: Callable[[Balancer, threading.Event], int]) -> None:
        try:
            counts.append(ask(front, stop))
        except Exception as error:
            wrong.append(f"{ask.__name__}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(ask,)) for ask in (ask_http, ask_grpc, ask_anew)]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong or min(counts) > 20, counts


@pytest.fixture(scope="module", autouse=True)
def haproxy() -> None:
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"HAProxy cannot be had: {error}")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Replica], Balancer]]:
    folder = tmp_path_factory.mktemp("three")
    World(folder / "repository").publish()
    with replicas(folder, [folder / "repository"] * 3) as running:
        yield running


@pytest.mark.slow
def test_a_rolling_restart_under_load_loses_no_request(three: tuple[list[Replica], Balancer]) -> None:
    running, front = three
    with load(front) as wrong:
        for name, replica in zip(NAMES, running, strict=True):
            replica.restart()
            front.wait_for("UP", [name])
    assert not wrong
    assert all(count > 0 for count in front.requests("grpc").values())


def test_a_replica_that_stops_answers_on_and_ends_connections(three: tuple[list[Replica], Balancer]) -> None:
    (replica, *_), _ = three
    http_port, grpc_port, _ = replica.ports
    states: list[grpc.ChannelConnectivity] = []
    kept = http.client.HTTPConnection("127.0.0.1", http_port, timeout=10)
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        channel.subscribe(states.append)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status == SERVING
        assert (ask_on(kept), ask_on(kept)) == ((200, None), (200, None))
        stopping = threading.Thread(target=replica.restart)
        stopping.start()
        wait_until(lambda: not replica.server.repository.probes.is_ready(), "the replica to say that it stops")
        assert ask_on(kept) == (200, "close")
        wait_until(lambda: grpc.ChannelConnectivity.IDLE in states[1:], "GOAWAY")
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
            client.infer(NAME, inputs_of(triton_grpc))
            assert not client.is_server_ready()
        stopping.join()
    kept.close()


def ask_on(connection: http.client.HTTPConnection) -> tuple[int, str | None]:
    """Sends a request; returns the status, and what the answer says of the connection."""
    connection.request("POST", PATH, body())
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.getheader("connection")


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_requests_of_a_user_go_to_one_replica(three: tuple[list[Replica], Balancer], transport: str) -> None:
    _, front = three
    seen: dict[str, str] = {}
    for user in USERS * 3:
        before = front.requests(f"{transport}_user")
        if transport == "http":
            assert post(front.http_port, PATH, body(), Emberline_Affinity=user)[0] == 200
        else:
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{front.grpc_port}") as client:
                client.infer(NAME, inputs_of(triton_grpc), headers={"emberline-affinity": user})
        after = front.requests(f"{transport}_user")
        (took,) = [name for name in NAMES if after[name] != before[name]]
        assert seen.setdefault(user, took) == took
    assert len(set(seen.values())) > 1
    assert "slowstart 10s" in CONFIG.read_text()


def test_the_header_of_affinity_leaves_requests_to_native_code(three: tuple[list[Replica], Balancer]) -> None:
    running, _ = three
    native = running[0].server.native
    assert native is not None
    before = native.native.answered
    assert post(running[0].ports[0], PATH, body(), Emberline_Affinity="user-1")[0] == 200
    assert native.native.answered == before + 1


def test_operators_calls_are_not_for_everybody_and_reads_are(three: tuple[list[Replica], Balancer]) -> None:
    _, front = three
    assert post(front.http_port, "/v2/systemsharedmemory/region/x/register", b"{}")[0] == 403
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{front.grpc_port}") as client:
        assert client.is_model_ready(NAME)
        assert client.get_model_repository_index().models


class Breaking:
    """Says that it is ready, and breaks off every other request when it has read it."""

    def __init__(self) -> None:
        self.broken: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            with end:
                head = end.recv(65_536)
                if head.startswith(b"GET /v2/health/ready"):
                    end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                elif head:
                    self.broken.append(head.partition(b" HTTP")[0])

    def close(self) -> None:
        self._listener.close()


def test_only_what_may_be_done_twice_is_sent_again(tmp_path: Path, three: tuple[list[Replica], Balancer]) -> None:
    (one, *_), _ = three
    breaking = Breaking()
    with balancer(tmp_path, [(breaking.port, breaking.port), (one.ports[0], one.ports[1])]) as front:
        front.wait_for("UP", ["one", "two"])
        assert {post(front.http_port, PATH, body())[0] for _ in range(12)} == {200}
        predictions = len(breaking.broken)
        assert predictions > 2
        users = {post(front.http_port, PATH, body(), Emberline_Affinity=user)[0] for user in USERS}
        assert users == {200}
        pause = f"/v2/repository/models/{NAME}/pause"
        assert post(front.http_port, pause, b"{}")[0] == 502
        assert breaking.broken[-1] == f"POST {pause}".encode()
        assert one.server.repository.snapshots(NAME)["mode"] == "following"
    breaking.close()


@pytest.mark.slow
def test_a_reader_never_goes_back_although_a_replica_is_behind(tmp_path: Path) -> None:
    world = World(tmp_path / "newer")
    world.configure(min_snapshot_timeout_ms="100")
    first = world.publish()
    shutil.copytree(tmp_path / "newer", tmp_path / "older")
    with replicas(tmp_path, [tmp_path / "newer", tmp_path / "older"]) as (_, front):
        second = world.change(first)
        newest = ask_until(front, second)
        # Without the header, the replica that is behind answers half of the requests.
        assert {snapshot_of(front) for _ in range(8)} == {first.id, second.id}
        assert {snapshot_of(front, Emberline_Min_Snapshot=newest) for _ in range(8)} == {second.id}
        one_user = {snapshot_of(front, Emberline_Min_Snapshot=newest, Emberline_Affinity=user) for user in USERS}
        assert one_user == {second.id}
        with documented_client(front) as client:
            for _ in range(8):
                answer = client.infer(NAME, inputs_of(triton_grpc), parameters={"min_snapshot": newest})
                assert answer.get_response().parameters["snapshot"].string_param == second.id


def documented_client(front: Balancer) -> triton_grpc.InferenceServerClient:
    """Returns the client of docs/balancing.md, which repeats calls."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "balancing.md").read_text(), re.DOTALL)
    assert code is not None
    there: dict[str, Any] = {}
    exec(code[1].replace("127.0.0.1:8001", f"127.0.0.1:{front.grpc_port}"), there)
    return there["client"]


def ask_until(front: Balancer, wanted: Planted) -> str:
    """Asks until some replica answers from a snapshot."""
    for _ in range(1000):
        if snapshot_of(front) == wanted.id:
            return wanted.id
    raise AssertionError(f"{wanted} is not served")


def snapshot_of(front: Balancer, **headers: str) -> str:
    """Returns the snapshot that answers a request."""
    status, answer = post(front.http_port, PATH, body(), **headers)
    assert status == 200, answer
    return str(answer["parameters"]["snapshot"])
