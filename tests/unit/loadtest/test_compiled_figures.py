"""Figures of other programs are read from what they print or write; here scripts stand for these programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from emberline.cli.loadtest import command
from loadtest.compiled import PROGRAMS, CompiledDriver, check_generator
from loadtest.phases import Phase
from loadtest.prepared import encode
from loadtest.records import PhaseRecord
from loadtest.rows import Tensor
from loadtest.runner import KindRun
from loadtest.target import Target
from storage.errors import ConfigError

PREPARED = encode("http_json", "m", [[[Tensor("x", "INT64", np.array([[1]]))]]])


def measured(name: str, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> PhaseRecord:
    """Runs a phase of five seconds, in which the script stands for the program."""
    programs, files = folder / "programs", folder / "files"
    programs.mkdir(parents=True)
    files.mkdir()
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    target = Target("http://127.0.0.1:1", "127.0.0.1:1", "m")
    driver = CompiledDriver(name, "http_json", target, PREPARED, files, connections=2, threads=1)
    return driver.run(Phase(5, (100, 100)), seed=None, drain_s=1.0, watch=lambda _: False)


def test_wrk2_has_no_figures_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = " ".join(str(each) for each in range(1000, 2000))
    script = f"echo figures 500 5000000 10 0\necho times {times}"
    record = measured("wrk2", script, tmp_path, monkeypatch)
    figures = record.figures()
    assert (figures["requests"], figures["failures"]) == (500, 10)
    assert figures["requests_per_second"] == pytest.approx(98)
    assert figures["p50_ms"] == pytest.approx(1.5, rel=0.01)
    (entry,) = KindRun("http_json", [record]).over_time()
    assert entry["requests_per_second"] == pytest.approx(98), "not all answers in the first second"
    assert record.figures(1)["p99_ms"] == pytest.approx(figures["p99_ms"]), "a search leaves out the first second"


def test_h2load_without_an_answer_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "requests: 3 total, 3 started, 3 done, 0 succeeded, 3 failed, 3 errored, 0 timeout"
    log = tmp_path / "files" / "log"
    record = measured("h2load", f"echo '{line}'\n: > {log}", tmp_path, monkeypatch)
    assert (record.counts().failed, record.counts().latency.total) == (3, 0)


def test_perf_analyzer_exports_the_times_of_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [
        {"timestamp": 10**18 + number * 10**7, "response_timestamps": [10**18 + number * 10**7 + 2_000_000]}
        for number in range(300)
    ]
    export = tmp_path / "exported.json"
    export.write_text(json.dumps({"experiments": [{"experiment": {}, "requests": requests}]}))
    script = f"cat {export} > {tmp_path / 'files' / 'export.json'}"
    record = measured("perf_analyzer", script, tmp_path, monkeypatch)
    assert [record.seconds[second].latency.total for second in range(3)] == [100, 100, 100]
    assert record.figures()["p50_ms"] == pytest.approx(2.0, rel=0.01)
    data = json.loads((tmp_path / "files" / "data.json").read_text())
    assert data == {"data": [{"x": {"content": [1], "shape": [1]}}]}


def test_perf_analyzer_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = measured("perf_analyzer", "echo error: Failed to init manager; exit 99", tmp_path, monkeypatch)
    assert record.broken == "perf_analyzer ended with 99: error: Failed to init manager"
    record = measured("perf_analyzer", "echo nothing was measured", tmp_path / "again", monkeypatch)
    assert record.broken == "perf_analyzer: nothing was measured"


@pytest.mark.parametrize("kind", ["http_binary", "http_json", "grpc"])
def test_perf_analyzer_gets_the_rows_of_every_request(tmp_path: Path, kind: str) -> None:
    requests = [
        [
            Tensor("ids", "INT64", np.array([[number], [2]])),
            Tensor("words", "BYTES", np.array([[b"a", b""], ["\xe9".encode(), b"d"]], np.object_)),
            Tensor("dense", "FP32", np.array([[0.5, 1.5], [2.5, 3.5]], np.float32)),
            Tensor("clicked", "BOOL", np.array([[True], [False]])),
        ]
        for number in range(2)
    ]
    target = Target("http://127.0.0.1:1", "127.0.0.1:1", "m")
    CompiledDriver("perf_analyzer", kind, target, encode(kind, "m", [requests]), tmp_path, connections=2, threads=1)
    samples = json.loads((tmp_path / "data.json").read_text())["data"]
    assert [each["ids"]["content"] for each in samples] == [[0], [2], [1], [2]]
    assert samples[1] == {
        "ids": {"content": [2], "shape": [1]},
        "words": {"content": ["\xe9", "d"], "shape": [2]},
        "dense": {"content": [2.5, 3.5], "shape": [2]},
        "clicked": {"content": [False], "shape": [1]},
    }


def test_perf_analyzer_refuses_inputs_of_one_row_beside_many(tmp_path: Path) -> None:
    tensors = [Tensor("user", "INT64", np.array([[1]])), Tensor("item", "INT64", np.array([[1], [2]]))]
    target = Target("http://127.0.0.1:1", "127.0.0.1:1", "m")
    prepared = encode("grpc", "m", [[tensors]])
    with pytest.raises(ConfigError, match="the same number of rows for every input and in every request, got 1, 2"):
        CompiledDriver("perf_analyzer", "grpc", target, prepared, tmp_path, connections=2, threads=1)


def test_every_program_can_be_chosen_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (choice,) = [each.type.choices for each in command.params if each.name == "generator"]  # type: ignore[attr-defined]
    assert list(choice) == ["locust", *PROGRAMS]
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, program in PROGRAMS.items():
        with pytest.raises(ConfigError) as error:
            check_generator(name, "http_json", [Phase(5, (100, 100))])
        assert str(error.value).endswith(f"there is no program {name}; {program.package}")
