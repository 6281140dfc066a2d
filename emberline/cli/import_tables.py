"""`emberline import KIND` for the kinds that hold tables: a command for each, with the options that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from emberline.cli.command import Command, LocalPath, WrongUsageError
from emberline.cli.importing import check_destination, import_options
from emberline.cli.network_option import check_network, network_of, network_options
from emberline.cli.prove_option import check_prove, prove_options, prove_published
from emberline.cli.row_types import asked_row_types, print_published
from emberline.cli.sizes import SOME_BYTES
from emberline.cli.target import bars
from emberline.plain_module import is_function, load_plain_module
from storage.errors import ConfigError, InvalidInput

_SHOWN_IDS = 5
_MEMORY = "512MiB"

# Options that some kinds take, by field of ImportOptions.
_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "table": ("--table", {"default": "", "help": "Name of the table, of which all PATHs are parts."}),
    "id": ("--id", {"default": "", "metavar": "COLUMN", "help": "Column or array of the ids."}),
    "row": ("--row", {"default": "", "metavar": "COLUMN", "help": "Column or array of the rows."}),
    "count": (
        "--count",
        {"default": "", "metavar": "COLUMN", "help": "Column or array that says how often an id was used."},
    ),
    "dtype": (
        "--dtype",
        {
            "type": click.Choice(("float32", "float16", "bfloat16", "float64")),
            "default": "float32",
            "help": "Dtype of the values in the files.",
        },
    ),
    "model": ("--model", {"default": "", "help": "The model to import, of files that describe several."}),
}


class TablePath(LocalPath):
    """A path of this machine, with the name of a table before it or without: TABLE=PATH."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the whole text as a path, after a look at what follows the name. Fails as click does."""
        from storage.importing.kinds.base import split_named

        named = split_named(Path(str(value)))
        super().convert((named and named[1]) or value, param, ctx)
        return Path(str(value))


def command_of(kind: str) -> click.Command:
    """Returns the command of a kind of files."""
    from storage.importing import KINDS

    entry = KINDS[kind]

    def run(paths: tuple[Path, ...], **given: Any) -> None:
        _run(kind, paths, given)

    decorated: Callable[..., None] = run
    for option in reversed(_common_options()):
        decorated = option(decorated)
    for name in reversed(entry.options):
        flag, settings = _OPTIONS[name]
        decorated = click.option(flag, name, show_default=bool(settings["default"]), **settings)(decorated)
    decorated = import_options(decorated)
    decorated = click.argument("paths", metavar="[TABLE=]PATH...", nargs=-1, required=True, type=TablePath())(decorated)
    return click.command(cls=Command, name=kind, help=entry.help, epilog=entry.epilog)(decorated)


def __getattr__(name: str) -> click.Command:
    from storage.importing import KINDS

    kind = name.replace("_", "-")
    if kind not in KINDS:
        raise AttributeError(name)
    return command_of(kind)


def _common_options() -> list[Callable[..., Any]]:
    return [
        click.option(
            "--only", metavar="TABLE", multiple=True, help="Import this table and no other; may be given several times."
        ),
        click.option(
            "--dim", "dims", metavar="[TABLE=]N", multiple=True, help="Values of a row, where the files do not say it."
        ),
        click.option(
            "--default",
            "defaults",
            metavar="[TABLE=]VALUE",
            multiple=True,
            help="What an id without a row reads as, in all places of a row.  [default: what the files say, else 0]",
        ),
        click.option(
            "--module",
            metavar="FILE.py:FUNCTION",
            help="Python function that returns a torch module with embedding layers, and a sample batch. Without it "
            "the tables are served alone.",
        ),
        *network_options(),
        click.option(
            "--map",
            "mapping",
            metavar="TABLE=NAME",
            multiple=True,
            help="The table of the files that the module calls NAME; may be given several times.",
        ),
        click.option(
            "--pooling",
            "poolings",
            metavar="[TABLE=]POOLING",
            multiple=True,
            help="Without --module: row (one id in each row of a request), or sum or mean of a list.  [default: row]",
        ),
        click.option(
            "--delta", is_flag=True, help="Publish what differs from the newest snapshot of the model, as a delta."
        ),
        click.option(
            "--partial",
            is_flag=True,
            help="With --delta: the files hold changed rows alone; ids that are not in them keep their rows.",
        ),
        *prove_options(),
        click.option(
            "--memory",
            type=SOME_BYTES,
            default=_MEMORY,
            help="Memory for the rows of a table while they are sorted; more go through the disk.",
        ),
    ]


