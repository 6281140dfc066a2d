"""`emberline publish`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from emberline.cli.command import Command, LocalPath, Repository, WrongUsageError
from emberline.cli.row_types import OPTION_HELP, asked_row_types, print_published
from emberline.cli.target import QUIET
from emberline.plain_module import is_function
from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean
from storage.objects import is_url

if TYPE_CHECKING:
    from trainer.publishing import Outcome, WantedKind


@click.command(
    cls=Command,
    name="publish",
    epilog="""\b
A training run:
  emberline publish build/run --repository build/models
  emberline publish build/run --repository build/models --delta
  emberline publish build/run --repository build/models --from 3.17
  emberline publish build/run --repository build/models --row-type int8 --row-type item=bf16

\b
A torch module, from a file with a function such as
  def make():
      return Ranker(), {"items": torch.zeros(4, 10, dtype=torch.int64)}
  emberline publish ranker.py:make --repository build/models --name ranker
  emberline publish ranker.py:make --weights new.safetensors --against build/models/ranker

\b
The same from Python:
  emberline.publish(module, sample_batch, repository, name=..., delta=True)""",
)
@click.argument("new", metavar="RUN|FILE.py:FUNCTION")
@click.option(
    "--against",
    metavar="MODEL",
    help="Model that is published, a folder or URL such as build/models/ranker: compare with its newest snapshot, and "
    "publish what changed as a delta.",
)
@click.option(
    "--repository",
    type=Repository(),
    help="Model repository to publish into, a folder or a URL such as s3://bucket/models. Default: that of --against.",
)
@click.option("--name", help="Name of the model of a FUNCTION; a RUN has its own.")
@click.option(
    "--weights",
    type=LocalPath(exists=True, dir_okay=False),
    help="Weights to load into the module of a FUNCTION: a safetensors file, or a state_dict saved by torch.",
)
@click.option("--delta-only", is_flag=True, help="With --against: fail where only a version would do.")
@click.option("--delta", is_flag=True, help="Publish what changed since the newest snapshot of the RUN.")
@click.option("--cumulative", is_flag=True, help="Publish all changes of the RUN since the version, as one delta.")
@click.option("--version", type=click.IntRange(1), help="Number of the version; default: the next one.")
@click.option(
    "--from",
    "from_snapshot",
    metavar="SNAPSHOT",
    help="Continue this snapshot (VERSION.SEQUENCE or its id), e.g. the one that a rollback went back to. A delta "
    "then, if nothing else is asked for.",
)
@click.option("--row-type", "row_types", metavar="TYPE", multiple=True, help=OPTION_HELP)
@QUIET
def command(
    new: str,
    against: str | None,
    repository: Path | str | None,
    name: str | None,
    weights: Path | None,
    delta_only: bool,
    delta: bool,
    cumulative: bool,
    version: int | None,
    from_snapshot: str | None,
    row_types: tuple[str, ...],
    quiet: bool,
) -> None:
    """Publish a model: the newest checkpoint of the training output RUN, or the torch module that FUNCTION makes.

    A version appears at once and whole: tables, dense weights, graph, feature spec, and golden requests with the
    model's own scores; so does a delta, with changed rows, removed ids and dense weights. A config.pbtxt that is there
    already is never changed. Older versions and deltas of the same line are removed.

    A RUN knows what it changed since its last snapshot (--delta). Anything else is compared with what is published
    (--against MODEL): rows as they are stored, and weights. Where inputs, features, tables, row types or the graph
    changed, or more than half of the rows, a version is published, and the reason is printed. When nothing changed,
    nothing is published.

    FILE.py is run as Python would run it. FUNCTION takes no arguments and returns the module and a sample batch of two
    rows or more, as forward() takes it; a dict behind them may hold arguments of emberline.publish, such as spec.

    Rows may be stored rounded (--row-type int8 --row-type item=bf16); the golden scores are those of the rows as
    stored. A delta has the row types of its version.
    """
    asked = [option for option, given in _kinds(delta, cumulative, version, against) if given]
    if len(asked) > 1:
        raise WrongUsageError(f"{' and '.join(asked)} exclude each other; give one of them", field=asked[1])
    if delta_only and against is None:
        raise WrongUsageError("--delta-only is for --against MODEL", field="--delta-only")
    function = is_function(new)
    for option, given in (("--delta", delta), ("--cumulative", cumulative)):
        if function and given:
            raise WrongUsageError(
                f"{option} is for a RUN, which knows what it changed; give --against MODEL", field=option
            )
    for option, value in (("--name", name), ("--weights", weights)):
        if not function and value is not None:
            raise WrongUsageError(f"{option} is for a module, given as FILE.py:FUNCTION", field=option)
    if not function and not Path(new).is_dir():
        raise WrongUsageError(
            f"{new!r} is neither the folder of a training run nor FILE.py:FUNCTION, such as ranker.py:make", field="NEW"
        )
    place, model = _place(repository, against, name)
    if function and from_snapshot is not None and against is None:
        raise WrongUsageError("--from needs --against MODEL for a module", field="--from")
    how: bool | Literal["only"] = "only" if delta_only else against is not None
    if not function and not how:
        _publish_run(Path(new), place, delta, cumulative, version, from_snapshot, row_types, quiet)
        return
    options: dict[str, Any] = {"delta": how, "version": version, "from_snapshot": from_snapshot, "progress": not quiet}
    publish = _publish_function if function else _compare_run
    _print(publish(new, place, model, weights, row_types, options), place)


def _kinds(delta: bool, cumulative: bool, version: int | None, against: str | None) -> list[tuple[str, bool]]:
    return [
        ("--delta", delta),
        ("--cumulative", cumulative),
        ("--version", version is not None),
        ("--against", against is not None),
    ]


def _place(repository: Path | str | None, against: str | None, name: str | None) -> tuple[Path | str, str]:
    """Returns the repository, and the model's name if it is given."""
    if against is None:
        if repository is None:
            raise WrongUsageError(
                "--repository is missing: give the folder or URL to publish into, or --against MODEL",
                field="--repository",
            )
        return repository, name or ""
    above, _, model = against.rstrip("/").rpartition("/")
    if not is_url(against):
        path = Path(against) if Path(against).name not in ("", "..") else Path(against).resolve()
        above, model = str(path.parent), path.name
    if repository is not None and _whole(repository) != _whole(above):
        raise WrongUsageError(f"--repository {repository} is not that of --against {against}", field="--repository")
    if name is not None and name != model:
        raise WrongUsageError(f"--name {name} is not that of --against {against}", field="--name")
    if is_url(against):
        return above, model
    _check_model(Path(above, model))
    return Path(above), model


