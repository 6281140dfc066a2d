"""The page of a GPU's figures is what its sources make, and measured figures find their place in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.gpu import figures, prediction_rows, prediction_sessions
from benchmarks.gpu.measured import Line, measured, read_results

LINES = [*prediction_sessions.lines(), *prediction_rows.row_lines()]
SESSIONS = "graph, bf16, batch 512, launch to result"


def row(claim: str, against: str, **values: object) -> dict[str, object]:
    usual = {"ours": 1.5, "other": 3.0, "ratio": 2.0, "unit": "us", "disturbed": False}
    return {"claim": claim, "against": against, **usual, **values}


def write(
    folder: Path, name: str, rows: list[dict[str, object]], *, rehearsal: bool = False, gpu: str = "H100"
) -> None:
    content = {"gpu": gpu, "rehearsal": rehearsal, "figures": {"a step": rows}}
    (folder / name).write_text(json.dumps(content))


def line(figure: str) -> Line:
    (found,) = [each for each in LINES if each.figure == figure]
    return found


def test_the_page_is_what_its_sources_make(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["--check"]) == 0, capsys.readouterr().out


def test_a_page_that_was_changed_by_hand_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "gpu-figures.md"
    changed.write_text(figures.PAGE.read_text().replace("| 103 us |", "| 99 us |"))
    monkeypatch.setattr(figures, "PAGE", changed)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.main(["--check"]) == 1
    assert "is not what its sources make" in capsys.readouterr().out
    assert figures.main([]) == 0
    assert figures.main(["--check"]) == 0


def test_measured_figures_come_from_the_last_result_of_each_gpu_and_rehearsals_are_none(tmp_path: Path) -> None:
    graph = line("graph over eager, bf16, batch 512")
    write(tmp_path, "2026-01-01-gpu-part3.json", [row(SESSIONS, "eager", ratio=2.0)])
    write(tmp_path, "2026-01-02-gpu-part3.json", [row(SESSIONS, "eager", ratio=2.5), row(SESSIONS, "floor", ratio=9.0)])
    write(tmp_path, "2026-01-03-gpu-part3.json", [row(SESSIONS, "eager", ratio=3.0, disturbed=True)], gpu="H200")
    write(tmp_path, "2026-01-04-gpu-part3.json", [row(SESSIONS, "eager", ratio=7.0)], rehearsal=True)
    results = read_results(tmp_path)
    assert measured(graph, results) == "2.50x (H100); 3.00x! (H200)"
    assert measured(line("soak: wrong scores"), results) == ""
    text = figures.page(results)
    assert "**Measured on H100, H200.**" in text
    assert (
        f"| {graph.figure} | {graph.target} | {graph.predicted[0]} | {graph.by} | 2.50x (H100); 3.00x! (H200) |" in text
    )


def test_figures_of_their_own_have_their_unit(tmp_path: Path) -> None:
    claim = "4,096 ids, d128 fp32, all hit, one of 50 in a graph, on the GPU"
    write(tmp_path, "2026-01-01-gpu-part2.json", [row(claim, "bound", ours=13.25)])
    assert measured(line("4,096 ids, d128 fp32, one graph"), read_results(tmp_path)) == "13.2 us (H100)"


@pytest.mark.parametrize("each", LINES, ids=lambda each: each.figure)
def test_every_line_has_a_target_that_can_be_read_and_a_figure_for_each_column(each: Line) -> None:
    assert re.fullmatch(r"|(>=|<=|>)? ?[\d.]+ ?(x|%|us|ms|G|M ids/s)?", each.target), each.target
    assert all(each.predicted)
    assert "|" not in each.figure + each.by
