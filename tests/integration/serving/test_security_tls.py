"""TLS and clients' certificates on every port."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from click.testing import CliRunner

from emberline.cli import prove as prove_command
from emberline.cli import snapshots
from serving import Server, ServerConfig
from serving.security import tls as tls_module
from serving.security.tls import ServerTls, common_name
from storage.errors import ConfigError, Unavailable
from tests.integration.serving.certificates import Certificate, make_ca, make_certificate
from tests.integration.serving.conftest import Published
from tests.integration.serving.guarded import bearer, write_access
from tests.integration.serving.http_calls import until

TOKENS: list[dict[str, Any]] = [
    {"name": "web", "roles": ["predict"]},
    {"name": "board", "roles": ["read"]},
]
CLIENTS = [{"common_name": "job", "roles": ["predict", "read"]}]


@dataclass(frozen=True)
class World:
    """Certificates of the test: the authority, and what it and a stranger have signed."""

    folder: Path
    ca: Certificate
    server: Certificate
    job: Certificate
    stranger: Certificate


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("certificates")
    ca = make_ca(folder)
    other = make_ca(folder, "other-ca")
    return World(
        folder,
        ca,
        make_certificate(ca, folder, "localhost"),
        make_certificate(ca, folder, "job"),
        make_certificate(other, folder, "stranger"),
    )


@dataclass(frozen=True)
class Ports:
    """Ports on which a server listens."""

    http: int
    grpc: int
    metrics: int


def started(
    world: World,
    version_dir: Path,
    place: Path,
    start_server: Callable[..., Server],
    **files: Path,
) -> Iterator[Ports]:
    shutil.copytree(version_dir.parent, place / "models" / "ranker")
    files |= {"tls_certificate": world.server.certificate, "tls_key": world.server.key}
    with start_server(place / "models", place / "store", **files) as server:
        yield Ports(server.http_port, server.grpc_port, server.metrics_port)


@pytest.fixture(scope="module")
def encrypted(
    world: World,
    version_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
    start_server: Callable[..., Server],
) -> Iterator[Ports]:
    """Starts a server with TLS and tokens."""
    place = tmp_path_factory.mktemp("tls")
    access = write_access(place / "access.yaml", TOKENS)
    yield from started(world, version_dir, place, start_server, access_file=access)


@pytest.fixture(scope="module")
def mutual(
    world: World,
    version_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
    start_server: Callable[..., Server],
) -> Iterator[Ports]:
    """Starts a server that asks clients for a certificate."""
    place = tmp_path_factory.mktemp("mtls")
    access = write_access(place / "access.yaml", TOKENS, certificates=CLIENTS)
    yield from started(world, version_dir, place, start_server, access_file=access, tls_client_ca=world.ca.certificate)


def context(world: World, client: Certificate | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=world.ca.certificate)
    if client is not None:
        made.load_cert_chain(client.certificate, client.key)
    return made


def get(port: int, path: str, world: World, client: Certificate | None = None, token: str | None = None) -> int:
    """Returns the status of a request over TLS."""
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=bearer(token))
    try:
        with urllib.request.urlopen(request, timeout=30, context=context(world, client)) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def inputs(module: Any, rows: list[dict[str, Any]]) -> list[Any]:
    """Returns the plain inputs of the model, for one of Triton's clients."""
    made = []
    for name, dtype, kind, width in (
        ("user", "INT64", np.int64, 1),
        ("item", "INT64", np.int64, 1),
        ("price", "FP32", np.float32, 2),
    ):
        values = np.array([row[name] for row in rows], kind).reshape(len(rows), width)
        made.append(module.InferInput(name, list(values.shape), dtype))
        made[-1].set_data_from_numpy(values)
    return made


def test_tritons_clients_over_tls_with_a_token(encrypted: Ports, world: World, published: Published) -> None:
    rows = [{**row, "history": None, "tags": []} for row in published.random_rows(5, 3)]
    expected = published.score(rows)["score"]
    over_http = triton_http.InferenceServerClient(
        f"localhost:{encrypted.http}", ssl=True, ssl_context_factory=lambda: context(world)
    )
    over_grpc = triton_grpc.InferenceServerClient(
        f"localhost:{encrypted.grpc}", ssl=True, root_certificates=str(world.ca.certificate)
    )
    try:
        for client, module, headers in (
            (over_http, triton_http, bearer("web")),
            (over_grpc, triton_grpc, {"authorization": "Bearer web"}),
        ):
            assert client.is_server_live()
            answer = client.infer("ranker", inputs(module, rows), headers=headers)
            assert np.abs(answer.as_numpy("score") - expected).max() <= 1e-6
            with pytest.raises(Exception, match="token"):
                client.infer("ranker", inputs(module, rows))
    finally:
        over_http.close()
        over_grpc.close()