def _check_model(path: Path) -> None:
    """Raises ConfigError for a folder that is no model, such as the repository around it."""
    from serving.model_folders import folders, is_model

    if path.is_dir() and is_model(path):
        return
    inside = [name for name in folders(path) if is_model(path / name)] if path.is_dir() else []
    if inside:
        raise ConfigError(
            f"--against {path} is a repository with the models {', '.join(inside)}; name one, as --against "
            f"{path / inside[0]}",
            field="--against",
        )
    beside = [name for name in folders(path.parent) if is_model(path.parent / name)] if path.parent.is_dir() else []
    near = did_you_mean(path.name, beside)
    raise ConfigError(
        f"--against {path}: there is no such model{near if near.endswith('?') else near + '.'} Its first version is "
        f"published with --repository {path.parent} --name {path.name}",
        field="--against",
    )


def _whole(repository: Path | str) -> str:
    return str(repository).rstrip("/") if is_url(repository) else str(Path(repository).resolve())


def _publish_run(
    run: Path,
    repository: Path | str,
    delta: bool,
    cumulative: bool,
    version: int | None,
    from_snapshot: str | None,
    row_types: tuple[str, ...],
    quiet: bool,
) -> None:
    from trainer import load_trained
    from trainer.publishing.target import shown

    kind: WantedKind = (
        "cumulative" if cumulative else "delta" if delta or (from_snapshot and not version) else "version"
    )
    trained = load_trained(run)
    folder = trained.publish(
        repository,
        kind=kind,
        version=version,
        from_snapshot=from_snapshot,
        row_types=asked_row_types(row_types, trained.config.publish.row_types),
        progress=not quiet,
    )
    print_published(folder)
    click.echo(f"published {shown(repository, folder)}")


def _publish_function(
    new: str,
    repository: Path | str,
    name: str,
    weights: Path | None,
    row_types: tuple[str, ...],
    options: dict[str, Any],
) -> Outcome:
    from emberline.plain_module import load_plain_module
    from emberline.weight_file import load_weights
    from storage.specs import check_model_name
    from trainer.publishing import publish_module
    from trainer.publishing.target import check_repository

    if not name:
        raise WrongUsageError("--name is missing: give the name of the model in the repository", field="--name")
    check_model_name(name, field="--name")
    check_repository(repository)
    made = load_plain_module(new)
    if weights is not None:
        load_weights(made.module, weights)
    configured = made.options.get("row_types") or {}
    types = asked_row_types(row_types, {"default": configured} if isinstance(configured, str) else configured)
    given = {**made.options, **options, "row_types": made.options.get("row_types") if types is None else types}
    return publish_module(made.module, made.sample, repository, name=name, **given)


def _compare_run(
    new: str,
    repository: Path | str,
    name: str,
    weights: Path | None,
    row_types: tuple[str, ...],
    options: dict[str, Any],
) -> Outcome:
    from trainer import load_trained

    trained = load_trained(Path(new))
    types = asked_row_types(row_types, trained.config.publish.row_types)
    return trained.publish_changes(repository, name=name, row_types=types, **options)


def _print(outcome: Outcome, repository: Path | str) -> None:
    from trainer.publishing.target import shown

    where = shown(repository, outcome.folder)
    if outcome.what == "nothing":
        click.echo(f"nothing changed since {where}; nothing was published")
        return
    print_published(outcome.folder)
    click.echo(f"published {where}" + (f", a version: {outcome.reason}" if outcome.reason else ""))
