"""Figures of h2load and wrk2 are read from what they print; here programs print as these do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtest.compiled import CompiledDriver
from loadtest.phases import Phase
from loadtest.prepared import encode
from loadtest.records import PhaseRecord
from loadtest.rows import Tensor
from loadtest.runner import KindRun
from loadtest.target import Target

PREPARED = encode("http_json", "m", [[[Tensor("x", "INT64", np.array([[1]]))]]])


def measured(name: str, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> PhaseRecord:
    """Runs a phase of five seconds, in which the script stands for the program."""
    programs, files = folder / "programs", folder / "files"
    programs.mkdir()
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
