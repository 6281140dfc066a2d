"""Lines of predicted figures, and what a GPU said of them: by the results of tests/gpu/hour.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Found:
    """Where a figure is among a benchmark's rows. claim: a pattern that the whole of a row's claim fits. against: of
    the row; "" for any. value: the row's own figure, or its ratio.
    """

    claim: str
    against: str = ""
    value: Literal["ours", "ratio"] = "ratio"

    def text(self, rows: Sequence[dict[str, Any]]) -> str:
        """The figure of the last row that fits; "" of none."""
        fitting = [
            row
            for row in rows
            if re.fullmatch(self.claim, row["claim"]) and (not self.against or row["against"] == self.against)
        ]
        if not fitting:
            return ""
        row = fitting[-1]
        rough = "!" if row["disturbed"] else ""
        return f"{row['ratio']:.2f}x{rough}" if self.value == "ratio" else f"{row['ours']:.3g} {row['unit']}{rough}"


@dataclass(frozen=True)
class Line:
    """One row of a table. predicted: by GPU, in the order of the table's columns. found: None for what no benchmark
    measures.
    """

    figure: str
    target: str
    predicted: tuple[str, ...]
    by: str
    found: Found | None = None


@dataclass(frozen=True)
class Result:
    """What one run of a part found. gpu: its name."""

    gpu: str
    rows: list[dict[str, Any]]


def read_results(folder: Path = RESULTS) -> list[Result]:
    """Of every result file of a part, the oldest first; rehearsals are none."""
    return list(_results(folder))


def _results(folder: Path) -> Iterator[Result]:
    for path in sorted(folder.glob("*-gpu-part[0-9].json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not content["rehearsal"]:
            yield Result(content["gpu"], [row for rows in content["figures"].values() for row in rows])


def measured(line: Line, results: Sequence[Result]) -> str:
    """What the last run of each GPU found of a line; "" while none has."""
    if line.found is None:
        return ""
    texts: dict[str, str] = {}
    for result in results:
        text = line.found.text(result.rows)
        if text:
            texts[result.gpu] = text
    return "; ".join(f"{text} ({gpu})" for gpu, text in texts.items())


def markdown(lines: Sequence[Line], columns: Sequence[str], by: str, results: Sequence[Result]) -> str:
    """A table. columns: names of the predicted ones. by: of the reasons."""
    head = ["figure", "target", *columns, by, "measured"]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in lines:
        cells = [line.figure, line.target, *line.predicted, line.by]
        table.append(f"| {' | '.join(cells)} | {measured(line, results)} |".replace("|  |", "| |"))
    return "\n".join(table)
