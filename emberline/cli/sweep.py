"""`emberline sweep`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emberline.cli.command import Command, LocalPath
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.data_options import DATA, VALID
from emberline.cli.train import validation
from emberline.fitted_table import FittedTable, wrapping
from emberline.terminal import progress_console
from storage.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from emberline.sweep.plan import SweepPlan
    from emberline.sweep.run import Sweep, TrialResult
    from emberline.sweep.space import Parameter

_ERROR_LINES = 2


@click.command(
    cls=Command,
    name="sweep",
    epilog="""\b
Values (--set PATH=VALUES):
  model.dropout=0.0,0.1,0.2           these values; lists in brackets: model.top=[64,32],[128,64]
  model.dropout=0.0..0.5              any number between, ends included
  optimizer.sparse.lr=log:0.01..1.0   the same, by the logarithm: for rates and penalties
  training.batch_size=256..2048/256   whole numbers, in steps of 256
  tables.*.dim=8,16,32                one value for all tables; tables.items.dim is that of one
\b
The same in a file (--sweep sweep.yaml):
  metric: auc
  parameters:
    model.dropout: [0.0, 0.1, 0.2]
    optimizer.sparse.lr: {log: [0.01, 1.0]}
    training.batch_size: {integers: [256, 2048], step: 256}
\b
Examples:
  emberline sweep model.yaml --data clicks/ --valid 0.1 --set optimizer.sparse.lr=log:0.01..1.0 --output sweeps/lr
  emberline sweep model.yaml --data clicks/ --valid 0.1 --sweep sweep.yaml --trials 50 --jobs 4 --prune \\
      --output sweeps/wide
  emberline sweep model.yaml --data clicks/ --valid 0.1 --sweep sweep.yaml --output sweeps/wide --resume
  emberline train sweeps/wide/best.yaml --data clicks/ --output runs/shop --repository model_repo""",
)
@click.argument("config", type=LocalPath(exists=True, dir_okay=False))
@DATA
@VALID
@click.option("--limit", type=click.IntRange(1), help="Train on the first rows of --data only.")
@click.option("--sweep", "file", type=LocalPath(exists=True, dir_okay=False), help="YAML file of parameters.")
@click.option(
    "--set", "given", metavar="PATH=VALUES", multiple=True, help="Values of one parameter; may be given several times."
)
@click.option("--trials", type=click.IntRange(1), help="Trainings in all; 20, and for a grid all combinations.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, help="Trainings at a time, which share the cores.")
@click.option("--output", type=LocalPath(file_okay=False), required=True, help="Folder of the sweep and its trials.")
@click.option("--metric", help="Figure of the evaluation to judge by, or `loss` of training.  [default: the first]")
@click.option(
    "--direction",
    type=click.Choice(["maximize", "minimize"]),
    help="Which values are better; without it losses and errors are minimized, all else is maximized.",
)
@click.option(
    "--sampler",
    type=click.Choice(["tpe", "random", "grid"]),
    help="How values are chosen: by what did well (tpe), at random, or all combinations.  [default: tpe]",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of the sampler.  [default: 1]")
@click.option("--prune", is_flag=True, help="Stop trials that are worse after an epoch than the median so far.")
@click.option("--resume", is_flag=True, help="Go on with the sweep in --output, whose command this repeats.")
@click.option(
    "--track", type=click.Choice(["tensorboard", "mlflow"]), help="Track each trial, as `emberline train --track` does."
)
@JSON
@click.option("--quiet", is_flag=True, help="No progress; the table at the end only.")
def command(
    config: Path,
    data: tuple[Path | str, ...],
    valid: str | None,
    limit: int | None,
    file: Path | None,
    given: tuple[str, ...],
    trials: int | None,
    jobs: int,
    output: Path,
    metric: str | None,
    direction: str | None,
    sampler: str | None,
    seed: int | None,
    prune: bool,
    resume: bool,
    track: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train CONFIG with many values of its settings, and find the best.

    Each trial is an `emberline train` in a process and a folder of its own, OUTPUT/trials/NUMBER. A trial that fails is
    noted with its last lines, and the sweep goes on. The first one has the values of CONFIG, if they are among those to
    try. Ctrl-C saves the trials under way; --resume goes on with them. Paths are those of the configuration
    (docs/training.md). OUTPUT/best.yaml is the configuration of the best trial, OUTPUT/page.html compares all of them,
    and trials.json has the figures.
    """
    from emberline.sweep.page import write_sweep_page
    from emberline.sweep.plan import plan_of
    from emberline.sweep.run import Sweep
    from trainer.config import load_config

    settings = load_config(config)
    in_file = _read_file(file)
    validation(valid)
    sampler = sampler or in_file.get("sampler", "tpe")
    plan = plan_of(
        settings,
        _parameters(file, in_file, given),
        data,
        output=output,
        source=str(config),
        valid=valid,
        limit=limit,
        track=track,
        metric=metric or in_file.get("metric"),
        direction=direction or in_file.get("direction"),  # type: ignore[arg-type]
        sampler=sampler,  # type: ignore[arg-type]
        trials=trials or in_file.get("trials"),
        jobs=jobs,
        seed=in_file.get("seed", 1) if seed is None else seed,
        prune=prune,
    )
    with _Progress(quiet) as progress:
        sweep = Sweep(plan, resume=resume, on_change=progress.changed, on_end=progress.ended)
        progress.begin(sweep)
        try:
            sweep.run()
        except KeyboardInterrupt:
            write_sweep_page(plan)
            _show(sweep, as_json)
            raise KeyboardInterrupt(
                "stopped; trials under way have saved their state. Run the same command with --resume to go on"
            ) from None
    write_sweep_page(plan)
    _show(sweep, as_json)
    if sweep.best() is None:
        raise InvalidInput(f"no trial came to its end; {output}/trials/*/log.txt says why")


