"""The common parts of all subcommands: paths, options that may be given once, suggestions for wrong names."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from storage.errors import ConfigError
from storage.objects import is_url
from storage.paths import local_path

# a share of the similarity that difflib computes; below it suggestions have nothing to do with the typed word
_NEAR = 0.7
_MOST_NEAR = 3
# Where a context keeps the whole command line.
_ARGUMENTS = "emberline.arguments"


class WrongUsageError(click.UsageError, ConfigError):
    """Options that do not go together, or an option that cannot be read: the exit code is 2."""

    def __init__(self, message: str, *, field: str = "") -> None:
        click.UsageError.__init__(self, message)
        # Last: the other one calls it too, without the field.
        ConfigError.__init__(self, message, field=field)


class LocalPath(click.Path):
    """A path of this machine, as a pathlib.Path. A URL such as s3://bucket/models is refused by its scheme."""

    def __init__(self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(exists=exists, file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts to a path. Fails as click does."""
        try:
            local_path(value, "path")
        except ConfigError as error:
            self.fail(str(error).partition(": ")[2], param, ctx)
        return super().convert(value, param, ctx)


class Repository(click.ParamType[Path | str]):
    """A repository: a path of this machine, or a URL of an object store such as s3://bucket/models."""

    name = "path or url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts to a path, or leaves a URL as it is. Fails as click does."""
        return str(value) if is_url(value) else LocalPath(file_okay=False).convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Lets the shell complete folders."""
        return [CompletionItem(incomplete, type="dir")]


class DataArgument(click.ParamType[Path | str]):
    """Data as the reader takes it: a path that is there, a pattern of paths, or a URL."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts to a path, or leaves a pattern or URL as it is. Fails as click does."""
        text = str(value)
        if ":/" in text or any(sign in text for sign in "*?["):
            return text
        return click.Path(exists=True, path_type=Path).convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Lets the shell complete files."""
        return [CompletionItem(incomplete, type="file")]


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Returns known names that the word may stand for, at most three.

    They are those that hold it, as --port in --http-port, or spell it nearly so.
    """
    names = sorted(known)
    plain = {name: name.strip("-") for name in names}
    wanted = word.strip("-")
    parts = [name for name in names if wanted and f"-{wanted}-" in f"-{plain[name]}-"]
    close = difflib.get_close_matches(wanted, plain.values(), _MOST_NEAR, _NEAR)
    return (parts or [name for text in close for name in names if plain[name] == text])[:_MOST_NEAR]


class Command(click.Command):
    """Refuses a single-valued option that is given twice, and numbers that are none (nan) or have no end (inf).

    It suggests only options that are like a wrong one.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments. Raises click.UsageError."""
        _check_options(self, ctx, args)
        left = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(parameter.name or "")
            if isinstance(value, float) and not math.isfinite(value) and not ctx.resilient_parsing:
                raise click.BadParameter(f"expected a number, got {value}", ctx, parameter)
        return left


def arguments_without(ctx: click.Context, *options: str) -> list[str]:
    """Returns the command line that is run, without these options, which have a value each."""
    kept: list[str] = []
    arguments = iter(ctx.meta[_ARGUMENTS])
    for each in arguments:
        if each in options:
            next(arguments, None)
        elif each.partition("=")[0] not in options:
            kept.append(each)
    return kept


class Group(click.Group):
    """A group of such commands, with the same checks for its own options."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments. Raises click.UsageError."""
        ctx.meta.setdefault(_ARGUMENTS, list(args))
        _check_options(self, ctx, args)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Adds the nearest known name, or all of them, to the error for an unknown one."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            near = nearest(args[0], known)[:1]
            hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Loads a subcommand's module when it is asked for; prints the list of them without importing any.

    modules: a name to its module (or module:name where it holds several) and its line of help, in the order of use.
    headings: the name of a command to the heading above it.
    """

    def __init__(
        self,
        *args: Any,
        modules: Mapping[str, tuple[str, str]],
        headings: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules
        self._headings = headings or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names in the order of use, not of the alphabet."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command, or None for an unknown name."""
        if cmd_name not in self._modules:
            return None
        module, _, name = self._modules[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Completes the names with their lines of help, without importing any of the modules."""
        found = [CompletionItem(name, help=line) for name, (_, line) in self._modules.items()]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [item for item in found if item.value.startswith(incomplete)] + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Prints the list with one line each, without importing any of them."""
        sections: dict[str, list[tuple[str, str]]] = {}
        heading, width = "Commands", max(map(len, self._modules), default=0)
        for name, (_, line) in self._modules.items():
            heading = self._headings.get(name, heading)
            sections.setdefault(heading, []).append((name.ljust(width), line))
        for heading, lines in sections.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


def _check_options(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    if ctx.resilient_parsing:  # a shell asks for completions of a line that is not finished
        return
    try:
        *_, order = command.make_parser(ctx).parse_args(list(args))
    except click.NoSuchOption as error:
        known = [text for option in command.get_params(ctx) for text in (*option.opts, *option.secondary_opts)]
        near = nearest(error.option_name, [text for text in known if text.startswith("--")])
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise click.UsageError(f"No such option {error.option_name!r}.{hint}", ctx) from None
    seen: set[str | None] = set()
    for option in order:
        if not isinstance(option, click.Option) or option.multiple or option.count:
            continue
        if option.is_flag and not option.secondary_opts:
            continue  # a flag that is given twice says the same as once
        if option.name in seen:
            raise click.UsageError(f"{option.opts[0]} is given twice; it takes one value", ctx)
        seen.add(option.name)
