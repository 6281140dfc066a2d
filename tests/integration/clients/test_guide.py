"""Tests the client guide: its commands run unchanged against a real server, and give the known scores."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import re
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Server
from serving.scoring import Scorer, find_as_of
from storage.features import column_from_rows
from tests.integration.clients.conftest import server_config
from tests.integration.clients.guide import (
    EXAMPLES,
    GUIDE,
    ROOT,
    assert_tiny_scores,
    blocks,
    commands,
    need,
    numbers,
    run,
    tiny_scores,
)

# Blocks that need a compiler, or the folder of one, are tested in another file.
COMMANDS = [command for command in commands() if not re.search(r"proto|go run|\.java", command)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


def example(name: str) -> Any:
    """Imports an example as a module."""
    described = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def film_scores(films: Path, tmp_path: Path, rows: list[dict[str, Any]]) -> np.ndarray:
    """Scores rows from files alone; keys that a row lacks are null."""
    with Scorer(find_as_of(films, "latest"), tmp_path) as scorer:
        columns = {
            entry.name: column_from_rows(entry, [row.get(entry.name) for row in rows]) for entry in scorer.spec.inputs
        }
        return scorer.score(columns, len(rows))[0][:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if "tiny" in c or "examples" in c])
def test_a_command_of_the_guide_runs_and_gives_known_scores(command: str, folder: Path, server: Server) -> None:
    if "curl" in command or "score.sh" in command:
        need("curl")
    done = run(command, folder, server)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    if "lists_and_nulls" in command or "one_user" in command:
        assert numbers(said).size  # the next two tests compare them
    elif "figures" in command:
        assert re.search(r"requests [1-9]\d*, failed 0\nrows [1-9]", said)
        assert 'emberline_requests_success_total{arm="main",model="tiny"' in said
    elif "/stats" in command:
        assert json.loads(said)["model_stats"][0]["name"] == "tiny"
    elif command.endswith("/v2/models/tiny"):
        assert [entry["name"] for entry in json.loads(said)["outputs"]] == ["score"]
    else:
        assert_tiny_scores(said, rows=1 if '"words": [1, 2, 99], "dense": [0.5, 0.25]}]}' in command else 2)


def test_every_command_was_looked_at() -> None:
    assert len(COMMANDS) > 15
    assert all("tiny" in command or "examples" in command for command in COMMANDS)


def test_lists_and_nulls_mean_the_same_in_all_three_forms(
    folder: Path, server: Server, films: Path, tmp_path: Path
) -> None:
    done = run("python docs/examples/clients/lists_and_nulls.py --url 127.0.0.1:8000", folder, server)
    expected = film_scores(films, tmp_path, example("lists_and_nulls").ROWS)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["v1", "json", "bytes"]
    for line in lines:
        assert np.abs(numbers(line) - expected).max() <= 1e-4
    assert np.ptp(expected) > 1e-3


def test_items_of_one_user_are_scored_as_rows_of_their_own(
    folder: Path, server: Server, films: Path, tmp_path: Path
) -> None:
    done = run("python docs/examples/clients/one_user_many_items.py --url 127.0.0.1:8001", folder, server)
    listed = example("one_user_many_items").FILMS
    user = {"gender": "F", "age": 24, "history": [181, 172, 64]}
    rows = [{**user, "item": item, "release_year": year, "genres": genres} for item, (year, genres) in listed.items()]
    expected = dict(zip(listed, film_scores(films, tmp_path, rows), strict=True))
    given = {int(line.split()[0]): float(line.split()[1]) for line in done.stdout.splitlines()}
    assert list(given.values()) == sorted(given.values(), reverse=True)
    assert given == pytest.approx(expected, abs=1e-4)


def test_every_python_block_stands_in_an_example() -> None:
    texts = [textwrap.dedent(path.read_text(encoding="utf-8")) for path in EXAMPLES.glob("*.py")]
    for block in blocks("python"):
        assert any(block in text for text in texts), block


def test_every_example_is_named_and_every_block_is_of_a_known_kind() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    missing = [str(path) for path in files if str(path.relative_to(EXAMPLES)) not in GUIDE]
    assert not missing
    assert set(re.findall(r"^```(\w*)$", GUIDE, re.MULTILINE)) == {"", "sh", "python", "text"}


def test_every_error_of_the_server_stands_in_the_table() -> None:
    from serving import errors

    table = GUIDE[GUIDE.index("## Errors") : GUIDE.index("## Connections")]
    for _, status, code in errors._CODES:
        assert re.search(rf"^\| {status} \| {code.name} \|", table, re.MULTILINE), (status, code)


class _Flaky(http.server.BaseHTTPRequestHandler):
    """Refuses the first request, hangs up on the second, and answers the others."""

    tries = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).tries += 1
        if self.tries == 2:
            return
        body = b'{"predictions": [0.25]}' if self.tries > 2 else b'{"error": "full"}'
        self.send_response(200 if self.tries > 2 else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_retries_go_on_until_there_is_an_answer(folder: Path, server: Server) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Flaky) as flaky:
        thread = threading.Thread(target=flaky.serve_forever)
        thread.start()
        try:
            done = run(f"python docs/examples/clients/retries.py --url 127.0.0.1:{flaky.server_port}", folder, server)
        finally:
            flaky.shutdown()
            thread.join()
    assert done.stdout == "0.25\n", done.stderr
    assert done.stderr.count("once more") == 2


def test_retries_do_not_repeat_what_is_wrong(folder: Path, server: Server) -> None:
    done = run("python docs/examples/clients/retries.py --url 127.0.0.1:8000 --model nope", folder, server)
    assert done.returncode == 1
    assert done.stderr.startswith("404: ")


def test_retries_see_a_refusal_that_comes_before_a_long_body_was_read(server: Server) -> None:
    rows = {"instances": [{"words": [1, 2, 99], "dense": [0.5, 0.25]}] * 400_000}
    with pytest.raises(SystemExit, match="404: "):
        example("retries").ask(f"127.0.0.1:{server.http_port}", "/v1/models/nope:predict", rows, 20.0)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """Starts a server with tokens and TLS, and a folder with its `token` and `ca.pem`."""
    need("openssl")
    folder = tmp_path_factory.mktemp("guarded")
    certificate, key = folder / "ca.pem", folder / "key.pem"
    made = f"-keyout {key} -out {certificate} -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes {made}"
    subprocess.run(command.split(), check=True, capture_output=True)
    (folder / "token").write_text("a-secret-of-ours\n")
    digest = hashlib.sha256(b"a-secret-of-ours").hexdigest()
    access = folder / "access.yaml"
    access.write_text(f"tokens:\n  - {{name: guide, sha256: {digest}, roles: [predict, read]}}\n")
    access.chmod(0o600)
    key.chmod(0o600)
    options = {"access_file": access, "tls_certificate": certificate, "tls_key": key}
    with Server(server_config(ROOT / "model_repo", folder / "store", **options)) as running:
        yield running, folder


def with_token(guarded: tuple[Server, Path], token_file: str) -> subprocess.CompletedProcess[str]:
    running, folder = guarded
    ports = f"--url localhost:{running.http_port} --grpc-url localhost:{running.grpc_port}"
    line = f"python docs/examples/clients/with_token.py {ports} --token-file {token_file} --ca ca.pem"
    return run(line, folder, running)


def test_a_token_over_tls_is_let_in(guarded: tuple[Server, Path]) -> None:
    done = with_token(guarded, "token")
    assert done.returncode == 0, done.stderr
    for kind, line in zip(("http", "grpc"), done.stdout.splitlines(), strict=True):
        assert line.startswith(kind)
        assert np.abs(numbers(line) - tiny_scores()).max() <= 1e-6


def test_another_token_is_401(guarded: tuple[Server, Path]) -> None:
    (guarded[1] / "wrong").write_text("not-ours")
    done = with_token(guarded, "wrong")
    assert done.returncode == 1
    assert "[401]" in done.stderr
