"""Options of commands that read rows: how files are laid out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emberline.cli.command import DataArgument, LocalPath

if TYPE_CHECKING:
    from storage.data import DataOptions

DATA_CONFIG = click.option(
    "--data-config",
    type=LocalPath(exists=True, dir_okay=False),
    help="YAML with a section `data:` that says how the files are laid out, such as the model's configuration.",
)

DATA = click.option(
    "--data",
    type=DataArgument(),
    multiple=True,
    required=True,
    help="File of rows (Parquet, CSV, TSV, ORC, Arrow, libsvm), folder, pattern or URL; may be given several times.",
)
VALID = click.option(
    "--valid",
    help="Rows to evaluate on (file, folder, pattern or URL), or a fraction: the last rows of --data, held out.",
)


def data_options(config: Path | None, given: dict[str, Any] | None = None) -> DataOptions:
    """Returns the options of a YAML file's section `data`, and of `given`, which take their place.

    Raises ConfigError naming the option at fault.
    """
    from storage.data import DataOptions
    from trainer.config import data_section
    from trainer.config_errors import parse_config

    content = {} if config is None else data_section(config)
    return parse_config(DataOptions, {**content, **(given or {})}, source="data")


@contextmanager
def advice_on_columns() -> Iterator[None]:
    """Adds to the error for an input without its column what --data-config can say about it."""
    from storage.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        if not (error.field or "").endswith(".column"):
            raise
        raise ConfigError(
            f"{error}. The model's YAML, named with --data-config, says in its section `data:` how files are laid out, "
            "and in its missing_columns what stands for a column that is not there",
            field=error.field,
        ) from None


def named(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """Returns the pairs of options such as --type price=float32. Raises click.BadParameter."""
    pairs = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint=option)
        pairs[name] = value
    return pairs
