"""Writes the reference of the command line, of the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from docs.site.markdown_tables import code, prose, table
from emberline.cli.command import LazyGroup
from emberline.cli.frame import command

_INTRODUCTION = (
    "`emberline --help` lists the commands, and `emberline NAME --help` has the texts below.\n\n"
    "Every command ends with 0 when it is done, 1 when it failed, 2 when it was called in a wrong way, and 130 when it "
    "was interrupted, unless its own text says more."
)


def commands_page() -> str:
    """Returns the page with every command, its arguments and its options."""
    context = click.Context(command, info_name="emberline", terminal_width=110)
    parts = ["# Command line\n", f"{_INTRODUCTION}\n", _options(command, context)]
    for path, each, inner in walk(command, context):
        parts.append(f"{'#' * min(len(path), 3)} {' '.join(path)}\n")
        parts.append(f"```text\n{each.get_usage(inner).removeprefix('Usage: ')}\n```\n")
        parts.append(_help(each.help or ""))
        parts.append(_options(each, inner))
        if each.epilog:
            parts.append(_help(each.epilog))
    return "\n".join(part for part in parts if part)


def walk(group: click.Group, context: click.Context) -> Iterator[tuple[list[str], click.Command, click.Context]]:
    """Yields every command below a group, with the words that call it and a context for its texts."""
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if found is None or found.hidden:
            continue
        inner = click.Context(found, info_name=name, parent=context, terminal_width=110, show_default=True)
        yield inner.command_path.split(), found, inner
        if isinstance(found, click.Group):
            yield from walk(found, inner)


def _options(each: click.Command, context: click.Context) -> str:
    """Returns the tables of the arguments and of the options of a command."""
    parts = []
    records = [
        record
        for parameter in each.get_params(context)
        if "--help" not in parameter.opts and (record := parameter.get_help_record(context)) is not None and record[1]
    ]
    if records:
        parts.append(table(("option", "meaning"), [(code(name), prose(said)) for name, said in records]))
    if isinstance(each, click.Group) and not isinstance(each, LazyGroup):
        names = each.list_commands(context)
        parts.append(f"Its commands: {', '.join(code(name) for name in names)}.\n")
    return "\n".join(parts)


def _help(text: str) -> str:
    r"""Returns a text of click as Markdown: a paragraph that begins with \b keeps its lines."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\f")[0].split("\n\n"):
        if paragraph.startswith("\b"):
            parts.append("```text\n" + paragraph.removeprefix("\b").strip("\n") + "\n```\n")
        elif paragraph.strip():
            parts.append(prose(" ".join(paragraph.split())) + "\n")
    return "\n".join(parts)
