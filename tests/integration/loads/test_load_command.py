"""`emberline loadtest` on a real server: profiles, recorded requests, a search, reports, interruption, and errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.peers import PeerMissingError
from benchmarks.peers.triton_environment import library_path, perf_analyzer
from emberline.cli import tokens
from loadtest.command import locust_command
from tests.integration.loads.asking import ROOT, command, environment, load
from tests.support.html_page import Page
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow


def figures(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def answered(server: ServerProcess) -> float:
    return server.metrics().get('nv_inference_request_success{model="tiny",version="1"}', 0.0)


def answered_at_rest(server: ServerProcess) -> float:
    """Waits until what an earlier test left under way is answered too; returns the count."""
    until, count = time.monotonic() + 30, -1.0
    while (now := answered(server)) != count:
        assert time.monotonic() < until
        count = now
        time.sleep(0.5)
    return count


def wait_for_answers(server: ServerProcess, count: float, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while answered(server) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_profile_is_reported_as_text_json_and_page(tiny: ServerProcess, rows: Path, tmp_path: Path) -> None:
    json_path, page = tmp_path / "load.json", tmp_path / "load.html"
    done = load(
        tiny,
        *("--data", str(rows), "--rate", "40,40..80@2s", "--seconds", "2", "--ids", "zipf", "--drift", "0.5"),
        *("--arrivals", "poisson", "--processes", "2", "--items", "4"),
        *("--json", str(json_path), "--html", str(page)),
    )
    assert "ids by zipf (words" in done.stdout
    assert "40 to 80/s" in done.stdout
    found = figures(json_path)["http_binary"]
    assert found["mode"] == "open"
    assert found["failures"] == found["unanswered"] == 0
    assert [phase["phase"] for phase in found["phases"]] == ["40/s", "40 to 80/s"]
    assert sum(phase["requests"] for phase in found["phases"]) == found["requests"] > 100
    assert sum(entry["requests"] for entry in found["over_time"]) == found["requests"]
    assert found["hit_rate"] == 1.0
    assert {entry["snapshot"] for entry in found["server"]["series"]} == {"1.0"}
    parsed = Page(page.read_text(encoding="utf-8"))
    assert [tag for tag, _ in parsed.seen].count("svg") == 4
    assert not [
        attributes for tag, attributes in parsed.seen if tag in ("script", "link", "img") or "src" in attributes
    ]


def test_users_send_each_kind(tiny: ServerProcess, rows: Path, tmp_path: Path) -> None:
    json_path = tmp_path / "load.json"
    load(tiny, "--data", str(rows), "--users", "1,3", "--seconds", "1", "--json", str(json_path))
    found = figures(json_path)
    assert set(found) == {"http_binary", "http_json", "grpc"}
    for run in found.values():
        assert run["mode"] == "closed"
        assert [phase["users"] for phase in run["phases"]] == [1, 3]
        assert run["failures"] == 0 < run["requests"]


def test_recorded_requests_are_sent_as_they_are(tiny: ServerProcess, tmp_path: Path) -> None:
    inputs = [
        {"name": "words", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]},
        {"name": "dense", "datatype": "FP32", "shape": [2, 2], "data": [0.1, 0.2, 0.3, 0.4]},
    ]
    recorded, json_path = tmp_path / "requests.jsonl", tmp_path / "load.json"
    recorded.write_text("\n".join([json.dumps({"inputs": inputs})] * 3))
    load(
        *(tiny, "--requests", str(recorded), "--rate", "20", "--seconds", "1", "--json", str(json_path)),
        *("--kinds", "http_json,grpc"),
    )
    for run in figures(json_path).values():
        assert (run["distinct_requests"], run["requests"], run["failures"]) == (3, 20, 0)
    inputs[0]["name"] = "wrods"
    recorded.write_text(json.dumps({"inputs": inputs}))
    done = load(tiny, "--requests", str(recorded), code=1)
    assert "request 0 has the input 'wrods', which the model has not; it has dense, words" in done.stderr


def test_a_rate_is_found_and_held(tiny: ServerProcess, rows: Path, tmp_path: Path) -> None:
    """The bound is one that every machine keeps at a low rate, and none at all rates."""
    json_path = tmp_path / "load.json"
    done = load(
        *(tiny, "--data", str(rows), "--find-p99", "2000", "--step", "1", "--hold", "2s", "--start-rate", "400"),
        *("--connections", "4", "--json", str(json_path), "--html", str(tmp_path / "load.html")),
    )
    search = figures(json_path)["http_binary"]["search"]
    assert search["rate"] >= 1
    assert search["p99_ms"] <= 2000
    assert search["held_s"] == pytest.approx(2, abs=0.5)
    assert (search["p99_error_ms"], search["steady"]) == (None, None)  # too short to be compared with itself
    assert search["steps"][-1]["purpose"] == "hold"
    assert figures(json_path)["http_binary"]["p99_ms"] <= 2000
    assert any(step["why"] for step in search["steps"])
    assert "ms over 2 s, after" in done.stdout
    assert "Search" in (tmp_path / "load.html").read_text(encoding="utf-8")


def test_a_condition_that_holds_fails_the_command(tiny: ServerProcess, rows: Path) -> None:
    short = ("--data", str(rows), "--rate", "10", "--seconds", "1")
    assert "http_binary: p99>0ms" in load(tiny, *short, "--fail-if", "rate<1,p99>0ms", code=1).stderr
    load(tiny, *short, "--fail-if", "failed>0", "--fail-if", "hit_rate<50%")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_test_reports_what_was_measured(
    tiny: ServerProcess, rows: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    json_path, temporary = tmp_path / "load.json", tmp_path / "temporary"
    temporary.mkdir()
    before = answered(tiny)
    process = subprocess.Popen(
        command(tiny, "--data", str(rows), "--rate", "30@10m", "--json", str(json_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment(tiny), "TMPDIR": str(temporary)},
    )
    try:
        wait_for_answers(tiny, before + 60, process)
        process.send_signal(stop)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, printed
    assert "The test was interrupted" in printed
    found = figures(json_path)["http_binary"]
    assert found["interrupted"]
    assert 30 < found["requests"] < 18_000
    assert found["phases"][0]["seconds"] < 600
    assert not list(temporary.iterdir()), "the prepared requests are gone"


def test_locusts_own_command_writes_figures_when_it_is_ended(tiny: ServerProcess, rows: Path, tmp_path: Path) -> None:
    """The quickstart has such a load in the background until its update is done."""
    path = tmp_path / "figures.json"
    line = locust_command(
        "http_binary", url=tiny.url, grpc=tiny.grpc, model="tiny", data=rows, figures=path, seconds=600, users=2
    )
    before = answered_at_rest(tiny)
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(tiny))
    try:
        wait_for_answers(tiny, before + 40, process)
        process.terminate()
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    found = figures(path)
    assert found["failures"] == 0, printed
    # The server may have answered those that were under way, and what the two users asked while the command ended.
    assert 40 <= found["requests"] <= answered(tiny) - before <= found["requests"] + 4
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]


def test_a_generator_that_dies_leaves_what_was_measured(tiny: ServerProcess, rows: Path, tmp_path: Path) -> None:
    json_path = tmp_path / "load.json"
    before = answered(tiny)
    process = subprocess.Popen(
        command(tiny, "--data", str(rows), "--rate", "30@2s,30@10m", "--processes", "2", "--json", str(json_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(tiny),
    )
    try:
        wait_for_answers(tiny, before + 90, process)
        (_, second) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(second), signal.SIGKILL)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1, printed
    assert "failed: the load generator ended with -9" in printed
    assert "The load generator failed; the figures are those of what had been measured." in printed
    found = figures(json_path)["http_binary"]
    assert found["broken"].startswith("the load generator ended with -9")
    assert [each["requests"] > 20 for each in found["phases"]] == [True, True]
    assert found["phases"][1]["seconds"] < 100


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
@pytest.mark.parametrize("kind", ["http_binary", "http_json", "grpc"])
def test_h2load_drives(tiny: ServerProcess, rows: Path, tmp_path: Path, kind: str) -> None:
    json_path = tmp_path / "load.json"
    load(
        *(tiny, "--data", str(rows), "--rate", "40", "--seconds", "2", "--generator", "h2load", "--kinds", kind),
        *("--connections", "8", "--json", str(json_path)),
    )
    run = figures(json_path)[kind]
    assert run["failures"] == 0
    assert run["requests"] > 40
    assert run["generator"]["name"] == "h2load"
    assert "counts latency from the sending" in run["generator"]["notes"][0]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("wrk2") is None, reason="wrk2 is not installed")
@pytest.mark.parametrize("kind", ["http_binary", "http_json"])
def test_wrk2_drives(tiny: ServerProcess, rows: Path, tmp_path: Path, kind: str) -> None:
    json_path = tmp_path / "load.json"
    load(
        *(tiny, "--data", str(rows), "--rate", "40", "--seconds", "15", "--generator", "wrk2", "--kinds", kind),
        *("--connections", "8", "--json", str(json_path)),
    )
    run = figures(json_path)[kind]
    assert run["failures"] == 0
    assert 500 < run["requests"] < 700
    assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["max_ms"]
    assert run["generator"]["name"] == "wrk2"


@pytest.fixture
def perf_analyzer_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        program, libraries = perf_analyzer(), library_path()
    except PeerMissingError as error:
        pytest.skip(f"perf_analyzer: {error}")
    (tmp_path / "perf_analyzer").write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {program} "$@"\n')
    (tmp_path / "perf_analyzer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize("kind", ["http_binary", "http_json", "grpc"])
def test_perf_analyzer_drives(
    tiny: ServerProcess, rows: Path, tmp_path: Path, kind: str, perf_analyzer_in_path: None
) -> None:
    json_path = tmp_path / "load.json"
    before = answered(tiny)
    load(
        *(tiny, "--data", str(rows), "--rate", "40", "--seconds", "2", "--generator", "perf_analyzer"),
        *("--kinds", kind, "--json", str(json_path)),
    )
    run = figures(json_path)[kind]
    assert run["failures"] == 0
    assert 70 <= run["requests"] <= answered(tiny) - before
    assert 0 < run["p50_ms"] < run["p99_ms"]
    assert run["generator"]["notes"][0].startswith("perf_analyzer sent the load")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "tny"], "has no model 'tny'; did you mean tiny?"),
        (["--url", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1/v2/health/live: Connection refused"),
        (
            ["--grpc", "127.0.0.1:1", "--kinds", "grpc"],
            "no answer from gRPC at 127.0.0.1:1; give its address with --grpc",
        ),
        (["--grpc", "127.0.0.1:1", "--kinds", "http_json,grpc"], "no answer from gRPC at 127.0.0.1:1"),
        (["--metrics", "127.0.0.1:8002"], "--metrics: expected http://HOST:PORT or https://HOST:PORT"),
        (["--metrics", "http://127.0.0.1:99999"], "--metrics: expected http://HOST:PORT or https://HOST:PORT"),
        (["--user-inputs", "user"], "--user-inputs: the model has no input 'user'; it has words, dense"),
    ],
)
def test_what_is_wrong_is_said_before_the_load_begins(
    tiny: ServerProcess, rows: Path, arguments: list[str], message: str
) -> None:
    words = command(tiny, "--data", str(rows), "--rate", "10", "--seconds", "1")
    for name, value in zip(arguments[::2], arguments[1::2], strict=True):
        words = [*words[: words.index(name)], *words[words.index(name) + 2 :]] if name in words else words
        words += [name, value]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment(tiny), check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "req/s" not in done.stdout, "nothing was measured before"


def test_a_page_that_is_no_metrics_is_a_note(tiny: ServerProcess, rows: Path) -> None:
    words = command(tiny, "--data", str(rows), "--rate", "10", "--seconds", "1")
    words[words.index("--metrics") + 1] = f"http://{tiny.grpc}/metrics"
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment(tiny), check=False)
    assert done.returncode == 0, done.stderr
    assert "note: the server's metrics were not read from" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_token_for_scores_alone_is_enough(rows: Path, tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    words = ["--name", "load", "--role", "predict", "--model", "tiny", "--access-file", str(access)]
    made = CliRunner().invoke(tokens.command, ["new", *words])
    token = made.stdout.strip()
    arguments = ["--access-file", str(access)]
    with ServerProcess(ROOT / "model_repo", tmp_path / "store", tmp_path / "log", arguments=arguments) as server:
        line = command(server, "--data", str(rows), "--rate", "10", "--seconds", "1")
        environ = {**environment(server), "EMBERLINE_TOKEN": token}
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environ, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
