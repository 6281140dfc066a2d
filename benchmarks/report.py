"""Holds the findings of a benchmark: rows of one shape, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.measure import Samples, median
from storage.errors import ConfigError


@dataclass(frozen=True)
class Row:
    """One claim and its figures."""

    claim: str
    #: Median of our figure, in `unit`.
    ours: float
    #: Median of the other's figure, in `unit`.
    other: float
    #: Median of the ratios within each repeat: ours by other, or other by ours where less is better, so more is better.
    ratio: float
    #: The value that the ratio must reach; None for a figure without a target.
    target: float | None
    #: Whether the ratio reaches the target; None without one.
    holds: bool | None
    #: The least and the greatest of the ratios.
    spread: tuple[float, float]
    #: Repeats that were counted.
    repeats: int
    unit: str
    #: What `other` is: a peer, a limit, a bound.
    against: str
    #: Repeats that were dropped as disturbed.
    dropped: int = 0
    #: Too few repeats were quiet, so all were counted, and the figures are rough.
    disturbed: bool = False
    note: str = ""


@dataclass
class Report:
    """The rows of one benchmark. quick: rough figures, few repeats on small tables."""

    name: str
    quick: bool
    rows: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    interrupted: bool = False
    #: Lines of a picture of its own, name -> points; drawn by `draw` of the benchmark.
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def compare(
        self,
        claim: str,
        samples: Samples,
        against: str,
        *,
        unit: str,
        target: float | None = None,
        ours: str = "ours",
        scale: float = 1.0,
        less_is_better: bool = False,
        note: str = "",
    ) -> None:
        """Adds a row from repeats that measured `ours` and `against` side by side. Adds nothing without a repeat.

        scale: factor that converts the figures to `unit`.
        """
        mine, theirs = samples.values(ours), samples.values(against)
        self.pairs(
            claim,
            [value * scale for value in mine],
            [value * scale for value in theirs],
            against,
            unit=unit,
            target=target,
            less_is_better=less_is_better,
            dropped=samples.dropped,
            disturbed=not samples.is_clean,
            note=note,
        )

    def pairs(
        self,
        claim: str,
        ours: Sequence[float],
        other: Sequence[float],
        against: str,
        *,
        unit: str,
        target: float | None = None,
        less_is_better: bool = False,
        dropped: int = 0,
        disturbed: bool = False,
        note: str = "",
    ) -> None:
        """Adds a row from pairs of figures, one for each repeat."""
        if not ours:
            return
        pairs = list(zip(ours, other, strict=True))
        ratios = [_ratio(theirs, mine) if less_is_better else _ratio(mine, theirs) for mine, theirs in pairs]
        ratio = median(ratios)
        self.rows.append(
            Row(
                claim=claim,
                ours=median(ours),
                other=median(other),
                ratio=ratio,
                target=target,
                holds=None if target is None else bool(ratio >= target),
                spread=(min(ratios), max(ratios)),
                repeats=len(ratios),
                unit=unit,
                against=against,
                dropped=dropped,
                disturbed=disturbed,
                note=note,
            )
        )

    def remark(self, text: str) -> None:
        """Adds a line below the table, unless it is there already."""
        if text not in self.remarks:
            self.remarks.append(text)

    @property
    def missed(self) -> list[Row]:
        """The rows whose target is not reached."""
        return [row for row in self.rows if row.holds is False]

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the rows as plain values; NaN and infinity become null."""
        return [{name: _plain(value) for name, value in asdict(row).items()} for row in self.rows]

    def write_json(self, path: Path) -> None:
        """Writes the rows as JSON. Raises ConfigError if the file cannot be written."""
        try:
            path.write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {path}: {error.strerror or error}", field="json") from error

    def print(self, console: Console) -> None:
        """Prints the table, then the remarks."""
        table = Table(title=self._title(), title_justify="left", show_lines=False, pad_edge=False)
        table.add_column("claim", overflow="fold")
        for column in ("ours", "other"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("against", overflow="fold")
        for column in ("ratio", "target", "spread", "repeats"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("holds", no_wrap=True)
        for row in self.rows:
            table.add_row(
                escape(f"{row.claim} [{row.unit}]" + (f" ({row.note})" if row.note else "")),
                figure(row.ours),
                figure(row.other),
                escape(row.against),
                f"{row.ratio:.2f}" if row.ratio < 100 else f"{row.ratio:,.0f}",
                "" if row.target is None else f"{row.target:.3g}",
                f"{row.spread[0]:.2f}..{row.spread[1]:.2f}",
                f"{row.repeats}" + (f" (-{row.dropped})" if row.dropped else "") + ("!" if row.disturbed else ""),
                {None: "", True: "[green]yes[/green]", False: "[red]NO[/red]"}[row.holds],
            )
        console.print(table)
        if any(row.disturbed for row in self.rows):
            self.remark(
                "!: other processes were busy beside nearly every repeat; all are counted, the figures are rough"
            )
        for remark in self.remarks:
            console.print(f"- {remark}", markup=False, highlight=False, soft_wrap=True)

    def _title(self) -> str:
        parts = [self.name]
        if self.quick:
            parts.append("quick: rough figures")
        if self.interrupted:
            parts.append(f"interrupted: {len(self.rows)} rows are complete")
        return ", ".join(parts)


def figure(value: float) -> str:
    """Formats a value with three or four significant digits."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def _ratio(above: float, below: float) -> float:
    if below == 0:
        return 1.0 if above == 0 else math.inf
    return above / below


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value
