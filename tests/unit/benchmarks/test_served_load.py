"""A measurement of a server counts its own processor time, and refuses answers that the server does not confirm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.catalog import Run
from benchmarks.generators import BadAnswersError, Figures
from benchmarks.processes import running_ns
from benchmarks.report import Report
from benchmarks.served_load import Load, Served, in_turns, measure_load


class ThisProcess(Served):
    """Counts as a server: it answers 100 requests while a generator works, and some fail."""

    def __init__(self, succeed: int = 100, fail: int = 0) -> None:
        super().__init__(0, 0, os.getpid(), "model")
        object.__setattr__(self, "found", iter([(7, 1), (7 + succeed, 1 + fail)]))

    def counts(self) -> tuple[int, int]:
        counted: tuple[int, int] = next(self.found)  # type: ignore[attr-defined]
        return counted


def works(_: Served) -> Figures:
    """Takes a quarter of a second of processor time."""
    until = time.process_time() + 0.25
    while time.process_time() < until:
        pass
    return Figures(100, 400.0, 1.0, 2.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Report("planted", quick=False), tmp_path, repeats=7)


def test_processor_time_is_that_of_the_server_by_request(run: Run) -> None:
    load = measure_load(run, ThisProcess(), works, 0)
    assert load.cpu_us == pytest.approx(2500, rel=0.25)
    # Of the test's own children, some may run for a moment.
    assert 0.8 * load.cpu_us <= load.busiest_us <= load.cpu_us
    assert load.others_cores <= load.beside_cores + 0.2


@pytest.mark.parametrize(("succeed", "fail"), [(99, 0), (100, 1)])
def test_answers_that_the_server_does_not_confirm_are_refused(run: Run, succeed: int, fail: int) -> None:
    with pytest.raises(BadAnswersError, match=f"counts {succeed} good answers and {fail} failures"):
        measure_load(run, ThisProcess(succeed, fail), lambda _: Figures(100, 400.0, 1.0, 2.0), 0)
    measure_load(run, ThisProcess(succeed, fail), lambda _: Figures(100, 400.0, 1.0, 2.0), 1)


def test_turns_alternate_and_all_but_the_first_count(run: Run) -> None:
    order: list[str] = []

    def contestant(name: str, us: float) -> Load:
        order.append(name)
        return Load(Figures(1, 1.0, us, us), us, us, 0.5, 0.5)

    turns = in_turns(run, {"ours": lambda: contestant("ours", 2.0), "triton": lambda: contestant("triton", 5.0)})
    assert order == ["ours", "triton"] * 8
    turns.report(run, "processor time", lambda load: load.cpu_us, unit="us", target=2.5, less_is_better=True)
    (row,) = run.report.rows
    assert (row.ratio, row.repeats, row.holds, row.disturbed) == (2.5, 7, True, True)
    assert turns.others() == "ours 0.50 (0.50..0.50), triton 0.50 (0.50..0.50)"
    turns.settle()


def test_ctrl_c_ends_turns_with_those_that_are_complete(run: Run) -> None:
    times = iter(range(3))

    def contestant() -> Load:
        if next(times) == 2:
            raise KeyboardInterrupt
        return Load(Figures(1, 1.0, 1.0, 1.0), 1.0, 1.0, 0.0, 0.0)

    turns = in_turns(run, {"ours": contestant})
    assert len(turns.loads["ours"]) == 1
    with pytest.raises(KeyboardInterrupt):
        turns.settle()


def test_running_time_grows_by_what_a_thread_does() -> None:
    before, began = running_ns(os.getpid()), time.process_time_ns()
    works(ThisProcess())
    assert running_ns(os.getpid()) - before == pytest.approx(time.process_time_ns() - began, rel=0.1)
