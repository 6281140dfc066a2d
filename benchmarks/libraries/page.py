"""Reads and writes the table of docs/published-models.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.libraries.trials import ANSWERED, Trial

PAGE = Path(__file__).parents[2] / "docs" / "published-models.md"
BEGIN, END = "<!-- table: python -m benchmarks.libraries --write-page -->", "<!-- end of the table -->"
_HEAD = "| model | family | served | largest difference | publishing |\n|---|---|---|---|---|"
_REASON = 160


def rewritten(page: str, trials: Sequence[Trial], models: Sequence[str]) -> str:
    """Returns a page with new rows for the models that were tried; others keep theirs.

    models: LIBRARY/MODEL of all models, in order; one without a row and without a trial is left out.
    """
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    rows = _rows(page) | {f"{trial.library}/{trial.name}": _row(trial) for trial in trials}
    return f"{before}{BEGIN}\n\n{_table({name: rows[name] for name in models if name in rows})}\n{END}{after}"


def stated(page: str) -> dict[str, str]:
    """Returns LIBRARY/MODEL -> the third column of its row, for all rows of the table."""
    return {name: _served(row) for name, row in _rows(page).items()}


def shown(reason: str) -> str:
    """Returns a reason as it stands in a cell: without places on this machine, and short."""
    text = re.sub(r"/\S*/build/libraries/", "", reason).replace("|", "\\|")
    return text if len(text) <= _REASON else text[:_REASON].rsplit(" ", 1)[0] + " ..."


def _rows(page: str) -> dict[str, str]:
    found: dict[str, str] = {}
    library = ""
    for line in page.split(BEGIN)[1].split(END)[0].splitlines():
        if line.startswith("### "):
            library = line.removeprefix("### ")
        elif line.startswith("| ") and not line.startswith("| model "):
            found[f"{library}/{_cells(line)[0]}"] = line
    return found


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def _served(row: str) -> str:
    return _cells(row)[2]


def _row(trial: Trial) -> str:
    if trial.state == ANSWERED:
        assert trial.difference is not None
        return f"| {trial.name} | {trial.family} | yes | {trial.difference:.1e} | {trial.publish_s:.1f} s |"
    return f"| {trial.name} | {trial.family} | {trial.state}: {shown(trial.reason)} | | |"


def _table(rows: Mapping[str, str]) -> str:
    """Returns a table in Markdown for each library, with the count of its models that are served."""
    parts: list[str] = []
    for library in dict.fromkeys(name.split("/")[0] for name in rows):
        own = [row for name, row in rows.items() if name.startswith(f"{library}/")]
        answered = sum(_served(row) == "yes" for row in own)
        parts += [f"### {library}\n\n{answered} of {len(own)} models are answered as torch does.\n", _HEAD, *own, ""]
    return "\n".join(parts)
