"""`emberline compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emberline.cli.command import Command, LocalPath
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.target import check_folder
from emberline.fitted_table import FittedTable, wrapping
from storage.errors import InvalidInput
from storage.features.strict_model import did_you_mean

if TYPE_CHECKING:
    from emberline.comparison.runs import RunFigures


@click.command(
    cls=Command,
    name="compare",
    epilog="""\b
Examples:
  emberline compare runs/shop runs/shop-2
  emberline compare runs/* --output runs.html
  emberline compare sweeps/wide --metric log_loss --output wide.html""",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=LocalPath(exists=True, file_okay=False))
@click.option("--output", type=LocalPath(dir_okay=False), help="HTML page to write, with curves and plots.")
@click.option("--metric", help="Figure to order by.  [default: the first one of the evaluations, or loss]")
@click.option("--overwrite", is_flag=True, help="Replace --output if it is there.")
@JSON
def command(runs: tuple[Path, ...], output: Path | None, metric: str | None, overwrite: bool, as_json: bool) -> None:
    """Compare trainings: figures, curves by epoch, and the parameters that differ.

    RUN is the folder of a training, which may be under way, or of a sweep, whose trials are taken. Names stand for the
    folders; the best run comes first.
    """
    from emberline.comparison.page import ranked, table_of, to_html, write_page
    from emberline.comparison.runs import metric_names, read_runs, smaller_is_better
    from emberline.comparison.sweeps import failed_trials, is_sweep, trial_runs

    if output is not None:
        if output.exists() and not overwrite:
            raise InvalidInput(f"--output {output} is there already; --overwrite replaces it", field="--output")
        check_folder("--output", output)
    folders = [run for path in runs for run in (trial_runs(path) if is_sweep(path) else [path])]
    failed = [entry for path in runs if is_sweep(path) for entry in failed_trials(path)]
    read = read_runs(list(dict.fromkeys(folders)))
    known = metric_names(read)
    metric = metric or known[0]
    if metric not in known:
        raise InvalidInput(f"--metric {metric}: no run has it{did_you_mean(metric, known)}", field="--metric")
    minimize = smaller_is_better(metric)
    if output is not None:
        write_page(output, to_html(", ".join(map(str, runs)), read, metric, minimize=minimize, failed=failed))
    ordered = ranked(read, metric, minimize=minimize)
    if as_json:
        print_json(_document(ordered, metric, minimize, failed))
        return
    columns, rows = table_of(ordered, metric)
    table = FittedTable(
        *(wrapping(name) if name in ("run", "end") else name for name in columns), title=f"runs by {metric}"
    )
    for row in rows:
        table.add_row(*row)
    table_console().print(table)
    for name, reason in failed:
        click.echo(f"{name}: {reason}")
    if output is not None:
        click.echo(f"wrote {output}")


def _document(
    runs: Sequence[RunFigures], metric: str, minimize: bool, failed: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    return {
        "metric": metric,
        "direction": "minimize" if minimize else "maximize",
        "runs": [
            {
                "run": run.name,
                "folder": str(run.folder),
                "finished": run.finished,
                "metrics": run.metrics,
                "totals": run.totals,
                "epochs": run.epochs,
                "parameters": run.parameters,
            }
            for run in runs
        ],
        "failed": [{"run": name, "reason": reason} for name, reason in failed],
    }
