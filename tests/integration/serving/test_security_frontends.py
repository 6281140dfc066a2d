"""Front ends in processes of their own demand the same of callers, and pass no token on."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from click.testing import CliRunner
from tritonclient.grpc import service_pb2

from emberline.cli import live, snapshots
from serving.security.own_token import own_token_path, read_own_token
from tests.integration.serving.front_processes import ask, until
from tests.integration.serving.guarded import Process, bearer, call, lines_of, serve, status, write_access

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="front ends in processes of their own need Linux"),
]

CONTROL = "/v2/repository/models/ranker"
LOAD = service_pb2.RepositoryModelLoadRequest(model_name="ranker")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, version_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("guarded-apart")
    shutil.copytree(version_dir.parent, folder / "models" / "ranker")
    write_access(folder / "access.yaml")
    return folder


@pytest.fixture(scope="module")
def apart(place: Path) -> Iterator[Process]:
    """Runs a server with two front ends, an access file and an audit log."""
    options = ["--access-file", str(place / "access.yaml"), "--audit-log", str(place / "audit")]
    with serve(place / "models", place, "--frontends", "2", *options) as process:
        yield process


def test_they_ask_who_is_there(apart: Process) -> None:
    port, address = apart.port, apart.grpc
    assert status(port, "GET", "/v2/health/ready") == 200
    for token, code in ((None, 401), ("unknown", 401), ("gone", 401), ("viewer", 403), ("caller", 400)):
        assert status(port, "POST", "/v2/models/ranker/infer", token, {}) == code
    assert status(port, "POST", "/v2/models/nope/infer", "narrow-caller", {}) == 403
    assert status(port, "GET", "/v2/repository/models/ranker/snapshots", "narrow-viewer") == 200
    assert status(port, "POST", "/v2/repository/index", "narrow-viewer") == 403
    assert [status(apart.metrics_port, "GET", "/metrics", token) for token in (None, "caller", "viewer")] == [
        401,
        403,
        200,
    ]
    assert call(address, "ServerLive")[0] is grpc.StatusCode.OK
    assert call(address, "ModelInfer", b"", "caller")[0] is grpc.StatusCode.NOT_FOUND
    assert call(address, "ModelInfer", b"")[0] is grpc.StatusCode.UNAUTHENTICATED
    assert call(address, "RepositoryIndex", b"", "narrow-viewer")[0] is grpc.StatusCode.PERMISSION_DENIED


def test_control_is_written_down_by_whichever_had_it(apart: Process, place: Path) -> None:
    before = len(lines_of(place / "audit"))
    for _ in range(6):
        assert status(apart.port, "POST", f"{CONTROL}/resume", "operator", {}) == 200
        assert call(apart.grpc, "RepositoryModelLoad", LOAD, "operator")[0] is grpc.StatusCode.OK
    assert status(apart.port, "POST", f"{CONTROL}/unload", "viewer", {}) == 403
    lines = lines_of(place / "audit")[before:]
    assert [line["call"] for line in lines] == ["resume", "load"] * 6 + ["unload"]
    assert {line["outcome"] for line in lines} == {200, "OK", "Forbidden"}


def test_the_own_token_is_the_machines_owners_and_in_no_command_line(apart: Process) -> None:
    own = read_own_token(apart.port)
    assert own_token_path(apart.port).stat().st_mode & 0o777 == 0o600
    assert status(apart.port, "POST", f"{CONTROL}/resume", own, {}) == 200
    assert status(apart.metrics_port, "GET", "/metrics", own) == 200
    processes = [psutil.Process(apart.process.pid), *psutil.Process(apart.process.pid).children(recursive=True)]
    assert len(processes) == 4
    for process in processes:
        assert own not in " ".join(process.cmdline())
        assert own not in "".join(process.environ().values())
    assert own not in apart.log.read_text()


def test_commands_of_the_owner_find_it(apart: Process) -> None:
    for found in (snapshots.command, live.pause, live.resume):
        done = CliRunner().invoke(found, ["ranker", "--url", f"http://127.0.0.1:{apart.port}"], catch_exceptions=False)
        assert "ranker" in done.output or "1.0" in done.output


def test_a_file_that_changes_is_read_by_all_and_a_bad_one_stops_nobody(apart: Process, place: Path) -> None:
    access = place / "access.yaml"
    good = access.read_bytes()
    try:
        write_access(access, [{"name": "fresh", "roles": ["read"]}])

        def is_known() -> bool:
            """Returns whether both front ends know the new token, whichever gets the connections."""
            return all(status(apart.port, "GET", "/v2", "fresh") == 200 for _ in range(20))

        until(is_known)
        access.write_text("tokens: [")
        fronts = {child.pid for child in psutil.Process(apart.process.pid).children()}
        apart.process.send_signal(signal.SIGHUP)  # New front ends cannot read it, and the old ones continue.
        until(lambda: "ended with status" in apart.log.read_text())
        assert fronts <= {child.pid for child in psutil.Process(apart.process.pid).children()}
        assert status(apart.port, "GET", "/v2", "fresh") == 200
    finally:
        access.write_bytes(good)
    until(lambda: "takes the place of front end 2" in apart.log.read_text(), 60)
    until(lambda: all(status(apart.port, "GET", "/v2", "caller") == 200 for _ in range(20)))


def test_rates_are_shared(version_dir: Path, tmp_path: Path) -> None:
    options = ["--frontends", "2", "--max-requests-per-second", "0.01"]
    with serve(version_dir.parent.parent, tmp_path, *options) as process:
        answers = [ask(process.port, "GET", "/v2") for _ in range(40)]
        found = [answer.status for answer in answers]
        assert found.count(200) in (1, 2)  # Each front end that got a request allows one at once.
        (refused, *_) = [answer for answer in answers if answer.status == 429]
        assert int(refused.headers["retry-after"]) > 1
        assert status(process.port, "GET", "/v2/health/live") == 200
        assert call(process.grpc, "ServerMetadata")[0] in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert ask(process.port, "GET", "/v2/health/ready", headers=bearer("x")).status == 200
