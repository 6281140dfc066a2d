"""Prints failures at once and records what ran: a pytest plugin for machines that are lent for minutes.

    python -m pytest -p tests.gpu.telling --events FILE tests/gpu/test_driver.py

Lines of a failure begin with "! ", so that a reader of the output can show them and leave the rest in a log. FILE has
a line of JSON for each test that begins, and one for each outcome: they are there even when the process ends early.
`--simulated` replaces the real GPU by the simulated one, `--plant` makes the third test fail in a chosen way.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

# Lines of one failure that are shown; the log has all.
_MOST_LINES = 40
_PLANTED_AT = 3
PLANTS = ("illegal_address", "crash", "hang")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("a GPU")
    group.addoption("--events", type=Path, help="where each test and its outcome are written")
    group.addoption("--simulated", action="store_true", help="the simulated GPU in the place of the real one")
    group.addoption("--plant", choices=PLANTS, help="a failure in the third test, for rehearsals")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Telling(config), "telling")


class Telling:
    """The plugin for one run of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self._events: Path | None = config.getoption("--events")
        self._plant: str | None = config.getoption("--plant")
        self._ran = 0
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("begin", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._show(report.nodeid, report)
            if "DeviceLost" in report.longreprtext and self._session is not None:
                # Every later test of this process would fail the same way.
                self._tell("note", "the GPU is lost to this process, the tests after it are left out")
                self._session.shouldstop = "the GPU is lost to this process"
        if report.failed or report.skipped or report.when == "call":
            outcome = "error" if report.failed and report.when != "call" else report.outcome
            self._tell("outcome", [report.nodeid, outcome])

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell("end", nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._show(report.nodeid, report)
            self._tell("outcome", [report.nodeid, "error"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._ran += 1
        if self._plant is not None and self._ran == _PLANTED_AT:
            plant(self._plant, item)

    def _show(self, nodeid: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        lines = report.longreprtext.splitlines()
        left_out = len(lines) - _MOST_LINES
        shown = lines if left_out <= 0 else [f"({left_out} lines more in the log)", *lines[-_MOST_LINES:]]
        if left_out > 0:
            print("\n" + "\n".join(lines), flush=True)
        print("\n" + "\n".join(f"! {line}" for line in [f"FAILED {nodeid}", *shown]), flush=True)

    def _tell(self, kind: str, value: Any) -> None:
        if self._events is not None:
            with self._events.open("a", encoding="utf-8") as file:
                file.write(json.dumps([kind, value]) + "\n")


def plant(what: str, item: pytest.Item) -> None:
    """Causes the failure that a rehearsal asked for."""
    if what == "illegal_address":  # as on a real GPU: this call and every later one of the process fail
        item._request.getfixturevalue("gpu").lose()  # type: ignore[attr-defined]
    elif what == "crash":
        ctypes.string_at(8)
    else:
        with threading.Lock() as held:
            assert held
            time.sleep(3600.0)
