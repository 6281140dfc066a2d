"""Writes the table of docs/published-models.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.libraries.trials import ANSWERED, Trial

PAGE = Path(__file__).parents[2] / "docs" / "published-models.md"
BEGIN, END = "<!-- table: python -m benchmarks.libraries --write-page -->", "<!-- end of the table -->"
_REASON = 160


def table(trials: Sequence[Trial]) -> str:
    """Returns a table in Markdown for each library and family, with the count of each library."""
    parts = []
    for library in dict.fromkeys(trial.library for trial in trials):
        own = [trial for trial in trials if trial.library == library]
        answered = sum(trial.state == ANSWERED for trial in own)
        parts.append(f"### {library}\n\n{answered} of {len(own)} models are answered as torch does.\n")
        parts.append("| model | family | served | largest difference | publishing |\n|---|---|---|---|---|")
        parts += [_row(trial) for trial in own]
        parts.append("")
    return "\n".join(parts)


def _row(trial: Trial) -> str:
    if trial.state == ANSWERED:
        assert trial.difference is not None
        return f"| {trial.name} | {trial.family} | yes | {trial.difference:.1e} | {trial.publish_s:.1f} s |"
    return f"| {trial.name} | {trial.family} | {trial.state}: {shown(trial.reason)} | | |"


def shown(reason: str) -> str:
    """Returns a reason as it stands in a cell: without places on this machine, and short."""
    text = re.sub(r"/\S*/build/libraries/", "", reason).replace("|", "\\|")
    return text if len(text) <= _REASON else text[:_REASON].rsplit(" ", 1)[0] + " ..."


def rewritten(page: str, trials: Sequence[Trial]) -> str:
    """Returns a page with the table between its two marks replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table(trials)}\n{END}{after}"


def stated(page: str) -> dict[str, str]:
    """Returns library/model -> the third column of its row, for all rows of the table."""
    found: dict[str, str] = {}
    library = ""
    for line in page.split(BEGIN)[1].split(END)[0].splitlines():
        if line.startswith("### "):
            library = line.removeprefix("### ")
        elif line.startswith("| ") and not line.startswith("| model "):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[f"{library}/{cells[0]}"] = cells[2]
    return found
