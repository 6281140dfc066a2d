"""A replica of deploy/kubernetes runs, confined as its manifest says: read-only, without root, as the first process."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.deployment import manifests
from tests.support.deployment.manifests import KUBERNETES, Object, one
from tests.support.deployment.pod import Container, skip_where_it_cannot_run
from tests.support.server_process import free_ports

pytestmark = pytest.mark.slow


class Replica:
    """The container of the StatefulSet over a bucket of this machine, with volumes that outlive it."""

    def __init__(self, bucket: str, folder: Path) -> None:
        objects = manifests.rendered(KUBERNETES / "base")
        self.pod: Object = one(objects, "StatefulSet")["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self.ports = free_ports(3)
        self.variables = {**manifests.environment(self.container, objects), "POD_IP": "127.0.0.1"}
        self.command = manifests.arguments(self.container, self.variables)
        self.volumes = {name: folder / name for name in ("ssd", "scratch")}
        # What differs from the manifest: a bucket that needs no network, nothing that others can reach, no long wait.
        self.command = [
            each.replace("--drain-delay=10", "--drain-delay=1").replace(":8000", f":{self.ports[0]}")
            for each in self.command
        ]
        self.container["volumeMounts"].append({"name": "bucket", "mountPath": "/bucket"})
        # Members of a fleet write into the bucket.
        self.volumes["bucket"] = shutil.copytree(bucket.removeprefix("file://"), folder / "bucket")
        for path in self.volumes["bucket"].rglob("*"):
            os.chown(path, self.pod["securityContext"]["runAsUser"], -1)
        self.variables |= {"EMBERLINE_MODEL_REPOSITORY": "file:///bucket", "EMBERLINE_HOST": "127.0.0.1"}
        self._folder = folder
        self._runs = 0

    def start(self, command: list[str] | None = None) -> Container:
        ports = zip(("--http-port", "--grpc-port", "--metrics-port"), map(str, self.ports), strict=True)
        self._runs += 1
        log = self._folder / f"run-{self._runs}.log"
        line = command or [*self.command, *(each for pair in ports for each in pair)]
        return Container(self.pod, self.container, self.volumes, line, self.variables, log)

    def wait_until_ready(self, container: Container) -> None:
        path = self.container["readinessProbe"]["httpGet"]["path"]
        deadline = time.monotonic() + 60
        while True:
            assert container.is_running, container.log.read_text()[-3000:]
            assert time.monotonic() < deadline, container.log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.ports[0]}{path}", timeout=5).close()
                return
            except OSError:
                time.sleep(0.05)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[2]}/metrics") as page:
            lines = page.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.fixture
def replica(bucket: str, tmp_path: Path) -> Replica:
    skip_where_it_cannot_run()
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    return Replica(bucket, tmp_path)


def test_a_replica_serves_drains_and_finds_its_volume_again(replica: Replica) -> None:
    with replica.start() as container:
        replica.wait_until_ready(container)
        assert replica.metric("emberline_ready") == 1
        first = replica.metric("emberline_object_store_read_bytes_total")
        assert {path.name for path in replica.volumes["ssd"].iterdir()} == {"store", "mirror"}
        (token,) = (replica.volumes["scratch"] / "cache" / "emberline" / "tokens").iterdir()
        assert (token.stat().st_uid, token.stat().st_mode & 0o777) == (10001, 0o600)
        # As by `kubectl exec`.
        for order in ("pause", "resume"):
            url = f"http://127.0.0.1:{replica.ports[0]}"
            with replica.start(["emberline", order, "tiny", "--url", url]) as operator:
                assert operator.wait() == 0, operator.log.read_text()[-3000:]
        assert container.terminate() == 0, container.log.read_text()[-3000:]
    assert not token.exists()
    with replica.start() as container:
        replica.wait_until_ready(container)
        assert replica.metric("emberline_object_store_read_bytes_total") < first / 2
        assert container.terminate() == 0


def test_rows_are_read_by_threads_where_io_uring_is_denied(replica: Replica) -> None:
    # For CuPy, which this checkout may have and the image has not.
    replica.variables["CUPY_CACHE_DIR"] = "/tmp"
    with replica.start(["emberline", "doctor", "--json"]) as container:
        assert container.wait() == 0, container.log.read_text()[-3000:]
    found = container.log.read_text()
    said = json.loads(found[found.index("{") :])
    assert said["cold reads"]["value"] == "a pool of threads: the kernel refuses io_uring"
