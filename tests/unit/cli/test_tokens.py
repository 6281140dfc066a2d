"""`emberline token`, and how commands find the token that they show."""

from __future__ import annotations

import hashlib
import http.server
import json
import logging
import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from emberline.cli import frame, live, server_call
from emberline.cli.frame import main
from serving.security.own_token import own_token, own_token_path
from storage.errors import ConfigError, Conflict, InvalidInput, NotFound

ROOT = Path(__file__).parents[3]


def token(*arguments: str) -> Result:
    return CliRunner().invoke(frame.command, ["token", *arguments], catch_exceptions=False)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_token_is_printed_once_and_its_digest_kept(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    made = token("new", "--name", "web", "--role", "predict", "--model", "ranker*", "--access", str(access))
    text = made.stdout.strip()
    assert re.fullmatch(r"ember_[\w-]{43}", text)
    assert access.stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(access.read_text()) == {
        "tokens": [{"name": "web", "sha256": digest(text), "roles": ["predict"], "models": ["ranker*"]}]
    }
    assert text not in access.read_text()
    options = ["--role", "admin", "--role", "predict", "--expires", "2027-01-31", "--requests-per-second", "5"]
    other = token("new", "--name", "ops", *options, "--access", str(access)).stdout.strip()
    entry = yaml.safe_load(access.read_text())["tokens"][1]
    assert (entry["sha256"], entry["roles"], str(entry["expires"])) == (
        digest(other),
        ["admin", "predict"],
        "2027-01-31",
    )
    shown = token("list", "--access", str(access)).stdout
    assert all(word in shown for word in ("web", "ranker*", "ops", "admin, predict", "2027-01-31", "5"))
    assert text not in shown
    assert token("remove", "web", "--access", str(access)).stdout == "web: removed\n"
    assert [entry["name"] for entry in yaml.safe_load(access.read_text())["tokens"]] == ["ops"]


def test_what_else_the_file_says_stays(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text("# ours\n# and theirs\n\nanonymous:\n  roles: [read]\n")
    access.chmod(0o640)
    token("new", "--name", "web", "--role", "predict", "--access", str(access))
    assert access.read_text().startswith("# ours\n# and theirs\n")
    assert yaml.safe_load(access.read_text())["anonymous"] == {"roles": ["read"]}
    assert access.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["access.yaml"]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.symlink_to(tmp_path / "real.yaml")
    token("new", "--name", "web", "--role", "predict", "--access", str(access))
    assert access.is_symlink()
    assert (tmp_path / "real.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (["new", "--name", "web", "--role", "read"], Conflict, "'web' already"),
        (["new", "--name", "a b", "--role", "read"], ConfigError, r"tokens\.1\.name"),
        (["new", "--name", "b", "--role", "read", "--requests-per-second", "0"], ConfigError, "requests_per_second"),
        (["new", "--name", "b", "--role", "read", "--model", ""], ConfigError, r"tokens\.1\.models"),
        (["remove", "wbe"], NotFound, "no token of 'wbe'; it has web"),
    ],
)
def test_mistakes_change_nothing(tmp_path: Path, arguments: list[str], kind: type[Exception], text: str) -> None:
    access = tmp_path / "access.yaml"
    token("new", "--name", "web", "--role", "predict", "--access", str(access))
    before = access.read_bytes()
    with pytest.raises(kind, match=text):
        token(*arguments, "--access", str(access))
    assert access.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["access.yaml"]


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("tokens: 7")
    for arguments in (
        ["token", "list", "--access", str(tmp_path / "bad.yaml")],
        ["token", "list", "--access", str(tmp_path / "none.yaml")],
        ["token", "new", "--name", "x", "--role", "read", "--access", str(tmp_path / "no" / "folder.yaml")],
        ["rollback", "m", "--token-file", str(tmp_path / "none")],
        ["rollback", "m", "--token-file", str(tmp_path / "bad.yaml")],
        ["rollback", "m", "--url", "https://localhost:1", "--ca", str(tmp_path / "none")],
        ["rollback", "m", "--url", "https://localhost:1", "--ca", str(tmp_path / "bad.yaml")],
        ["rollback", "m", "--url", "https://localhost:1", "--cert", str(tmp_path / "bad.yaml")],
        ["rollback", "m", "--key", str(tmp_path / "bad.yaml")],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 1
        assert len(capsys.readouterr().err.splitlines()) == 1, arguments


class Listener(http.server.BaseHTTPRequestHandler):
    """Records the tokens that it was sent; /moved redirects elsewhere."""

    def do_POST(self) -> None:
        self.server.shown.append(self.headers.get("Authorization"))  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers["Content-Length"]))
        status, content = 200, b'{"mode": "paused"}'
        if "moved" in self.path:
            status, content = 302, b""
        self.send_response(status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class Served:
    """Port of a running server, and the Authorization header of every request."""

    def __init__(self, port: int, shown: list[str | None]) -> None:
        self.port = port
        self.shown = shown

    def call(self, *arguments: str, host: str = "127.0.0.1", model: str = "m") -> str | None:
        @click.command()
        @server_call.URL
        def asked(url: str) -> None:
            server_call.call_server(url, f"/{model}", 10, {})

        found = ["--url", f"http://{host}:{self.port}", *arguments]
        CliRunner().invoke(asked, found, catch_exceptions=False)
        return self.shown[-1]


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EMBERLINE_TOKEN", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        server.shown = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Served(server.server_address[1], server.shown)  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def test_a_token_comes_from_a_file_the_environment_or_the_server_of_this_machine(
    listener: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listener.call() is None
    with own_token(listener.port):
        own = own_token_path(listener.port).read_text().strip()
        assert listener.call() == f"Bearer {own}"
        assert listener.call(host="localhost") == f"Bearer {own}"
        monkeypatch.setenv("EMBERLINE_TOKEN", "of-the-environment")
        assert listener.call() == "Bearer of-the-environment"
        (tmp_path / "token").write_text("of-the-file\n")
        assert listener.call("--token-file", str(tmp_path / "token")) == "Bearer of-the-file"
    monkeypatch.delenv("EMBERLINE_TOKEN")
    assert listener.call() is None


def test_a_token_is_shown_to_nobody_else(listener: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERLINE_TOKEN", "secret")
    with pytest.raises(InvalidInput, match="302"):
        listener.call(model="moved")
    assert listener.shown == ["Bearer secret"]
    # A proxy of the environment is nearer to nobody than this machine is to itself.
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    assert listener.call() == "Bearer secret"


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe", b"a\nb", b"x" * 600])
def test_what_is_no_token_is_not_repeated(listener: Served, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="expected a token") as refused:
        listener.call("--token-file", str(path))
    assert not content or content.decode("latin-1") not in str(refused.value)
    assert listener.shown == []


def test_every_command_that_calls_a_server_takes_a_token() -> None:
    context = click.Context(frame.command)
    asking = []
    for name in frame.COMMANDS:
        found = frame.command.get_command(context, name)
        assert found is not None
        options = {parameter.name for parameter in found.params}
        if "url" in options:
            asking.append(name)
            assert {"token_file", "ca", "cert", "key"} <= options, name
    assert {"predict", "snapshots", "rollback", "load", "plan", "budget", "sessions"} <= set(asking)
    assert live.rollback.callback is not None


def test_options_that_do_not_go_together_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    serve = ["serve", "--model-repository", str(tmp_path)]
    handlers = list(logging.getLogger().handlers)
    for options, text in (
        (["--access-file", "a.yaml", "--open-admin"], "--open-admin: "),
        (["--tls-key", "k.pem"], "--tls-key: "),
        (["--tls-client-ca", "k.pem"], "--tls-client-ca: "),
        (["--max-connections", "0"], "--max-connections: "),
        (["--max-requests-per-second", "-1"], "--max-requests-per-second: "),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*serve, *options])
        assert ended.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert text in line
    # A log that was set up would write to a stream that the caller has closed by then.
    assert logging.getLogger().handlers == handlers


def test_what_the_documentation_says_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from serving.security.access_file import parse_access_file

    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token.txt").write_text("t")
    lines = re.findall(r"^emberline (.*)$", page, re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        name, *arguments = shlex.split(line)
        context = click.Context(frame.command)
        found = frame.command.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            found = found.get_command(context, arguments.pop(0))
            assert found is not None
        found.make_context(name, arguments, parent=context)
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    access = next(block for block in blocks if block.startswith("tokens:")).replace("1f0c...", "1f0c" * 16)
    assert len(parse_access_file(access, Path("access.yaml")).tokens) == 1
    (line,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert set(json.loads(line)) >= {"time", "principal", "call", "outcome", "ms"}
