"""`emberline publish`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    name="publish",
    epilog="""\b
Example:
  emberline publish build/run --repository build/models

A module that was not trained here is published from Python:
  emberline.publish(module, sample_batch, repository, name=...)""",
)
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--repository",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Model repository to publish into.",
)
@click.option("--version", type=click.IntRange(1), help="Version number; default: the next one.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
def command(run: Path, repository: Path, version: int | None, quiet: bool) -> None:
    """Publish the newest checkpoint of the training output RUN as a new version.

    The version appears at once and whole: tables, dense weights, graph, feature spec, and golden requests with the
    model's own scores. A config.pbtxt that is there already is never changed.
    """
    from trainer import load_trained

    click.echo(f"published {load_trained(run).publish(repository, version=version, progress=not quiet)}")