def _run(kind: str, paths: Sequence[Path], given: dict[str, Any]) -> None:
    check_destination(given["repository"], given["name"], given["check"])
    check_prove(given["old"], given["check"], given["delta"])
    if (given["module"] or given["network"]) and given["poolings"]:
        raise WrongUsageError("--pooling is for tables without --module and --network, whose layers say how they pool")
    check_network(given["network"], given["rows_of"], given["module"], given["mapping"])
    if given["mapping"] and not given["module"]:
        raise WrongUsageError("--map says what the tables are called in --module; give both or none")
    if given["partial"] and not given["delta"]:
        raise WrongUsageError("--partial says what the files of a --delta hold; give both")
    if given["delta"] and (given["repository"] is None or not given["name"]):  # with --check
        raise WrongUsageError("--delta compares with what is published; give --repository and --name with --check, too")
    if given["delta"] and (given["version"] or given["poolings"] or given["row_types"]):
        raise WrongUsageError("--delta keeps the version's --pooling and --row-type, and has no --version of its own")
    from storage.importing import KINDS, ImportOptions

    entry = KINDS[kind]
    options = ImportOptions(
        **{name: given[name] for name in entry.options},
        dims=_by_table(given["dims"], "--dim", int),
        defaults=_by_table(given["defaults"], "--default", float),
        only=given["only"],
    )
    tables = options.chosen(entry.open(paths, options))
    row_types = asked_row_types(given["row_types"], {})
    with bars(given["quiet"]) as shown:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done, total=total)

        module, sample, mapping = None, None, _by_table(given["mapping"], "--map", str)
        if given["network"]:
            module, sample, mapping = network_of(given["network"], given["rows_of"], tables)
        elif given["module"]:
            module, sample = _module(given["module"])
        shared: dict[str, Any] = {
            "module": module,
            "sample_batch": sample,
            "mapping": mapping,
            "memory_bytes": given["memory"],
            "progress": progress,
        }
        target: dict[str, Any] = {
            "name": given["name"],
            "metadata": {"imported": {"kind": kind, "paths": [str(path) for path in paths]}},
        }
        of_version: dict[str, Any] = {"pooling": _by_table(given["poolings"], "--pooling", str), "row_types": row_types}
        unused: Sequence[str] = ()
        folder: Path | None = None
        if given["delta"]:
            from trainer.importing import import_delta

            repository, partial = given["repository"], given["partial"]
            delta = import_delta(tables, repository, partial=partial, check=given["check"], **target, **shared)
            found, unused, folder = list(delta.tables), delta.unused, delta.folder
        elif given["check"]:
            from trainer.importing import look_at_tables

            found = look_at_tables(tables, **of_version, **shared)
            used = {table.name for table in found}
            unused = [table.name for table in tables if mapping.get(table.name, table.name) not in used]
        else:
            from trainer.importing import import_tables

            report = import_tables(
                tables,
                given["repository"],
                version=given["version"],
                max_batch_size=given["max_batch_size"],
                **of_version,
                **target,
                **shared,
            )
            found, unused, folder = list(report.tables), report.unused, report.folder
    for table in found:
        _say(table)
    for name in unused:
        click.echo(f"table {name}: left out, the module does not use it")
    if given["delta"]:
        for name, (changed, removed) in delta.changes.items():
            click.echo(f"table {name}: {changed:,} rows are new or changed, {removed:,} ids are removed")
    if folder is not None:
        from trainer.publishing.target import shown as place

        print_published(folder)
        click.echo(f"published {place(given['repository'], folder)}")
        if given["old"] is not None:
            prove_published(given["old"], folder, given["old_name"])
    elif not given["check"]:
        click.echo("nothing changed, and nothing is published")


def _say(table: Any) -> None:
    """Prints what was read of a table."""
    click.echo(
        f"table {table.name}: {table.rows:,} rows of {table.dim} values as {table.row_type}, "
        f"ids without a row read as {table.absent}"
    )
    if not table.rows:
        click.echo(f"warning: table {table.name}: no rows are in the files, so every id is one without a row", err=True)
    if table.repeated:
        click.echo(f"  {table.repeated:,} rows came again, equal or older")
    if table.removed:
        click.echo(f"  {table.removed:,} ids were removed")
    counted = [f"{number} ({count:,})" for number, count in table.hottest[:_SHOWN_IDS] if count]
    if counted:
        click.echo(f"  used most: {', '.join(counted)}")
    for text in table.left_out:
        click.echo(f"  left out: {text}")


def _by_table(given: Sequence[str], option: str, kind: Callable[[str], Any]) -> dict[str, Any]:
    """Returns the values of options [TABLE=]VALUE by table, "" for all others. Raises ConfigError."""
    found: dict[str, Any] = {}
    for text in given:
        table, equals, value = text.rpartition("=")
        try:
            parsed = kind(value)
        except ValueError:
            raise WrongUsageError(f"{option} {text!r}: {value!r} is no {kind.__name__}", field=option) from None
        if table in found or (equals and not table) or (kind is str and option == "--map" and not equals):
            raise WrongUsageError(f"{option} {text!r}: expected TABLE=VALUE, each table once", field=option)
        found[table] = parsed
    return found


def _module(text: str) -> tuple[Any, Any]:
    """Runs the function of --module, whose embedding layers take no memory. Raises InvalidInput."""
    if not is_function(text):
        raise WrongUsageError(f"--module {text!r}: expected FILE.py:FUNCTION", field="--module")
    from trainer.importing import rows_elsewhere

    try:
        made = load_plain_module(text, rows_elsewhere())
    except ConfigError as error:
        raise InvalidInput(f"--module {error}", field="--module") from error
    if made.options:
        raise InvalidInput(
            f"--module {text}: it returns options, expected a module and a sample batch", field="--module"
        )
    return made.module, made.sample