def test_a_prometheus_reads_over_tls_with_its_token(encrypted: Ports, world: World) -> None:
    found = [get(encrypted.metrics, "/metrics", world, token=token) for token in ("board", "web", None)]
    assert found == [200, 403, 401]


def test_large_bodies_go_through_whole(encrypted: Ports, world: World) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", encrypted.http, timeout=60, context=context(world))
    try:
        for size in (0, 1, 16_384, 16_385, 1 << 20, 24 << 20):
            connection.request("POST", "/v2/models/ranker/infer", b" " * size, bearer("web"))
            answer = connection.getresponse()
            assert (answer.status, b"error" in answer.read()) == (400, True)
    finally:
        connection.close()


def test_what_is_not_tls_gets_nothing(encrypted: Ports) -> None:
    for port in (encrypted.http, encrypted.metrics):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/v2/health/live")
            with pytest.raises((http.client.HTTPException, OSError)):
                connection.getresponse()
        finally:
            connection.close()


@pytest.mark.parametrize(
    ("version", "is_spoken"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_tls_is_not_spoken(encrypted: Ports, world: World, version: ssl.TLSVersion, is_spoken: bool) -> None:
    made = context(world)
    made.set_ciphers("DEFAULT:@SECLEVEL=0")
    made.minimum_version = made.maximum_version = version
    connection = http.client.HTTPSConnection("127.0.0.1", encrypted.http, timeout=30, context=made)
    try:
        if is_spoken:
            connection.connect()
        else:
            with pytest.raises(OSError):
                connection.connect()
    finally:
        connection.close()


def test_a_certificate_says_who_asks(mutual: Ports, world: World) -> None:
    assert get(mutual.http, "/v2/models/ranker", world, world.job) == 200
    assert get(mutual.http, "/v2/repository/models/ranker/snapshots", world, world.job) == 200
    assert get(mutual.http, "/v2", world, world.server) == 401  # Signed by the authority, but in no access file.
    assert get(mutual.http, "/v2", world, world.server, "web") == 200
    assert get(mutual.http, "/v2", world, world.job, "unknown") == 401
    assert get(mutual.metrics, "/metrics", world, world.job) == 200


@pytest.mark.parametrize("client", ["stranger", None])
def test_without_a_certificate_of_the_ca_nothing_is_answered(mutual: Ports, world: World, client: str | None) -> None:
    shown = world.stranger if client else None
    for port in (mutual.http, mutual.metrics):
        with pytest.raises((OSError, http.client.HTTPException)):
            get(port, "/v2/health/live", world, shown, "web")
    with pytest.raises(grpc.RpcError) as refused:
        over_grpc(mutual.grpc, world, shown, "ServerLive")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def over_grpc(port: int, world: World, client: Certificate | None, method: str, token: str | None = None) -> bytes:
    pair = (None, None) if client is None else (client.key.read_bytes(), client.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(world.ca.certificate.read_bytes(), *pair)
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        answer: bytes = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(
            b"", timeout=20, metadata=metadata
        )
    return answer


def test_a_certificate_says_who_asks_over_grpc(mutual: Ports, world: World) -> None:
    over_grpc(mutual.grpc, world, world.job, "ServerMetadata")
    over_grpc(mutual.grpc, world, world.job, "RepositoryIndex")
    over_grpc(mutual.grpc, world, world.server, "ServerMetadata", "web")
    for client, method, token, code in (
        (world.job, "RepositoryModelLoad", None, grpc.StatusCode.PERMISSION_DENIED),
        (world.job, "ServerMetadata", "unknown", grpc.StatusCode.UNAUTHENTICATED),
        (world.server, "ServerMetadata", None, grpc.StatusCode.UNAUTHENTICATED),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            over_grpc(mutual.grpc, world, client, method, token)
        assert refused.value.code() is code


def serial(port: int, world: World) -> str:
    """Returns the serial number of the certificate that a port presents."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context(world))
    try:
        connection.connect()
        shown = connection.sock.getpeercert()
        assert shown
        return str(shown["serialNumber"])
    finally:
        connection.close()


def test_a_new_certificate_is_shown_and_a_wrong_one_is_not(
    world: World, version_dir: Path, tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    files = Certificate(tmp_path / "now.pem", tmp_path / "now.key")
    shutil.copy(world.server.certificate, files.certificate)
    shutil.copy(world.server.key, files.key)
    fresh = make_certificate(world.ca, tmp_path, "localhost")
    with start_server(
        version_dir.parent.parent, tmp_path / "store", tls_certificate=files.certificate, tls_key=files.key
    ) as server:
        first = serial(server.http_port, world)
        over_grpc(server.grpc_port, world, None, "ServerLive")
        shutil.copy(fresh.certificate, files.certificate)  # Its key has not arrived yet.
        assert serial(server.http_port, world) == first
        shutil.copy(fresh.key, files.key)
        until(lambda: serial(server.http_port, world) != first)
        until(lambda: serial(server.metrics_port, world) != first)
        over_grpc(server.grpc_port, world, None, "ServerLive")
        files.certificate.unlink()
        assert serial(server.http_port, world) != first


def test_files_that_cannot_be_used_are_named(world: World, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM")
    cut = tmp_path / "cut.pem"
    cut.write_bytes(world.server.certificate.read_bytes()[:200])
    good = world.server
    for certificate, key, ca, field in (
        (tmp_path / "none", good.key, None, "tls_certificate"),
        (tmp_path, good.key, None, "tls_certificate"),
        (garbage, good.key, None, "tls_certificate"),
        (good.key, good.key, None, "tls_certificate"),
        (good.certificate, tmp_path / "none", None, "tls_key"),
        (good.certificate, garbage, None, "tls_key"),
        (good.certificate, world.job.key, None, "tls_key"),
        (good.certificate, None, None, "tls_certificate"),
        (good.certificate, good.key, tmp_path / "none", "tls_client_ca"),
        (good.certificate, good.key, garbage, "tls_client_ca"),
    ):
        with pytest.raises(ConfigError) as refused:
            ServerTls(certificate, key, ca)
        assert refused.value.field == field
        assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(ConfigError):
        ServerTls(cut, good.key)


def test_certificate_and_key_may_lie_in_one_file(world: World, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(world.server.certificate.read_bytes() + world.server.key.read_bytes())
    ServerTls(both)


def test_options_that_go_together_are_asked_for_together() -> None:
    for options in ({"tls_key": "k"}, {"tls_client_ca": "c"}, {"access_file": "a", "open_admin": True}):
        with pytest.raises(ValueError, match=r"goes with|one of the two"):
            ServerConfig(model_repository=Path(), **options)


def test_changes_are_looked_for_once_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    made = ServerTls(world.server.certificate, world.server.key)
    monkeypatch.setattr(tls_module, "_stamp", lambda path, field: looks.append(path) or (0, 0, 0))
    for _ in range(100):
        made.refresh()
    assert not looks


@pytest.mark.slow
def test_the_commands_of_the_documentation_make_certificates_that_serve(world: World, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "openssl" in block]
    assert len(blocks) == 2
    for block in blocks:
        subprocess.run(["bash", "-euc", block], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    made = ServerTls(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")
    client = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    client.load_cert_chain(tmp_path / "scorer.pem", tmp_path / "scorer.key")
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(here, there, server_hostname="models.example"),
        made.context.wrap_bio(there, here, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert common_name(ends[1]) == "scorer"


def told(url: str, *options: str) -> str:
    """Returns the error message of a command that gets no answer."""
    done = CliRunner().invoke(snapshots.command, ["ranker", "--url", url, *options])
    assert isinstance(done.exception, Unavailable), done.output
    message = str(done.exception)
    assert message.startswith(f"no answer from {url}/v2/repository/models/ranker/snapshots: ")
    return message.partition("/snapshots: ")[2]


def test_a_command_is_advised_to_use_https_or_which_certificate_is_missing(
    encrypted: Ports, mutual: Ports, world: World
) -> None:
    for ports in (encrypted, mutual):
        assert told(f"http://127.0.0.1:{ports.http}") == (
            "the server speaks TLS there; use https://, and --ca where you signed its certificate yourself"
        )
        untrusted = told(f"https://127.0.0.1:{ports.http}")
        assert untrusted.startswith("its certificate is not trusted (")
        assert untrusted.endswith("); give the certificate of who signed it with --ca")
    ca = ["--ca", str(world.ca.certificate)]
    assert told(f"https://127.0.0.1:{mutual.http}", *ca).endswith(
        "; if the server asks for a certificate of yours, give it with --cert and --key"
    )


@pytest.mark.slow
def test_a_command_is_advised_to_use_http_where_there_is_no_tls(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    shutil.copytree(version_dir.parent, tmp_path / "models" / "ranker")
    server = start_server(tmp_path / "models", tmp_path / "store")
    try:
        assert told(f"https://127.0.0.1:{server.http_port}") == "the server does not speak TLS there; use http://"
    finally:
        server.stop()
    assert told(f"http://127.0.0.1:{server.http_port}").endswith("is `emberline serve` running, and is --url right?")


def prove(world: World, version_dir: Path, address: str, *arguments: str) -> tuple[int, str]:
    """Returns the exit code and the output of `emberline prove` against the server, with the golden requests."""
    given = [address, str(version_dir.parent), "--model", "ranker", *arguments]
    found = CliRunner().invoke(prove_command.command, [*given, "--ca", str(world.ca.certificate)])
    return found.exit_code, found.output + str(found.exception or "")


@pytest.mark.parametrize("protocol", ["https", "grpcs"])
def test_a_proof_asks_a_server_with_tls_and_tokens(
    protocol: str, encrypted: Ports, mutual: Ports, world: World, version_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("web")
    (tmp_path / "wrong").write_text("webb")

    def address(ports: Ports) -> str:
        return f"{protocol}://127.0.0.1:{ports.http if protocol == 'https' else ports.grpc}"

    code, told = prove(world, version_dir, address(encrypted), "--token-file", str(tmp_path / "token"))
    assert code == 0, told
    assert "equal: " in told
    code, told = prove(world, version_dir, address(encrypted), "--token-file", str(tmp_path / "wrong"))
    assert code == 1
    assert re.search("answered (401|UNAUTHENTICATED): .*--token-file", told), told
    client = ["--cert", str(world.job.certificate), "--key", str(world.job.key)]
    code, told = prove(world, version_dir, address(mutual), *client)
    assert code == 0, told


@pytest.mark.slow
def test_a_load_test_sends_over_tls_with_a_token_or_a_certificate(
    encrypted: Ports, mutual: Ports, world: World, published: Published, tmp_path: Path
) -> None:
    rows = [{**row, "history": None, "tags": []} for row in published.random_rows(5, 3)]
    tensors = [
        {
            "name": name,
            "datatype": dtype,
            "shape": [len(rows), width],
            "data": np.array([row[name] for row in rows]).ravel().tolist(),
        }
        for name, dtype, width in (("user", "INT64", 1), ("item", "INT64", 1), ("price", "FP32", 2))
    ]
    (tmp_path / "requests.jsonl").write_text(json.dumps({"inputs": tensors}) + "\n")
    (tmp_path / "token").write_text("web")
    job = ["--cert", str(world.job.certificate), "--key", str(world.job.key)]
    for ports, who in ((encrypted, ["--token-file", str(tmp_path / "token")]), (mutual, job)):
        figures = tmp_path / "figures.json"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "emberline", "loadtest", "--model", "ranker", "--metrics", "none"),
                *("--url", f"https://127.0.0.1:{ports.http}", "--grpc", f"127.0.0.1:{ports.grpc}"),
                *("--requests", str(tmp_path / "requests.jsonl"), "--rate", "20", "--seconds", "2", "--items", "5"),
                *("--kinds", "http_binary,http_json,grpc", "--connections", "4", "--json", str(figures)),
                *("--ca", str(world.ca.certificate), *who),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for kind, run in json.loads(figures.read_text()).items():
            assert (run["failures"], run["unanswered"]) == (0, 0), kind
            assert run["requests"] >= 35, kind
        done = subprocess.run(
            [
                *(sys.executable, "-m", "emberline", "loadtest", "--model", "ranker", "--metrics", "none"),
                *("--url", f"https://127.0.0.1:{ports.http}", "--requests", str(tmp_path / "requests.jsonl"), *who),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "its certificate is not trusted" in done.stderr


def test_the_console_is_fed_over_tls(encrypted: Ports, world: World) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", encrypted.metrics, timeout=30, context=context(world))
    try:
        connection.request("GET", "/console/events?model=ranker", headers=bearer("board"))
        answer = connection.getresponse()
        assert answer.status == 200
        seen: set[str] = set()
        while not {"models", "model", "load"} <= seen:
            line = answer.readline().decode()
            assert line, f"the stream has ended after {seen}"
            if line.startswith("event: "):
                seen.add(line[7:].strip())
    finally:
        connection.close()
