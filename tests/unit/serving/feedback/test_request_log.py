"""The log of requests: versions that answer in turns, requests that cannot be written, and disks that fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from serving.feedback import request_log
from serving.feedback.log_files import LogFolder
from serving.feedback.request_log import RequestLog
from serving.feedback.rows import served_table
from serving.feedback.served_batch import ServedBatch, ServedRequest
from serving.feedback.settings import LogSettings
from serving.protocol.signature import ModelSignature, OutputSignature
from storage.features import FeatureSpec, column_from_rows

SPECS = [
    FeatureSpec.model_validate(
        {
            "inputs": [{"name": name, "dtype": "FP32"} for name in names],
            "features": [{"name": "x", "inputs": ["x"], "output": "dense"}],
        }
    )
    for names in (["x"], ["x", "y"])
]
SIGNATURES = [ModelSignature("m", spec.inputs, [OutputSignature("score", "FP32", (1,))], 64) for spec in SPECS]


def log_in(folder: Path, **options: Any) -> RequestLog:
    usual: dict[str, Any] = {"share": 1.0, "drop": frozenset(), "hash": frozenset(), "key": b"", "every_s": 3600.0}
    settings = LogSettings(folder=folder, max_bytes=1 << 30, max_age_s=86_400.0, **{**usual, **options})
    return RequestLog("m", settings)


def batch(name: str, version: int = 0) -> ServedBatch:
    columns = {entry.name: column_from_rows(entry, [1.0, 2.0]) for entry in SPECS[version].inputs}
    request = ServedRequest(name, 0.0, 0, 2, 1_700_000_000_000_000)
    outputs = [np.array([[0.5], [0.25]], np.float32)]
    return ServedBatch(columns, outputs, 2, [request], SIGNATURES[version], f"{version + 1}.0", "main", 64)


def written(folder: Path) -> list[list[str]]:
    paths = sorted((folder / "requests").glob("[!.]*.parquet"))
    return [pq.read_table(path).column("served_id").to_pylist()[::2] for path in paths]


def test_versions_that_answer_in_turns_do_not_write_a_file_a_turn(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for number in range(40):
        log.take(batch(f"r{number}", number % 2))
    log.close()
    names = written(tmp_path)
    assert sorted(names) == sorted([[f"r{number}" for number in range(of, 40, 2)] for of in (0, 1)])
    assert (log.requests, log.rows, log.files.counts.lost_rows) == (40, 80, 0)


def test_more_versions_than_are_kept_apart_are_written_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_VERSIONS", 1)
    log = log_in(tmp_path)
    for number in range(4):
        log.take(batch(f"r{number}", number % 2))
        assert len(log._versions) == 1
    log.close()
    assert sorted(written(tmp_path)) == [["r0"], ["r1"], ["r2"], ["r3"]]


def test_what_does_not_fit_the_options_of_one_version_is_refused_for_that_alone(tmp_path: Path) -> None:
    log = log_in(tmp_path, drop=frozenset({"y"}))
    log.take(batch("a", 0))
    assert "feature_log_drop: the model has no input 'y'" in log.refusal
    log.take(batch("b", 1))
    assert log.refusal == ""
    log.close()
    assert written(tmp_path) == [["b"]]
    assert (log.refused, log.requests) == (1, 1)


def test_a_request_that_cannot_be_written_takes_no_others_along_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def table_of(batches: Sequence[ServedBatch], columns: Any, hashed: Mapping[str, Any]) -> Any:
        if any(request.id == "poison" for each in batches for request in each.requests):
            raise TypeError("a value of another kind")
        return served_table(batches, columns, hashed)

    monkeypatch.setattr(request_log, "served_table", table_of)
    log = log_in(tmp_path)
    with caplog.at_level(logging.ERROR):
        for name in ("a", "poison", "b"):
            log.take(batch(name))
        log.close()
    assert written(tmp_path) == [["a", "b"]]
    assert (log.files.counts.rows, log.files.counts.lost_rows) == (4, 2)
    assert "a value of another kind" in caplog.text


def test_a_folder_that_cannot_be_looked_at_is_trouble_and_ends_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "log"
    blocked.write_text("a file where the folder should be")
    folder = LogFolder(blocked, max_bytes=1 << 20, max_age_s=3600.0, every_s=0.0)
    folder.tick(time.monotonic())
    assert "the files cannot be looked at" in folder.trouble


def test_a_file_that_cannot_be_deleted_hides_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_in(tmp_path)
    log.take(batch("a"))

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", broken)
    monkeypatch.setattr(Path, "unlink", broken)
    log.close()
    assert log.files.counts.lost_rows == 2
    assert "Input/output error" in log.files.trouble


def test_files_that_begin_in_one_millisecond_replace_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    monkeypatch.setattr(time, "strftime", lambda *_: "20231114T221320")
    log = log_in(tmp_path)
    for name in ("a", "b", "c"):
        log.take(batch(name))
        log.close()
    assert sorted(written(tmp_path)) == [["a"], ["b"], ["c"]]


def test_rows_appear_in_time_also_those_whose_buffer_was_full_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(request_log, "_BUFFER_BYTES", 128)
    log = log_in(tmp_path, every_s=60.0)
    log.take(batch("first"))
    now += 55.0
    log.take(batch("fills the buffer"))
    log.tick(now)
    assert not written(tmp_path)
    now += 5.0
    log.tick(now)
    assert written(tmp_path) == [["first", "fills the buffer"]]
