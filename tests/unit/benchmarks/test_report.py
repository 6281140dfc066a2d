"""Rows, their JSON, their table and their picture."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.measure import Samples
from benchmarks.report import Report, figure
from storage.errors import ConfigError

SAMPLES = Samples(
    ("ours", "peer"),
    [{"ours": 2e6, "peer": 1e6}, {"ours": 9e6, "peer": 3e6}, {"ours": 8e6, "peer": 2e6}],
    [False, False, False],
)
KEYS = {"claim", "ours", "other", "ratio", "target", "holds", "spread", "repeats"}


def report_of(*targets: float | None) -> Report:
    report = Report("lookup", quick=False)
    for target in targets:
        report.compare("speed", SAMPLES, "peer", unit="M/s", scale=1e-6, target=target)
    return report


def test_a_row_is_made_of_the_ratios_within_repeats() -> None:
    (row,) = report_of(2.5).rows
    assert (row.ours, row.other) == pytest.approx((8.0, 2.0))
    assert row.ratio == pytest.approx(3.0)  # of 2, 3 and 4; not 8 / 2
    assert row.spread == pytest.approx((2.0, 4.0))
    assert (row.repeats, row.dropped, row.disturbed) == (3, 0, False)
    assert row.holds is True


@pytest.mark.parametrize(("target", "holds"), [(3.0, True), (3.001, False), (None, None)])
def test_a_target_holds_at_its_value(target: float | None, holds: bool | None) -> None:
    assert report_of(target).rows[0].holds is holds


def test_less_may_be_better() -> None:
    report = Report("lookup", quick=False)
    report.pairs("overhead", [0.3, 0.3], [0.6, 0.9], "bound", unit="us", target=1.0, less_is_better=True)
    assert report.rows[0].ratio == pytest.approx(2.5)
    assert report.rows[0].holds is True


def test_nothing_of_nothing_is_reached_and_something_is_not() -> None:
    report = Report("update", quick=False)
    report.pairs("torn rows", [0.0], [0.0], "bound", unit="rows", target=1.0, less_is_better=True)
    report.pairs("torn rows", [2.0], [0.0], "bound", unit="rows", target=1.0, less_is_better=True)
    assert [row.holds for row in report.rows] == [True, False]
    assert len(report.missed) == 1


def test_without_a_repeat_there_is_no_row() -> None:
    report = Report("lookup", quick=False)
    report.compare("speed", Samples(("ours", "peer"), interrupted=True), "peer", unit="M/s")
    assert report.rows == []


def test_the_json_has_the_keys_that_are_promised(tmp_path: Path) -> None:
    report = report_of(1.0, None)
    report.pairs("endless", [1.0], [0.0], "nothing", unit="x")
    report.write_json(tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 3
    for row in rows:
        assert row.keys() >= KEYS
        assert isinstance(row["claim"], str)
        assert isinstance(row["repeats"], int)
        assert len(row["spread"]) == 2
    assert rows[0]["holds"] is True
    assert rows[1]["target"] is None
    assert rows[1]["holds"] is None
    assert rows[2]["ratio"] is None  # infinite is no JSON


def test_json_that_cannot_be_written_is_said() -> None:
    with pytest.raises(ConfigError, match=r"--json /nowhere/rows\.json"):
        report_of(1.0).write_json(Path("/nowhere/rows.json"))


def test_the_table_shows_every_row_and_says_what_is_rough() -> None:
    report = report_of(5.0, 1.0)
    report.quick = report.interrupted = True
    report.pairs("busy [x]", [1.0], [2.0], "peer", unit="s", disturbed=True)
    report.remark("said once")
    report.remark("said once")
    console = Console(width=170, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    report.print(console)
    console.file.close()
    text = console.export_text()
    assert "quick: rough figures" in text
    assert "interrupted: 3 rows are complete" in text
    assert "busy [x] [s]" in text
    assert text.count("said once") == 1
    assert "NO" in text
    assert "1!" in text


def test_the_picture_is_written(tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed (the extra `bench`)")
    from benchmarks.plot import plot

    report = report_of(1.0, 5.0, None)
    plot(report, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match="--plot"):
        plot(report, tmp_path / "rows.nonsense")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123456, "0.0123"), (1.23456, "1.235"), (123456.0, "123,456"), (math.inf, "-")]
)
def test_figures_have_the_digits_that_count(value: float, text: str) -> None:
    assert figure(value) == text