def _read_file(file: Path | None) -> dict[str, Any]:
    import yaml

    from storage.features.strict_model import did_you_mean

    if file is None:
        return {}
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected a mapping with `parameters`, got {type(content).__name__}")
    kinds: dict[str, Any] = {"metric": str, "direction": str, "sampler": str, "seed": int, "trials": int}
    for key, value in content.items():
        if key not in (*kinds, "parameters"):
            raise ConfigError(f"{file}: {key}: unknown key{did_you_mean(str(key), (*kinds, 'parameters'))}", field=key)
        if key in kinds and (not isinstance(value, kinds[key]) or isinstance(value, bool)):
            raise ConfigError(f"{file}: {key}: expected {'text' if kinds[key] is str else 'a number'}, got {value!r}")
    for key, known in (("direction", ("maximize", "minimize")), ("sampler", ("tpe", "random", "grid"))):
        if key in content and content[key] not in known:
            raise ConfigError(f"{file}: {key}: expected one of {', '.join(known)}, got {content[key]!r}", field=key)
    return content


def _parameters(file: Path | None, in_file: dict[str, Any], given: tuple[str, ...]) -> tuple[Parameter, ...]:
    from emberline.sweep.space import from_mapping, from_text

    listed = from_mapping(in_file["parameters"], str(file)) if "parameters" in in_file else ()
    set_here = tuple(map(from_text, given))
    here = {each.path for each in set_here}
    found = (*(each for each in listed if each.path not in here), *set_here)
    if not found:
        raise click.UsageError("nothing to try: give --set PATH=VALUES, or --sweep FILE with `parameters`")
    return found


class _Progress:
    """Prints a line for each trial that ends, and below them how far the sweep is."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = progress_console()
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("trials"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("trials", note="")
        self._sweep: Sweep | None = None

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, sweep: Sweep) -> None:
        self._sweep = sweep
        done = sum(each.state != "running" for each in sweep.results())
        self._bar.update(self._task, total=sweep.wanted, completed=done)

    def changed(self, running: int) -> None:
        assert self._sweep is not None
        results = self._sweep.results()
        best = self._sweep.best()
        note = f"{running} running"
        if best is not None:
            note += f"  best {self._sweep.plan.metric} {best.metric:.5f} (trial {best.number})"
        done = sum(each.state != "running" for each in results)
        self._bar.update(self._task, completed=done, note=note)

    def ended(self, result: TrialResult) -> None:
        assert self._sweep is not None
        if self._quiet:
            return
        values = "  ".join(f"{path}={_value(value)}" for path, value in result.values.items())
        what = f"{self._sweep.plan.metric} {result.metric:.5f}" if result.metric is not None else _STATES[result.state]
        error = "".join(f"\n    {line}" for line in result.error.splitlines()[-_ERROR_LINES:])
        self._console.print(f"trial {result.number}: {what}  {values}{error}", markup=False, soft_wrap=True)


_STATES = {"complete": "done", "fail": "failed", "pruned": "stopped early", "running": "not ended"}


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")


def _document(sweep: Sweep) -> dict[str, Any]:
    plan, best = sweep.plan, sweep.best()
    return {
        "output": str(plan.output),
        "metric": plan.metric,
        "direction": "minimize" if plan.minimize else "maximize",
        "best": None if best is None else best.number,
        "trials": [asdict(each) for each in sweep.ranked()],
    }


def _show(sweep: Sweep, as_json: bool) -> None:
    plan: SweepPlan = sweep.plan
    if as_json:
        print_json(_document(sweep))
        return
    names = (plan.metric, *(each.path for each in plan.parameters))
    table = FittedTable("trial", *names, "seconds", wrapping("end"), title=f"trials by {plan.metric}")
    for each in sweep.ranked():
        table.add_row(
            str(each.number),
            "" if each.metric is None else f"{each.metric:.5f}",
            *(_value(each.values.get(parameter.path, "")) for parameter in plan.parameters),
            "" if each.seconds is None else f"{each.seconds:.1f}",
            _STATES[each.state] + (f": {each.error.splitlines()[-1]}" if each.error else ""),
        )
    table_console().print(table)
    best = sweep.best()
    if best is not None:
        click.echo(f"best: trial {best.number}, {plan.metric} {best.metric:.5f}: {plan.output / 'best.yaml'}")
        click.echo(f"all of them: {plan.output / 'page.html'}, or emberline compare {plan.output}")
        click.echo(f"train it with: emberline train {plan.output / 'best.yaml'} --data DATA --output DIR")
        click.echo(f"publish it with: emberline publish {sweep.folder(best.number) / 'run'} --repository DIR")
