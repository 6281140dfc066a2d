"""A replica of deploy/kubernetes runs, confined as its manifest says: read-only, without root, as the first process."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli import tokens
from tests.integration.serving.certificates import make_ca, make_certificate
from tests.support.deployment import manifests
from tests.support.deployment.manifests import Object, one
from tests.support.deployment.pod import Container, skip_where_it_cannot_run
from tests.support.server_process import free_ports

pytestmark = pytest.mark.slow


class Replica:
    """The container of the StatefulSet over a bucket of this machine, with volumes that outlive it."""

    def __init__(self, bucket: str, folder: Path, *components: str) -> None:
        objects = manifests.with_components(folder / "overlay", *components)
        self.pod: Object = one(objects, "StatefulSet")["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self.ports = free_ports(3)
        self.variables = manifests.environment(self.container, objects)
        self.command = manifests.arguments(self.container, self.variables)
        self.volumes = {name: folder / name for name in ("ssd", "scratch")}
        # What differs from the manifest: a bucket that needs no network, nothing that others can reach, no long wait.
        self.command = [each.replace("--drain-delay=10", "--drain-delay=0.2") for each in self.command]
        self.url = f"{self.variables['REPLICA_SCHEME']}://127.0.0.1:{self.ports[0]}"
        self.variables["EMBERLINE_REPLICA_URL"] = self.url
        #: Who signed the server's certificate.
        self.authority: Path | None = None
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

    def mount_secret(self, volume: str, **files: Path) -> None:
        """Lays files as the kubelet lays those of a Secret: links to a folder that is exchanged as a whole."""
        folder = self._folder / volume
        (folder / "..first").mkdir(parents=True)
        (folder / "..data").symlink_to("..first")
        for name, path in files.items():
            key = name.replace("_", ".")
            kept = folder / "..first" / key
            shutil.copy(path, kept)
            os.chown(kept, 0, self.pod["securityContext"]["fsGroup"])
            kept.chmod(0o440)
            (folder / key).symlink_to(f"..data/{key}")
        self.volumes[volume] = folder

    def ask(self, path: str, *, port: int = 0, token: str = "") -> str:
        """Returns the answer to a GET. Raises OSError, HTTPError for a refusal."""
        scheme = self.url.partition(":")[0]
        request = urllib.request.Request(f"{scheme}://127.0.0.1:{self.ports[port]}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        context = ssl.create_default_context(cafile=self.authority) if scheme == "https" else None
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return str(answer.read().decode())

    def wait_until_ready(self, container: Container) -> None:
        probe = self.container["readinessProbe"]["httpGet"]
        assert probe.get("scheme", "HTTP").lower() == self.url.partition(":")[0]
        deadline = time.monotonic() + 60
        while True:
            assert container.is_running, container.log.read_text()[-3000:]
            assert time.monotonic() < deadline, container.log.read_text()[-3000:]
            try:
                self.ask(probe["path"])
                return
            except OSError:
                time.sleep(0.05)

    def metric(self, name: str) -> float:
        lines = self.ask("/metrics", port=2).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that the user of a container can see."""
    skip_where_it_cannot_run()
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    return tmp_path


@pytest.fixture
def replica(bucket: str, place: Path) -> Replica:
    return Replica(bucket, place)


def test_a_replica_serves_drains_and_finds_its_volume_again(replica: Replica) -> None:
    with replica.start() as container:
        replica.wait_until_ready(container)
        assert replica.metric("emberline_ready") == 1
        first = replica.metric("emberline_object_store_read_bytes_total")
        assert {path.name for path in replica.volumes["ssd"].iterdir()} == {"store", "mirror"}
        (token,) = (replica.volumes["scratch"] / "cache" / "emberline" / "tokens").iterdir()
        assert (token.stat().st_uid, token.stat().st_mode & 0o777) == (10001, 0o600)
        # As by `kubectl exec`.
        with replica.start(["emberline", "pause", "tiny", "--url", replica.url]) as operator:
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


def test_with_tls_and_tokens_probes_need_no_token_and_all_others_do(bucket: str, place: Path) -> None:
    replica = Replica(bucket, place, "access-tls")
    authority = make_ca(place)
    certificate = make_certificate(authority, place, "emberline")
    replica.authority = authority.certificate
    replica.mount_secret("tls", tls_crt=certificate.certificate, tls_key=certificate.key)
    made = CliRunner().invoke(
        tokens.command, ["new", "--name", "prometheus", "--role", "read", "--access", str(place / "access.yaml")]
    )
    replica.mount_secret("access", access_yaml=place / "access.yaml")
    with replica.start() as container:
        replica.wait_until_ready(container)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            replica.ask("/metrics", port=2)
        assert "emberline_ready 1" in replica.ask("/metrics", port=2, token=made.stdout.split()[0])
        assert container.terminate() == 0, container.log.read_text()[-3000:]
    assert "WARNING" not in container.log.read_text()
