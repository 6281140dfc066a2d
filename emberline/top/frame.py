"""Draws a frame of `emberline top` for a terminal of some size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from emberline.ages import age
from emberline.fitted_table import FittedTable, elided, whole
from emberline.top.figures import TIERS, ModelFigures, ServerFigures
from storage.byte_sizes import human_bytes

#: What models are sorted by, in the order in which a key goes through them.
SORTS: dict[str, Callable[[ModelFigures], float]] = {
    "name": lambda model: 0.0,
    "requests/s": lambda model: model.requests_per_second or 0.0,
    "p99": lambda model: model.p99_ms or 0.0,
    "queue": lambda model: float(model.queued),
    "bytes": lambda model: float(sum(model.bytes.values())),
}
KEYS = "q quit   s sort   p pause"
# Lines beside those of models: two heads of tables of at most two lines, two rules, two blank ones, title and keys.
_OTHER_LINES = 11


@dataclass
class Screen:
    """Holds what a frame shows, and draws it."""

    url: str
    figures: ServerFigures | None = None
    #: Why there are no newer figures, "" where there are.
    trouble: str = ""
    #: When the figures were read (time.time()).
    read_unix: float = 0.0
    sort: str = "name"
    is_paused: bool = False

    def lines(self, width: int, height: int, *, keys: bool = True) -> list[Text]:
        """Returns the lines of the frame. keys: add the line of keys at the end."""
        lines = [_fit(self._title(), width)]
        if self.trouble:
            lines.append(_fit(Text(f"trying again: {self.trouble}", style="red"), width))
        if self.figures is not None:
            lines += self._models(self.figures, width, height - len(lines))
        if keys:
            footer = f"{KEYS}   sorted by {self.sort}{'   paused' if self.is_paused else ''}"
            lines = [*lines[: height - 1], _fit(Text(footer, style="dim"), width)]
        return lines

    def _title(self) -> Text:
        found = self.figures
        if found is None:
            return Text(self.url, style="bold")
        state = "ready" if found.ready else "not ready"
        if self.trouble:
            state = f"as of {max(0, time.time() - self.read_unix):.0f} s ago"
        parts = [self.url, state]
        if found.cpu_utilization is not None:
            parts.append(f"cpu {found.cpu_utilization:.0%}")
        if found.memory_used_bytes is not None and found.memory_total_bytes is not None:
            parts.append(f"memory {human_bytes(found.memory_used_bytes)} of {human_bytes(found.memory_total_bytes)}")
        if found.restarts:
            parts.append(f"{found.restarts} restarts")
        return Text("   ".join(parts), style="bold")

    def _models(self, figures: ServerFigures, width: int, height: int) -> list[Text]:
        if not figures.models:
            return [Text(), Text("it has no models")]
        ordered = sorted(figures.models, key=lambda model: (-SORTS[self.sort](model), model.name))
        shown = ordered[: max(1, (height - _OTHER_LINES) // 2)]
        lines = [Text(), *_requests(shown).lines(width), Text(), *_rows(shown).lines(width)]
        if len(shown) < len(ordered):
            lines.append(Text(f"and {len(ordered) - len(shown)} more", style="dim"))
        return lines


def _requests(models: Sequence[ModelFigures]) -> FittedTable:
    times = ("p50 ms", "p99 ms", "queue")
    table = FittedTable(
        elided("model"), "req/s", "fail/s", *times, "sess.", whole("snapshot"), "age", "deltas", "refused"
    )
    for model in models:
        published = model.published_unix_ms
        table.add_row(
            model.name if model.ready else f"{model.name} (not ready)",
            _number(model.requests_per_second),
            _number(model.failures_per_second),
            _number(model.p50_ms),
            _number(model.p99_ms),
            f"{model.queued:,}",
            str(model.sessions),
            _served(model) + ("*" if model.update_waiting else ""),
            age(published) if published else "",
            f"{model.deltas_applied:,}",
            f"{model.updates_refused:,}",
        )
    return table


def _rows(models: Sequence[ModelFigures]) -> FittedTable:
    tiers = [tier for tier in TIERS if any(tier in (*model.hit_rates, *model.bytes) for model in models)]
    sizes = [tier for tier in tiers if any(model.bytes.get(tier) for model in models)]
    names = [*(f"{tier} %" for tier in tiers), "absent %", *(f"in {tier}" for tier in sizes), "budget"]
    table = FittedTable(elided("model"), *names)
    for model in models:
        budget = model.dram_budget_bytes
        table.add_row(
            model.name,
            *(_share(model.hit_rates.get(tier)) for tier in tiers),
            _share(model.absent_rate),
            *(human_bytes(model.bytes.get(tier, 0)) for tier in sizes),
            "" if budget is None else human_bytes(budget),
        )
    return table


def _served(model: ModelFigures) -> str:
    if model.snapshot is None and model.versions:
        return f"version {', '.join(model.versions)}"
    return model.snapshot or "nothing"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _fit(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line
