"""The audit log: a line a call, whole, and never a flood."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from serving.security.audit import AuditLog, arguments_of_body
from storage.errors import ConfigError


def write(log: AuditLog, **changes: Any) -> None:
    call: dict[str, Any] = {
        "principal": "ops",
        "address": "192.0.2.7",
        "transport": "http",
        "call": "load",
        "model": "ranker",
        "arguments": {},
        "outcome": 200,
        "took_ms": 1.25,
    }
    log.write(**{**call, **changes})


def test_a_call_is_one_line_in_the_file_and_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    with caplog.at_level(logging.INFO, "emberline.audit"):
        write(log)
        write(log, model="a\nb", arguments='{"x": "\n"}')
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["time"].endswith("Z")
    del first["time"]
    assert first == {
        "principal": "ops",
        "address": "192.0.2.7",
        "transport": "http",
        "call": "load",
        "model": "ranker",
        "arguments": {},
        "outcome": 200,
        "ms": 1.25,
    }
    assert second["model"] == "a\nb"
    assert [record.getMessage() for record in caplog.records] == path.read_text().splitlines()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="audit_log") as refused:
        AuditLog(tmp_path)
    assert refused.value.field == "audit_log"


def test_a_file_may_be_moved_away_and_its_folder_may_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = AuditLog(folder / "audit")
    write(log)
    (folder / "audit").rename(folder / "audit.1")
    write(log)
    assert len((folder / "audit").read_text().splitlines()) == 1
    (folder / "audit").unlink()
    (folder / "audit.1").unlink()
    folder.rmdir()
    with caplog.at_level(logging.ERROR):
        write(log)
        write(log)
    # Whether the entries themselves are shown depends on what set the level of their logger.
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    folder.mkdir()
    write(log)
    assert (folder / "audit").exists()


def test_refusals_do_not_fill_the_disk_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.5
    monkeypatch.setattr(time, "monotonic", lambda: now)
    path = tmp_path / "audit"
    log = AuditLog(path)
    for _ in range(1000):
        write(log, outcome="Unauthenticated", is_refused=True)
    assert len(path.read_text().splitlines()) == 10
    write(log)  # what was done is always written
    assert json.loads(path.read_text().splitlines()[-1])["refusals_left_out"] == 990
    now = 51.5
    write(log, is_refused=True)
    assert len(path.read_text().splitlines()) == 12
    assert "refusals_left_out" not in json.loads(path.read_text().splitlines()[-1])


def test_lines_of_several_writers_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    logs = [AuditLog(path) for _ in range(4)]
    threads = [threading.Thread(target=lambda log=log: [write(log) for _ in range(100)]) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 400


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", {}),
        (b'{"steps": 2}', {"steps": 2}),
        (b'{"x": NaN, "y": [-Infinity, 1e999, 0.5]}', {"x": "NaN", "y": ["-Infinity", "1e999", 0.5]}),
        (b"{", "{"),
        (b"\xff\x00", "\ufffd\x00"),
        (b"a\r\n b", "a b"),
        (b"[" * 100_000, "[" * 200),
    ],
)
def test_arguments_are_short(body: bytes, shown: Any) -> None:
    assert arguments_of_body(body) == shown
