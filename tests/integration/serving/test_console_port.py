"""The console without a browser: the page and its files, the stream of events, calls, roles, and bounds."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Server
from serving.console.assets import FOLDER
from serving.console.feed import MAX_PAGES
from tests.integration.serving.guarded import bearer, lines_of, write_access
from tests.integration.serving.http_calls import ask, until
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME

RANKER = "/v2/repository/models/ranker/"
# What a browser may have to load before the console works, as it is stored and as it is sent.
MOST_BYTES, MOST_SENT_BYTES = 200_000, 70_000


class Events:
    """A stream of events, read as a page reads it."""

    def __init__(self, port: int, model: str = "", token: str | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.connection.request("GET", f"/console/events?model={model}", headers=bearer(token))
        self.answer = self.connection.getresponse()

    def next(self) -> tuple[str, Any]:
        """Returns the next event; ("", None) when the stream has ended."""
        lines = [self.answer.readline().decode() for _ in range(3)]
        if not lines[0]:
            return "", None
        assert lines[0].startswith("event: "), lines
        assert lines[1].startswith("data: "), lines
        assert lines[2] == "\n", lines
        return lines[0][7:-1], json.loads(lines[1][6:])

    def until(self, wanted: str, holds: Callable[[Any], object] = lambda data: True) -> Any:
        """Returns the first event of this name for which `holds` is true."""
        for _ in range(200):
            name, data = self.next()
            assert name, "the stream has ended"
            if name == wanted and holds(data):
                return data
        raise AssertionError(f"no event {wanted} came")

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def watching(port: int, model: str = "", token: str | None = None) -> contextlib.closing[Events]:
    return contextlib.closing(Events(port, model, token))


@pytest.fixture(scope="module")
def port(server: Server) -> int:
    return server.metrics_port


@pytest.fixture
def guarded(repository: Path, tmp_path: Path, start_server: Callable[..., Server]) -> Iterator[tuple[Server, Path]]:
    access = write_access(tmp_path / "access.yaml")
    running = start_server(repository, tmp_path / "store", access_file=access)
    yield running, access
    running.stop()


def test_the_page_and_its_files_are_small_and_strict(port: int) -> None:
    page = ask(port, "GET", "/console")
    assert page.status == 200
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    text = page.content.decode()
    # Nothing is written into the page itself, which the policy would not run, and nothing comes from elsewhere.
    assert not re.search(r"<style|\son\w+=|\sstyle=|https?:", text)
    assert all('src="' in tag for tag in re.findall("<script[^>]*>", text))
    digest = re.search(r"console/([0-9a-f]{16})/app.js", text)
    assert digest is not None
    whole, sent = len(page.content), 0
    names = [each.relative_to(FOLDER).as_posix() for each in FOLDER.rglob("*") if each.is_file()]
    served = [name for name in names if name != "console.html" and not name.endswith((".LICENSE", ".md"))]
    for name in served:
        path = f"/console/{digest[1]}/{name}"
        plain = ask(port, "GET", path)
        packed = ask(port, "GET", path, headers={"Accept-Encoding": "gzip"})
        assert plain.content == gzip.decompress(packed.content) == (FOLDER / name).read_bytes()
        assert "immutable" in plain.headers["cache-control"]
        assert plain.headers["x-content-type-options"] == "nosniff"
        whole, sent = whole + len(plain.content), sent + len(packed.content)
    assert len(served) > 10
    assert whole < MOST_BYTES, whole
    assert sent < MOST_SENT_BYTES, sent


def test_libraries_are_what_the_list_says() -> None:
    text = (FOLDER / "vendor" / "README.md").read_text()
    listed = dict(re.findall(r"^\| `([^`]+)` \|.*`([0-9a-f]{64})` \|$", text, re.M))
    there = {path.name: path for path in (FOLDER / "vendor").iterdir() if path.suffix in (".js", ".mjs", ".css")}
    assert listed == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()}
    packages = {name.split(".")[0] for name in there}
    assert packages == {path.name.split(".")[0] for path in (FOLDER / "vendor").glob("*.LICENSE")}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/console/", 308),
        ("HEAD", "/console", 200),
        ("POST", "/console", 405),
        ("GET", "/console/0123456789abcdef/app.js", 404),
        ("GET", "/console/../../etc/passwd", 404),
        ("GET", "/consoles", 404),
        ("GET", "/v2/models/ranker", 404),
        ("GET", "/console/v2/models/ranker", 200),
        ("GET", "/console/v2/systemsharedmemory/status", 404),
        ("GET", "/console/metrics", 404),
    ],
)
def test_what_the_port_answers(port: int, method: str, path: str, status: int) -> None:
    assert ask(port, method, path).status == status


def test_the_http_port_has_no_console(server: Server) -> None:
    assert ask(server.http_port, "GET", "/console").status == 404
    assert ask(server.http_port, "GET", "/console/events").status == 404


def test_events_say_what_is_served(port: int) -> None:
    with watching(port, "ranker") as events:
        assert events.answer.getheader("content-type") == "text/event-stream"
        assert events.answer.getheader("content-length") is None
        hello = events.until("hello")
        assert hello["you"]["models"] is None
        assert set(hello["you"]["roles"]) == {"predict", "read", "admin"}
        (line,) = events.until("models")["models"]
        assert (line["name"], line["state"], line["updates"]["served"]["name"]) == ("ranker", "READY", "1.0")
        model = events.until("model")
        assert [each["state"] for each in model["snapshots"]["snapshots"]] == ["served"]
        load = events.until("load")
        assert set(load["versions"][0]["store"]["tables"]) == {"user", "item", "tag"}
        assert len(load["versions"][0]["arms"]["main"]["latencies"]) == len(hello["latency_bounds_ms"]) + 1
        memory = events.until("memory")
        assert memory["source"] == "published"
        assert {len(ids) for ids in memory["hottest"].values()} == {20, 4}


def test_a_request_is_counted_and_a_delta_seen(tmp_path: Path) -> None:
    with Live(tmp_path, dram_bytes=40_000) as live:
        first = live.version()
        live.start()
        with watching(live.server.metrics_port, NAME) as events:
            before = events.until("load")["versions"][0]["arms"]["main"]
            rows = {"instances": [{"user": 1, "items": [2, 3]}]}
            for _ in range(3):
                assert ask(live.server.http_port, "POST", f"/v1/models/{NAME}:predict", rows).status == 200
            arm = events.until(
                "load", lambda data: data["versions"][0]["arms"]["main"]["answered"] == before["answered"] + 3
            )["versions"][0]["arms"]["main"]
            assert sum(arm["latencies"]) == arm["answered"]
            second = live.delta(first)
            events.until("model", lambda data: data["snapshots"]["served"]["id"] == second.id)
            bad = live.delta(second, wrong_by=1.0)
            refused = events.until("model", lambda data: data["snapshots"]["quarantined"])
            assert refused["snapshots"]["quarantined"][0]["path"] == str(bad.path)
            assert events.until("memory", lambda data: data["source"] == "traffic")["budget"]["dram_bytes"] == 40_000


def test_a_token_sees_its_own_models_alone(guarded: tuple[Server, Path]) -> None:
    port = guarded[0].metrics_port
    for token, status in ((None, 401), ("unknown", 401), ("gone", 401), ("caller", 403)):
        assert ask(port, "GET", "/console/events", None, bearer(token)).status == status
        assert ask(port, "GET", "/console", None, bearer(token)).status == 200
    with watching(port, "ranker", "elsewhere") as events:
        assert events.until("hello")["you"] == {
            "name": "elsewhere",
            "is_known": True,
            "roles": ["predict", "read", "admin"],
            "models": ["other"],
        }
        seen = [events.next() for _ in range(4)]
    assert [name for name, _ in seen] == ["models", "missing"] * 2
    assert seen[0][1]["models"] == []
    with watching(port, "ranker", "narrow-viewer") as events:
        assert [each["name"] for each in events.until("models")["models"]] == ["ranker"]
        assert events.until("model")["name"] == "ranker"


def test_a_token_that_is_taken_away_ends_its_stream(guarded: tuple[Server, Path]) -> None:
    server, access = guarded
    with watching(server.metrics_port, "ranker", "viewer") as events:
        events.until("model")
        write_access(access, [])
        assert "the token is not one" in events.until("refused")["error"]
        assert events.next() == ("", None)


def test_calls_need_what_they_need_elsewhere(guarded: tuple[Server, Path]) -> None:
    port = guarded[0].metrics_port
    calls = [("POST", RANKER + "pause"), ("POST", RANKER + "explain"), ("GET", RANKER + "sample")]
    calls += [("POST", "/v1/models/ranker:predict"), ("GET", RANKER + "snapshots")]
    for method, path in calls:
        for token in ("caller", "viewer", "narrow-operator", "elsewhere", "unknown", None):
            found = ask(port, method, "/console" + path, {} if method == "POST" else None, bearer(token))
            same = ask(guarded[0].http_port, method, path, {} if method == "POST" else None, bearer(token))
            assert (found.status, found.json) == (same.status, same.json), (path, token)
    assert ask(port, "POST", f"/console{RANKER}pause", {}, bearer("viewer")).status == 403


def test_calls_are_in_the_audit_log(repository: Path, tmp_path: Path, start_server: Callable[..., Server]) -> None:
    log, access = tmp_path / "audit.jsonl", write_access(tmp_path / "access.yaml")
    running = start_server(repository, tmp_path / "store", access_file=access, audit_log=log)
    try:
        for token in ("operator", "viewer"):
            ask(running.metrics_port, "POST", f"/console{RANKER}pause", {}, bearer(token))
    finally:
        running.stop()
    lines = [(line["principal"], line["call"], line["outcome"]) for line in lines_of(log)]
    assert lines == [("operator", "pause", 200), ("viewer", "pause", "Forbidden")]


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)
def test_pages_of_other_origins_cannot_call(port: int, headers: dict[str, str]) -> None:
    for path in (RANKER + "pause", "/v1/models/ranker:predict", RANKER + "explain"):
        assert ask(port, "POST", "/console" + path, {}, headers).status == 403
    found = ask(port, "GET", "/console", None, headers)
    assert "access-control-allow-origin" not in found.headers


def test_a_sample_is_a_request(server: Server) -> None:
    sample = ask(server.http_port, "GET", RANKER + "sample")
    assert sample.status == 200
    assert len(sample.json["instances"]) == 8
    assert set(sample.json["instances"][0]) == {"user", "history", "item", "tags", "price"}
    answered = ask(server.http_port, "POST", "/v1/models/ranker:predict", sample.content)
    assert answered.status == 200
    assert len(answered.json["predictions"]) == 8


def test_pages_are_bounded_and_leave(server: Server) -> None:
    port = server.metrics_port
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_PAGES):
            stack.enter_context(watching(port)).until("hello")
        refused = ask(port, "GET", "/console/events")
        assert refused.status == 503
        assert "pages of the console" in refused.json["error"]
        assert ask(port, "GET", "/metrics").status == 200
    until(lambda: _joins(port))


def _joins(port: int) -> bool:
    with watching(port) as events:
        return events.answer.status == 200


def test_a_page_that_does_not_read_holds_up_no_other(server: Server) -> None:
    port = server.metrics_port
    with socket.create_connection(("127.0.0.1", port)) as deaf:
        deaf.sendall(b"GET /console/events?model=ranker HTTP/1.1\r\nHost: x\r\n\r\n")
        with watching(port, "ranker") as events:
            seen = [events.until("load")["at_ms"] for _ in range(3)]
    assert seen == sorted(set(seen))


def test_a_stopping_server_ends_streams(repository: Path, tmp_path: Path, start_server: Callable[..., Server]) -> None:
    running = start_server(repository, tmp_path / "store")
    with watching(running.metrics_port) as events:
        events.until("hello")
        running.stop()
        names = []
        while (event := events.next())[0]:
            names.append(event[0])
    assert names[-1] == "stopping"


def test_a_head_of_events_ends_at_once(port: int) -> None:
    found = ask(port, "HEAD", "/console/events")
    assert (found.status, found.content) == (200, b"")
    # It left no page behind: all others find a place.
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_PAGES):
            assert stack.enter_context(watching(port)).answer.status == 200
    until(lambda: _joins(port))


def test_a_name_that_is_no_unicode_spoils_nothing(repository: Path, tmp_path: Path, start_server: Any) -> None:
    strange = repository / "strange\udcff<b>"
    strange.mkdir()
    (strange / "config.pbtxt").write_text('backend: "identity"\n')
    running = start_server(repository, tmp_path / "store")
    try:
        with watching(running.metrics_port, "ranker") as events:
            assert len(events.until("models")["models"]) == 2
            assert events.until("model")["name"] == "ranker"
    finally:
        running.stop()


def test_a_name_that_anybody_may_point_here_gets_nothing_without_a_token(server: Server, port: int) -> None:
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example"):
        page = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        calls = [("GET", "/events"), ("GET", RANKER + "snapshots"), ("POST", RANKER + "pause")]
        for method, path in [*calls, ("POST", "/v1/models/ranker:predict")]:
            found = ask(port, method, "/console" + path, {} if method == "POST" else None, page)
            assert found.status == 403, path
            assert "--allowed-host" in found.json["error"]
        assert ask(server.http_port, "POST", RANKER + "pause", {}, page).status == 403
        # The page itself says nothing of the server, and lets an operator sign in.
        assert ask(port, "GET", "/console", None, page).status == 200
    with watching(port) as events:
        assert events.until("hello")["you"]["roles"]


def test_a_token_opens_the_console_under_any_name(guarded: tuple[Server, Path]) -> None:
    port = guarded[0].metrics_port
    for token, status in (("viewer", 200), (None, 401)):
        found = ask(port, "GET", f"/console{RANKER}snapshots", None, {"Host": "a.example", **bearer(token)})
        assert found.status == status


def test_a_proxy_has_its_name_allowed(repository: Path, tmp_path: Path, start_server: Callable[..., Server]) -> None:
    running = start_server(repository, tmp_path / "store", allowed_hosts=("console.example.com",), open_admin=True)
    try:
        for host, status in (("Console.Example.com", 200), ("other.example.com", 403)):
            headers = {"Host": host, "Origin": f"https://{host}"}
            path = f"/console{RANKER}resume"
            assert ask(running.metrics_port, "POST", path, {}, headers).status == status
            assert ask(running.http_port, "POST", RANKER + "resume", {}, headers).status == status
    finally:
        running.stop()
