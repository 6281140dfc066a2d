"""Runs the command line of the images' health check against servers with and without TLS."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving import Server, local_health
from storage.errors import Conflict, Unavailable
from tests.integration.serving.certificates import make_ca, make_certificate
from tests.integration.serving.guarded import serve
from tests.integration.serving.http_calls import until

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")


def health_check(image: str, http_port: int) -> subprocess.CompletedProcess[str]:
    """Runs the image's HEALTHCHECK command for one server of the several that may run on this machine."""
    found = re.search(r"^HEALTHCHECK .*?CMD (\[.*\])$", (ROOT / image).read_text(), re.MULTILINE)
    assert found is not None
    program, *arguments = json.loads(found[1])
    assert program == "emberline"
    command = [sys.executable, "-m", "emberline", *arguments, "--http-port", str(http_port), "--timeout", "20"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("image", ["Dockerfile", "Dockerfile.gpu"])
@pytest.mark.parametrize("tls", ["plain", "tls", "client certificates"])
def test_the_images_check_says_what_the_server_is(
    image: str, tls: str, version_dir: Path, tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    files: dict[str, Path] = {}
    if tls != "plain":
        ca = make_ca(tmp_path)
        ours = make_certificate(ca, tmp_path, "localhost")
        files = {"tls_certificate": ours.certificate, "tls_key": ours.key}
        if tls == "client certificates":
            files["tls_client_ca"] = ca.certificate
    models = tmp_path / "models"
    models.mkdir()
    with running(start_server(models, tmp_path / "store", poll_s=0.1, **files)) as server:
        empty = health_check(image, server.http_port)
        assert (empty.returncode, empty.stdout, empty.stderr) == (1, "", "emberline: not ready\n")
        shutil.copytree(version_dir.parent, tmp_path / "ranker")
        (tmp_path / "ranker").rename(models / "ranker")
        until(server.repository.is_ready)
        good = health_check(image, server.http_port)
        assert (good.returncode, good.stdout, good.stderr) == (0, "ready\n", "")
    gone = health_check(image, server.http_port)
    assert gone.returncode == 1
    assert f"the server with the port {server.http_port} does not answer" in gone.stderr


@pytest.mark.slow
def test_it_is_the_process_that_serves_that_answers(version_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(version_dir.parent, tmp_path / "models" / "ranker")
    with serve(tmp_path / "models", tmp_path) as process:
        until(lambda: health_check("Dockerfile", process.port).returncode == 0)


def test_without_a_port_the_only_server_is_asked(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other servers of this machine are left out of the kernel's list, as they are in a container.
    sockets = tmp_path / "unix"
    monkeypatch.setattr(local_health, "_UNIX_SOCKETS", sockets)
    kernels = Path("/proc/net/unix")
    shutil.copytree(version_dir.parent, tmp_path / "models" / "ranker")
    sockets.write_text("")
    with pytest.raises(Unavailable, match="no server runs on this machine, or in this container"):
        local_health.ask_local_health(None, 20)
    with running(start_server(tmp_path / "models", tmp_path / "store")) as server:
        name = f"@emberline-health-{server.http_port}\n"
        lines = [line for line in kernels.read_text().splitlines(keepends=True) if line.endswith(name)]
        assert lines
        sockets.write_text("".join(lines))
        assert local_health.ask_local_health(None, 20)
        sockets.write_text("".join([*lines, *lines, lines[0].replace(name, "@emberline-health-9\n")]))
        with pytest.raises(Conflict, match=rf"the ports 9, {server.http_port}; give --http-port"):
            local_health.ask_local_health(None, 20)
        with running(start_server(tmp_path / "models", tmp_path / "store2")):
            assert local_health.ask_local_health(server.http_port, 20)
