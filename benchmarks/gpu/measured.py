"""Pairs predicted figures with what a GPU measured, by the results of tests/gpu/hour.py."""

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
    """Selects a figure among a benchmark's rows."""

    #: A pattern that must match the whole of a row's claim.
    claim: str
    #: The row's `against`; "" for any.
    against: str = ""
    #: Whether the figure is the row's own figure or its ratio.
    value: Literal["ours", "ratio"] = "ratio"

    def text(self, rows: Sequence[dict[str, Any]]) -> str:
        """Returns the figure of the last row that matches; "" when none does."""
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
    """One row of a table."""

    figure: str
    target: str
    #: The predictions by GPU, in the order of the table's columns.
    predicted: tuple[str, ...]
    by: str
    #: Selects the measured figure; None when no benchmark measures it.
    found: Found | None = None


@dataclass(frozen=True)
class Result:
    """The findings of one run of a part."""

    #: The GPU's name.
    gpu: str
    rows: list[dict[str, Any]]


def read_results(folder: Path = RESULTS) -> list[Result]:
    """Returns the result files of all parts, the oldest first, without rehearsals."""
    return list(_results(folder))


def _results(folder: Path) -> Iterator[Result]:
    for path in sorted(folder.glob("*-gpu-part[0-9].json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not content["rehearsal"]:
            yield Result(content["gpu"], [row for rows in content["figures"].values() for row in rows])


def measured(line: Line, results: Sequence[Result]) -> str:
    """Returns the last measured figure of a line for each GPU; "" while there is none."""
    if line.found is None:
        return ""
    texts: dict[str, str] = {}
    for result in results:
        text = line.found.text(result.rows)
        if text:
            texts[result.gpu] = text
    return "; ".join(f"{text} ({gpu})" for gpu, text in texts.items())


def markdown(lines: Sequence[Line], columns: Sequence[str], by: str, results: Sequence[Result]) -> str:
    """Returns a table in Markdown. columns: names of the predicted ones. by: heading of the reasons."""
    head = ["figure", "target", *columns, by, "measured"]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in lines:
        cells = [line.figure, line.target, *line.predicted, line.by]
        table.append(f"| {' | '.join(cells)} | {measured(line, results)} |".replace("|  |", "| |"))
    return "\n".join(table)
