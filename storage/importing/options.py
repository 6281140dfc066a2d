"""Options of an import beyond the paths. Each kind says which of them it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storage.errors import InvalidInput
from storage.features.strict_model import did_you_mean
from storage.importing.source import FileTable, default_vector, tables_by_name
from storage.initializers import ABSENT_ZEROS, AbsentRows


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import; what is empty or None was not given."""

    #: Name of the table, for files that do not name it.
    table: str = ""
    #: Column or tensor of the ids, of the rows, and of how often ids were used.
    id: str = ""
    row: str = ""
    count: str = ""
    #: Dtype of the values of raw files.
    dtype: str = "float32"
    #: Values of a row by table, "" for all others.
    dims: Mapping[str, int] = field(default_factory=dict)
    #: What ids without a row read as, by table, "" for all others.
    defaults: Mapping[str, float] = field(default_factory=dict)
    #: The model of files that describe several.
    model: str = ""
    #: The tables to import; all without it.
    only: tuple[str, ...] = ()

    def default(self, table: str) -> float | None:
        """Returns the default that was given for a table; None without one."""
        return self.defaults.get(table, self.defaults.get(""))

    def absent(self, table: str, found: AbsentRows = ABSENT_ZEROS) -> AbsentRows:
        """Returns what ids without a row read as in a table. found: what its files say. Raises InvalidInput."""
        given = self.default(table)
        return found if given is None else default_vector(given, what=f"table {table!r}, --default")

    def dim(self, table: str) -> int | None:
        """Returns the dim that was given for a table; None without one."""
        return self.dims.get(table, self.dims.get(""))

    def chosen(self, tables: Iterable[FileTable]) -> list[FileTable]:
        """Returns the tables to import, of those that the files hold.

        Raises InvalidInput for two of one name, and for a table that options name and that is not there.
        """
        by_name = tables_by_name(tables)
        sources = {table.source for table in by_name.values() if table.source}
        for option, given, known in (
            ("only", self.only, {*by_name, *sources}),
            ("dim", self.dims, {*by_name}),
            ("default", self.defaults, {*by_name}),
        ):
            for name in given:
                if name and name not in known:
                    raise InvalidInput(
                        f"--{option}: there is no table {name!r}{did_you_mean(name, sorted(known))}", field=option
                    )
        wanted = set(self.only)
        return [table for table in by_name.values() if not wanted or wanted & {table.name, table.source}]


def pick(wanted: str, known: Iterable[str], *, option: str, what: str) -> str:
    """Returns `wanted`, after a check that it is among the known names. Raises InvalidInput with the nearest of them.

    option: the option that gave it. what: what holds the names, for the message.
    """
    names = list(known)
    if wanted in names:
        return wanted
    raise InvalidInput(
        f"{what}: there is no {wanted!r}{did_you_mean(wanted, names) or ', only ' + ', '.join(names[:20])}; --{option} "
        "names it",
        field=option,
    )
