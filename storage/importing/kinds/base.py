"""The interface of a kind of files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.errors import InvalidInput
from storage.importing.options import ImportOptions
from storage.importing.source import FileTable, table_name


@dataclass(frozen=True)
class Kind:
    """A kind of files that hold tables."""

    #: The name on the command line.
    name: str
    #: One line for the list of kinds.
    title: str
    #: The help of its command: what the files are, and what becomes of what they hold.
    help: str
    #: Examples of its command.
    epilog: str
    #: Opens the files and returns their tables; reads no rows yet. Raises InvalidInput, NotFound or Unsupported.
    open: Callable[[Sequence[Path], ImportOptions], list[FileTable]]
    #: The fields of ImportOptions that it takes.
    options: tuple[str, ...] = ()


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def split_named(path: Path) -> tuple[str, str] | None:
    """Returns what is before and behind the = of TABLE=PATH; None of a path that is there, or has a / before it."""
    name, equals, rest = str(path).partition("=")
    return None if not equals or "/" in name or path.exists() else (name, rest)


def table_and_path(path: Path) -> tuple[str, Path]:
    """Returns the name and the path of TABLE=PATH, "" and the path itself of another one."""
    named = split_named(path)
    if named is None:
        return "", path
    name, rest = named
    if not rest:
        raise InvalidInput(f"{name}=: a path is missing behind it; write TABLE=PATH", field="table")
    return _checked(name), Path(rest)


def named_paths(paths: Sequence[Path], options: ImportOptions) -> dict[str, list[Path]]:
    """Returns the paths by table: all of --table, or each of its own, called like the file or folder.

    A path TABLE=PATH names its table. Raises InvalidInput for two of one name.
    """
    if options.table:
        return {_checked(options.table): list(paths)}
    found: dict[str, list[Path]] = {}
    for path in paths:
        table, path = table_and_path(path)
        table = table or _name_of(path)
        if table in found:
            raise InvalidInput(
                f"{path}: and {found[table][0]} are both called {table!r}; write TABLE=PATH, or --table for parts of "
                "one table",
                field="table",
            )
        found[table] = [path]
    return found


def _name_of(path: Path) -> str:
    """Returns the table that a file or folder is called like. Raises InvalidInput where no letter of its would stay."""
    name = Path(os.path.abspath(path)).name.split(".")[0]
    if not name or not name.isascii():
        raise InvalidInput(
            f"{path}: a table cannot be called {name!r}, only by letters A to Z, digits, '_' and '-'; write "
            f"TABLE={path}, or --table",
            field="table",
        )
    return table_name(name)


def _checked(name: str) -> str:
    """Returns a name that the user gave to a table. Raises InvalidInput for one that a table cannot have."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"a table cannot be called {name!r}: 1 to 64 letters, digits, '_' or '-' (not first)", field="table"
        )
    return name
