"""Row types: how the rows of each table are published, and what that costs in accuracy.

A table keeps the row type that it was published with last, unless another is asked for; the first time it is fp32. A
delta has the row types of its version, always: a server holds all rows of a table alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.checkpoint import DeltaTable, PublishedVersion, TableData
from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean
from storage.rows import RowCodec
from storage.specs import RowType, check_row_type

# The key of a mapping of row types that stands for every table that is not named.
DEFAULT = "default"


@dataclass(frozen=True)
class RowTypes:
    """The row types that the caller asked for."""

    #: Row type of tables that are not named; None leaves them as they are.
    default: RowType | None = None
    tables: Mapping[str, RowType] = field(default_factory=dict)

    @classmethod
    def of(cls, given: str | Mapping[str, str] | None) -> RowTypes:
        """Reads one row type for all tables, or one by table, with the key "default" for the rest.

        Raises ConfigError.
        """
        entries = {DEFAULT: given} if isinstance(given, str) else dict(given or {})
        checked = {
            name: check_row_type(row_type, what=f"row_types.{name}", field=f"row_types.{name}")
            for name, row_type in entries.items()
        }
        return cls(checked.pop(DEFAULT, None), checked)

    def check_names(self, names: Iterable[str]) -> None:
        """Raises ConfigError for a table that is not there."""
        known = sorted(names)
        for name in self.tables:
            if name not in known:
                raise ConfigError(
                    f"row_types: there is no table {name!r}{did_you_mean(name, known)}", field=f"row_types.{name}"
                )

    def asked(self, table: str) -> RowType | None:
        """Returns the row type asked for a table; None when none was."""
        return self.tables.get(table, self.default)

    def resolved(self, names: Iterable[str], before: PublishedVersion | None) -> dict[str, RowType]:
        """Returns the row type of each table in a version that follows `before`."""
        last = row_types_of(before)
        return {name: self.asked(name) or last.get(name, "fp32") for name in names}

    def first_other(self, version: PublishedVersion) -> tuple[str, RowType, RowType] | None:
        """Returns a table for which another row type was asked than a version has: its name, that one, the
        version's.
        """
        for name, has in row_types_of(version).items():
            asked = self.asked(name)
            if asked is not None and asked != has:
                return name, asked, has
        return None


def row_types_of(version: PublishedVersion | None) -> dict[str, RowType]:
    """Returns the row types of a version's tables; empty for no version."""
    return {} if version is None else {entry.name: entry.row_type for entry in version.manifest.tables}


def codecs_of(version: PublishedVersion) -> dict[str, RowCodec]:
    """Returns the codecs that encode the rows of a version's tables."""
    return {entry.name: RowCodec(entry.row_type, entry.dim) for entry in version.manifest.tables}


def rounding_metadata(tables: Iterable[TableData | DeltaTable]) -> dict[str, Any]:
    """Describes, for a manifest's metadata, each table with rounded rows: largest and mean absolute error, and
    bytes.
    """
    report: dict[str, Any] = {}
    for entry in tables:
        table = entry.changed if isinstance(entry, DeltaTable) else entry
        if table.row_type != "fp32" and len(table.ids):
            report[table.name] = {
                "row_type": table.row_type,
                "largest_error": table.rounding.largest,
                "mean_error": table.rounding.mean,
                "bytes": table.encoded.nbytes,
                "bytes_as_fp32": table.rows.nbytes,
            }
    return {"rounding": report} if report else {}
