"""Names, options, interruption: what `python -m benchmarks` and the scripts share."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from benchmarks import all_store, catalog
from benchmarks.measure import Samples
from benchmarks.report import Report
from storage.errors import ConfigError, Unavailable


@pytest.mark.parametrize("name", catalog.BENCHMARKS)
def test_every_benchmark_says_what_it_claims_and_can_be_measured(name: str) -> None:
    module = importlib.import_module(catalog.module_of(name))
    assert callable(module.measure)
    assert (module.__doc__ or "").startswith("Claim")
    assert f"python -m {module.__name__}" in (module.__doc__ or "")


def test_the_list_has_one_line_each() -> None:
    lines = catalog.list_lines()
    assert len(lines) == len(catalog.BENCHMARKS) == 36
    assert lines[0].startswith("lookup ")


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pooling'"):
        catalog.check_name("poling")
    with pytest.raises(ConfigError, match="there are: lookup, "):
        catalog.check_name("xyzzy")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rows": 5}, "rows"),
        ({"repeats": 0}, "repeats"),
        ({"max_s": 0.0}, "max_s"),
        ({"json": Path("/nowhere/x.json")}, "json"),
    ],
)
def test_options_are_checked_before_anything_is_measured(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.Options(**options)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_parts_are_picked_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[bool] = []

    def measure(run: catalog.Run) -> None:
        found.extend(run.wants(part) for part in ("first", "second"))

    planted(monkeypatch, measure)
    monkeypatch.setattr(sys.modules["benchmarks.planted"], "PARTS", ("first", "second"), raising=False)
    ran(tmp_path)
    ran(tmp_path, only=("second",))
    assert found == [True, True, False, True]
    with pytest.raises(ConfigError, match="planted has the parts first, second"):
        ran(tmp_path, only=("third",))
    with pytest.raises(ConfigError, match="lookup has no parts"):
        catalog.check_parts("lookup", ("third",), ())


def planted(monkeypatch: pytest.MonkeyPatch, measure: object) -> None:
    """Registers `planted` as a benchmark."""
    module = ModuleType("benchmarks.planted")
    module.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.planted", module)
    monkeypatch.setitem(catalog.BENCHMARKS, "planted", "one line")


def ran(tmp_path: Path, **options: object) -> tuple[Report, str]:
    console = Console(width=170, file=io.StringIO())
    report = catalog.run("planted", catalog.Options(**options), console, tmp_path)  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return report, console.file.getvalue()


def test_a_quick_run_measures_prints_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(run: catalog.Run) -> None:
        assert run.size(10, 3) == 3
        samples = run.interleave({"ours": lambda _: 4.0, "peer": lambda _: 2.0})
        run.report.compare("speed", samples, "peer", unit="x", target=1.5)
        run.settle(samples)

    planted(monkeypatch, measure)
    report, text = ran(tmp_path, quick=True, json=tmp_path / "rows.json")
    assert not report.interrupted
    assert "speed [x]" in text
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["ours"], row["other"], row["ratio"], row["holds"]) == (4.0, 2.0, 2.0, True)
    assert row["repeats"] >= 3


def test_a_run_that_fails_prints_the_rows_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(run: catalog.Run) -> None:
        run.report.pairs("first", [4.0], [2.0], "peer", unit="x")
        raise Unavailable("no good answer")

    planted(monkeypatch, measure)
    console = Console(width=170, file=io.StringIO())
    with pytest.raises(Unavailable):
        catalog.run("planted", catalog.Options(), console, tmp_path)
    assert isinstance(console.file, io.StringIO)
    assert "first [x]" in console.file.getvalue()


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_what_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signal_number: int
) -> None:
    def measure(run: catalog.Run) -> None:
        def stops(turn: int) -> float:
            if turn == 2:
                os.kill(os.getpid(), signal_number)
                signal.pause()  # the signal is on its way: its handler raises here at the latest
            return 1.0

        samples = run.interleave({"ours": lambda _: 4.0, "peer": stops})
        run.report.compare("first", samples, "peer", unit="x")
        run.settle(samples)
        raise AssertionError("goes on after an interruption")

    planted(monkeypatch, measure)
    before = signal.getsignal(signal.SIGTERM)
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore them
    try:
        report, text = ran(tmp_path, json=tmp_path / "rows.json")
    finally:
        signal.signal(signal.SIGINT, interrupts)
    assert report.interrupted
    assert [row.repeats for row in report.rows] == [1]
    assert "interrupted: 1 rows are complete" in text
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_data_set_is_refused_where_it_would_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data: drift makes its own data"):
        catalog.run("drift", catalog.Options(data=tmp_path), Console(), tmp_path)


def test_what_is_left_out_for_want_of_time_is_said(tmp_path: Path) -> None:
    run = catalog.Run(Report("lookup", quick=True), tmp_path, quick=True, began=-1e9)
    assert run.is_late("d128")
    assert "d128" in run.report.remarks[0]
    slow = catalog.Run(Report("lookup", quick=False), tmp_path, began=-1e9)
    assert not slow.is_late("d128")
    bounded = catalog.Run(Report("lookup", quick=False), tmp_path, max_s=10.0, began=-1e9)
    assert bounded.is_late("d128")


def test_what_does_not_fit_into_memory_is_left_out_and_said(tmp_path: Path) -> None:
    run = catalog.Run(Report("lookup", quick=False), tmp_path)
    assert not run.lacks_memory(1, "d16")
    assert run.report.remarks == []
    assert run.lacks_memory(1 << 60, "d128")
    assert "d128 needs" in run.report.remarks[0]


def test_samples_that_were_not_interrupted_go_on(tmp_path: Path) -> None:
    catalog.Run(Report("lookup", quick=True), tmp_path).settle(Samples(("ours",)))


def test_the_whole_run_of_the_store_stays_below_thirty_five_minutes() -> None:
    others = {
        "mirror",
        "replica",
        "fleet",
        "scaling",
        "freshness",
        "drift",
        "films",
        "ranks",
        "zoo",
        "train",
        "data",
        "features",
    }
    others |= {
        "session",
        "transports",
        "engine",
        "triton",
        "shadow",
        "sessions_by_load",
        "observing",
        "load_generators",
        "held_rate",
    }
    others |= {"gpu_sessions", "gpu_lookup", "gpu_tiers", "gpu_training", "plan_accuracy", "import_tables"}
    others |= {"any_model_delta", "fallback", "snapshot_reads"}
    assert all_store.BOUNDS_S.keys() == catalog.BENCHMARKS.keys() - others
    # A benchmark that must be ended takes GRACE_S longer; not all of them will.
    assert sum(all_store.BOUNDS_S.values()) <= 35 * 60 - 10


def test_the_whole_run_starts_the_command_that_there_is(tmp_path: Path) -> None:
    ended = all_store.run_one("poling", tmp_path, quick=True, bound_s=60.0)
    assert "did you mean 'pooling'?" in ended.text
    assert ended.how.startswith("failed with ")


def test_the_summary_names_what_is_missed() -> None:
    rows = [
        {"claim": "a", "against": "b", "ratio": 0.5, "target": 1.0, "holds": False},
        {"claim": "c", "against": "d", "ratio": 2.0, "target": 1.0, "holds": True},
        {"claim": "e", "against": "f", "ratio": 2.0, "target": None, "holds": None},
    ]
    ended = [all_store.Ended("lookup", "", rows, "complete", 1.0), all_store.Ended("ssd", "", [], "failed with 1", 1.0)]
    lines = all_store.summary(ended)
    assert lines[0] == "1 of 2 targets are reached."
    assert "missed: lookup: a / b: 0.500" in lines[1]
    assert "ssd: failed with 1" in lines[2]
