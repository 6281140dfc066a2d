"""Breaks a disk, a delta, a client, a GPU and members of a fleet, one after the other, as a night may bring them.

    python -m tests.faults.night                          # all of them, about four minutes
    python -m tests.faults.night --fault stuck-client

For each fault, real servers are scraped by a real Prometheus with the rules of deploy/, whose times are shorter. When
the alert fires, the drill reads the alert, `emberline status`, `emberline snapshots`, what the console shows, the page
of the runbook, and what the commands on that page print. It prints what named the cause, and exits with 1 where a place
that should does not.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from storage.errors import Unavailable
from tests.faults.night.drill import FAULTS, PLACES, Outcome, drill
from tests.support.alerts.prometheus import RULES, Prometheus
from tests.support.alerts.shortened import shortened


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.night",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in FAULTS], help="default: all")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    outcomes: list[Outcome] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="night-") as folder:
        prometheus = Prometheus(Path(folder), shortened(RULES.read_text()))
        with contextlib.closing(prometheus):
            for fault in FAULTS:
                if options.fault and fault.name not in options.fault:
                    continue
                try:
                    outcomes.append(drill(fault, prometheus))
                except Unavailable as error:
                    print(f"{fault.name}: cannot be caused on this machine: {error}", file=sys.stderr)
                except AssertionError as error:
                    print(f"{fault.name}: FAILED: {str(error)[:2000]}", file=sys.stderr)
                    failed = True
    show(outcomes)
    return int(failed or not outcomes or any(outcome.missing for outcome in outcomes))


def show(outcomes: list[Outcome]) -> None:
    """Prints a table, and what is missing."""
    table = Table(title="Seconds from the fault until the alert fired, and what named the cause", title_justify="left")
    for name in ("fault", "alert after", *PLACES):
        table.add_column(name, overflow="fold")
    for outcome in outcomes:
        said = [outcome.said.get(place, "")[:120] if place in outcome.fault.named else "-" for place in PLACES]
        said = [each or "NOT NAMED" for each in said]
        said[0] = f"{outcome.fault.alert}: {said[0]}"
        table.add_row(outcome.fault.name, f"{outcome.seconds:.1f} s", *said)
    console = Console(width=200, markup=False)
    console.print(table)
    for outcome in outcomes:
        if outcome.missing:
            print(f"{outcome.fault.name}: the cause is not named in: {', '.join(outcome.missing)}")


if __name__ == "__main__":
    sys.exit(main())
