"""Finds the files that a path means, in a fixed order, and the values that Hive partitions give to their rows.

A folder means the Parquet files in it and in its partitions, which are folders called KEY=VALUE, in the order of their
paths. A path into a partition has the values of the partitions that it leads through. Hidden files and markers (a name
that begins with `.` or `_`, or ends in `.crc`) are left out, which is logged. Any other file raises an error that names
it, so that no row is left out silently.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from storage.errors import ConfigError
from storage.paths import local_path

DataPath = Path | str | Sequence[Path | str]

logger = logging.getLogger("emberline.data")

_SUFFIXES = frozenset({".parquet", ".parq", ".pq"})
_MAGIC = b"PAR1"
_NULL = "__HIVE_DEFAULT_PARTITION__"
# Tables whose log says which of the files are valid: read as plain files, they would give rows that were deleted.
_TABLE_LOGS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class DataFile:
    """A Parquet file."""

    path: Path
    #: The key and the value of each KEY=VALUE folder above it, from the top; None is null.
    partition: tuple[tuple[str, str | None], ...] = ()

    @property
    def name(self) -> str:
        """The path of the file below the folder that was given."""
        return "/".join(
            [*(f"{key}={_NULL if value is None else value}" for key, value in self.partition), self.path.name]
        )


@dataclass
class _Folder:
    """The contents of a folder: its Parquet files, the names of others by their kind, and what is left out."""

    root: Path
    files: list[DataFile] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def walk(self, folder: Path, partition: tuple[tuple[str, str | None], ...]) -> None:
        for path in sorted(folder.iterdir()):
            name = str(path.relative_to(self.root))
            if path.name in _TABLE_LOGS:
                raise ConfigError(
                    f"{self.root}: is a {_TABLE_LOGS[path.name]} table ({name}), whose files may hold rows that were "
                    "deleted; export it as plain Parquet",
                    field="data",
                )
            if path.name.startswith((".", "_")) or path.suffix == ".crc":
                self.ignored.append(name)
            elif path.is_dir():
                self.walk(path, (*partition, self._partition_of(path, partition)))
            elif _is_parquet(path):
                self.files.append(DataFile(path, partition))
            else:
                self.others.setdefault(_kind(path), []).append(name)

    def _partition_of(self, path: Path, above: tuple[tuple[str, str | None], ...]) -> tuple[str, str | None]:
        found = _partition(path.name)
        if found is None:
            raise ConfigError(
                f"{path}: a folder inside of the data, which is no partition; expected KEY=VALUE, as in "
                "date=2026-01-01. Give the folder that is meant by its own path, or move this one away",
                field="data",
            )
        if found[0] in dict(above):
            raise ConfigError(f"{path}: the partition {found[0]!r} is given twice in this path", field="data")
        return found

    def check(self) -> None:
        """Raises ConfigError when the folder is not one data set of Parquet files; else logs what is left out."""
        if self.others:
            kind, names = next(iter(sorted(self.others.items())))
            if self.files:
                raise ConfigError(
                    f"{self.root}: holds {len(self.files)} Parquet files ({self.files[0].name}, ...) and "
                    f"{len(names)} of the kind {kind} ({_listed(names)}); expected one kind. Convert these to "
                    "Parquet, or move them away",
                    field="data",
                )
            raise ConfigError(f"{self.root}: holds {_listed(names)}; {_refusal(kind)}", field="data")
        if not self.files:
            raise ConfigError(
                f"{self.root}: the folder holds no *.parquet file"
                + (f"; left out as hidden or markers: {_listed(self.ignored)}" if self.ignored else ""),
                field="data",
            )
        first = self.files[0]
        for file in self.files:
            if [key for key, _ in file.partition] != [key for key, _ in first.partition]:
                raise ConfigError(
                    f"{self.root}: {first.name} and {file.name} do not lie in partitions of the same keys; expected "
                    "every file below the same KEY= folders",
                    field="data",
                )
        if self.ignored:
            logger.warning("%s: left out as hidden or markers: %s", self.root, _listed(self.ignored))


def find_files(data: DataPath) -> list[DataFile]:
    """Returns the Parquet files that one path or several mean, in order. Raises ConfigError naming any other file."""
    found: list[DataFile] = []
    for entry in [data] if isinstance(data, Path | str) else data:
        path = local_path(entry, "data")
        if path.is_dir():
            folder = _Folder(path)
            folder.walk(path, _partitions_of(path))
            folder.check()
            found += folder.files
        elif not path.is_file():
            raise ConfigError(f"{path}: there is no such file or folder", field="data")
        elif _is_parquet(path):
            found.append(DataFile(path, _partitions_of(path.parent)))
        else:
            raise ConfigError(f"{path}: {_refusal(_kind(path))}", field="data")
    if not found:
        raise ConfigError("no data was given; name Parquet files or a folder of them", field="data")
    return found


def _partitions_of(folder: Path) -> tuple[tuple[str, str | None], ...]:
    """Returns the partitions at the end of a path, such as one day of a data set."""
    found: list[tuple[str, str | None]] = []
    for part in reversed(folder.absolute().parts):
        partition = _partition(part)
        if partition is None:
            break
        found.append(partition)
    return tuple(reversed(found))


def _partition(name: str) -> tuple[str, str | None] | None:
    """Returns the key and the value of a folder called KEY=VALUE; None for another name."""
    key, equals, value = name.partition("=")
    if not key or not equals:
        return None
    return unquote(key), None if value == _NULL else unquote(value)


def _is_parquet(path: Path) -> bool:
    if path.suffix.lower() in _SUFFIXES:
        return True
    with path.open("rb") as file:  # Hive writes files without a suffix
        return file.read(len(_MAGIC)) == _MAGIC


def _kind(path: Path) -> str:
    return path.suffix[1:].upper() or "without a suffix"


def _refusal(kind: str) -> str:
    text = f"expected Parquet, got a file of the kind {kind}"
    if kind == "CSV":
        text += (
            '; convert it once: python -c "import pyarrow.csv as c, pyarrow.parquet as p; '
            "p.write_table(c.read_csv('x.csv'), 'x.parquet')\""
        )
    return text


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_AT_MOST])
    return shown + (f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else "")
