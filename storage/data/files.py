"""Finds the files that a path means, in a fixed order, and the values that Hive partitions give to their rows.

A folder means the files of data in it and in its partitions, which are folders called KEY=VALUE, in the order of their
paths. A path into a partition has the values of the partitions that it leads through. Hidden files and markers (a name
that begins with `.` or `_`, or ends in `.crc`) are left out, which is logged. Any other file raises an error that names
it, so that no row is left out silently.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from storage.data.compressed import CODECS, CompressedPlace
from storage.data.options import DataOptions, FormatName
from storage.data.places import Place, is_marker, places
from storage.errors import ConfigError

DataPath = Path | str | Sequence[Path | str]

logger = logging.getLogger("emberline.data")

#: The format of files by the extension of their names.
SUFFIXES: dict[str, FormatName] = {
    **dict.fromkeys((".parquet", ".parq", ".pq"), "parquet"),
    **dict.fromkeys((".csv",), "csv"),
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".orc",), "orc"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".libsvm", ".svm", ".svmlight"), "libsvm"),
}
_MAGIC: dict[bytes, FormatName] = {b"PAR1": "parquet", b"ORC": "orc", b"ARROW1": "arrow"}
TEXT_FORMATS = ("csv", "tsv", "libsvm")
FORMAT_TITLES = {"parquet": "Parquet", "csv": "CSV", "tsv": "TSV", "orc": "ORC", "arrow": "Arrow", "libsvm": "libsvm"}
_ARCHIVES = frozenset({".xz", ".zip", ".tar", ".tgz", ".tbz2", ".7z", ".rar", ".z", ".br", ".snappy"})
_NULL = "__HIVE_DEFAULT_PARTITION__"
# Tables whose log says which of the files are valid: read as plain files, they would give rows that were deleted.
TABLE_LOGS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
_NAMED_AT_MOST = 5
_Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class DataFile:
    """A file of rows, or a table in memory."""

    place: Place
    format: FormatName | str
    size: int
    #: When the file was changed last, in nanoseconds since 1970; None where that is not known.
    changed_ns: int | None = None
    #: The key and the value of each KEY=VALUE folder above it, from the top; None is null.
    partition: _Partition = ()
    #: The rows of a table in memory, which has no file.
    table: Any = field(default=None, compare=False)

    @property
    def path(self) -> str:
        """The path or URL, for people."""
        return self.place.shown

    @property
    def name(self) -> str:
        """The path of the file below the folder that was given."""
        return "/".join(
            [*(f"{key}={_NULL if value is None else value}" for key, value in self.partition), self.place.name]
        )


@dataclass
class _Folder:
    """The contents of a folder: its files of rows, the names of others by their kind, and what is left out."""

    root: Place
    options: DataOptions
    files: list[DataFile] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def walk(self, folder: Place, partition: _Partition) -> None:
        for place, info in folder.children():
            name = place.inner[len(self.root.inner.rstrip("/")) + 1 :]
            if place.name in TABLE_LOGS:
                raise ConfigError(
                    f"{self.root.shown}: is a {TABLE_LOGS[place.name]} table ({name}), whose files may hold rows that "
                    "were deleted; export it as plain Parquet",
                    field="data",
                )
            if is_marker(place.name):
                self.ignored.append(name)
            elif info.type == fs.FileType.Directory:
                self.walk(place, (*partition, self._own_partition(place, partition)))
            elif found := format_of(place, info, self.options):
                self.files.append(data_file(place, info, found, partition))
            else:
                self.others.setdefault(_kind(place), []).append(name)

    def _own_partition(self, place: Place, above: _Partition) -> tuple[str, str | None]:
        found = partition_of(place.name)
        if found is None:
            raise ConfigError(
                f"{place.shown}: a folder inside of the data, which is no partition; expected KEY=VALUE, as in "
                "date=2026-01-01. Give the folder that is meant by its own path, or move this one away",
                field="data",
            )
        if found[0] in dict(above):
            raise ConfigError(f"{place.shown}: the partition {found[0]!r} is given twice in this path", field="data")
        return found

    def check(self) -> None:
        """Raises ConfigError when the folder is not one data set of one format; else logs what is left out."""
        if self.others:
            kind, names = next(iter(sorted(self.others.items())))
            if self.files:
                raise self._mixture(names, kind)
            raise ConfigError(f"{self.root.shown}: holds {_listed(names)}; {_refusal(kind)}", field="data")
        if not self.files:
            raise ConfigError(
                f"{self.root.shown}: the folder holds no *.parquet file, and none of {_known()}"
                + (f"; left out as hidden or markers: {_listed(self.ignored)}" if self.ignored else ""),
                field="data",
            )
        first = self.files[0]
        strange = [file for file in self.files if file.format != first.format]
        if strange:
            same = [file.name for file in strange if file.format == strange[0].format]
            raise self._mixture(same, FORMAT_TITLES[strange[0].format], len(self.files) - len(strange))
        for file in self.files:
            if [key for key, _ in file.partition] != [key for key, _ in first.partition]:
                raise ConfigError(
                    f"{self.root.shown}: {first.name} and {file.name} do not lie in partitions of the same keys; "
                    "expected every file below the same KEY= folders",
                    field="data",
                )
        if self.ignored:
            logger.warning("%s: left out as hidden or markers: %s", self.root.shown, _listed(self.ignored))

    def _mixture(self, names: Sequence[str], kind: str, count: int | None = None) -> ConfigError:
        first = self.files[0]
        return ConfigError(
            f"{self.root.shown}: holds {len(self.files) if count is None else count} "
            f"{FORMAT_TITLES[first.format]} files ({first.name}, ...) and {len(names)} of the kind {kind} "
            f"({_listed(names)}); expected one kind. Convert these (emberline data convert), or move them away",
            field="data",
        )


def find_files(data: DataPath, options: DataOptions | None = None) -> list[DataFile]:
    """Returns the files that paths, URLs and patterns mean, in order. Raises ConfigError naming any other file."""
    options = options or DataOptions()
    found: list[DataFile] = []
    for entry in [data] if isinstance(data, Path | str) else data:
        for place in places(entry):
            info = place.info()
            if info.type == fs.FileType.Directory:
                folder = _Folder(place, options)
                folder.walk(place, _partitions_of(_absolute(place)))
                folder.check()
                found += folder.files
            elif info.type != fs.FileType.File:
                raise ConfigError(place.nothing, field="data")
            elif known := format_of(place, info, options):
                found.append(data_file(place, info, known, _partitions_of(_absolute(place)[:-1])))
            else:
                raise ConfigError(f"{place.shown}: {_refusal(_kind(place))}", field="data")
    if not found:
        raise ConfigError("no data was given; name files of rows, or a folder of them", field="data")
    return found


def _absolute(place: Place) -> tuple[str, ...]:
    return tuple(place.inner.strip("/").split("/")) if place.is_remote else Path(place.inner).absolute().parts


def _partitions_of(parts: Sequence[str]) -> _Partition:
    """Returns the partitions at the end of a path, such as one day of a data set."""
    found: list[tuple[str, str | None]] = []
    for part in reversed(parts):
        partition = partition_of(part)
        if partition is None:
            break
        found.append(partition)
    return tuple(reversed(found))


def partition_of(name: str) -> tuple[str, str | None] | None:
    """Returns the key and the value of a folder called KEY=VALUE; None for another name."""
    key, equals, value = name.partition("=")
    if not key or not equals:
        return None
    return unquote(key), None if value == _NULL else unquote(value)


def format_by_name(name: str) -> FormatName | None:
    """Returns the format that a file's name tells, such as a.csv or a.csv.gz; None when it tells none."""
    known = SUFFIXES.get(_suffix(name))
    if known is None and _suffix(name) in CODECS:
        inner = SUFFIXES.get(_inner_suffix(name))
        return inner if inner in TEXT_FORMATS else None
    return known


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()


def _inner_suffix(name: str) -> str:
    """Returns the extension before that of the compression."""
    return _suffix(name[: -len(_suffix(name))])


def data_file(place: Place, info: Any, format_name: FormatName, partition: _Partition) -> DataFile:
    """Returns a file of rows. info: pyarrow's FileInfo of it. Raises ConfigError for an empty file."""
    if info.size == 0:
        raise ConfigError(f"{place.shown}: is empty (0 bytes); write it again, or remove it", field="data")
    codec = CODECS.get(place.suffix) if format_name in TEXT_FORMATS else None
    if codec is not None:
        place = CompressedPlace(place.filesystem, place.inner, place.shown, codec)
    return DataFile(place, format_name, info.size, info.mtime_ns, partition)


def format_of(place: Place, info: Any, options: DataOptions) -> FormatName | None:
    """Returns the format of a file, by its extension, its first bytes or the configuration; None when it is unknown."""
    known, asked = format_by_name(place.name), options.format
    if known is not None:
        return asked if known in TEXT_FORMATS and asked in TEXT_FORMATS else known
    if place.suffix in CODECS:
        inner = _inner_suffix(place.name)
        return asked if asked in TEXT_FORMATS and inner not in SUFFIXES and inner not in _ARCHIVES else None
    if place.suffix in _ARCHIVES:
        return None
    found = _by_first_bytes(place) if info.size else None
    if found is not None and asked is not None and asked not in (*TEXT_FORMATS, found):
        raise ConfigError(
            f"{place.shown}: is {FORMAT_TITLES[found]} by its first bytes, and data.format is {asked}; set it to "
            f"{found}, or leave it out",
            field="data.format",
        )
    return found or asked


def _by_first_bytes(place: Place) -> FormatName | None:
    try:
        with place.open() as file:
            start = file.read(max(map(len, _MAGIC)))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{place.shown}: cannot be read: {error}", field="data") from error
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)  # Hive writes no suffix


def _kind(place: Place) -> str:
    inner = _inner_suffix(place.name) if place.suffix in CODECS else ""
    return f"{inner[1:]}{place.suffix}".lstrip(".").upper() or "without a suffix"


def _known() -> str:
    return ", ".join(f"*{suffix}" for suffix in SUFFIXES)


def _refusal(kind: str) -> str:
    text = f"expected {', '.join(FORMAT_TITLES.values())}, got a file of the kind {kind}"
    inner, _, last = f".{kind.lower()}".rpartition(".")
    if f".{last}" in CODECS and inner not in SUFFIXES and inner not in _ARCHIVES:
        return (
            f"{text}; compressed text has a name that tells its format, such as a.csv{f'.{last}'}, or set data.format: "
            "csv, tsv or libsvm"
        )
    if f".{last}" in CODECS or f".{last}" in _ARCHIVES:
        compressions = ", ".join(suffix[1:] for suffix in CODECS)
        return f"{text}; unpack it: what is read compressed is text, as {compressions}"
    return f"{text}; name its format if it is text (data.format: csv, tsv or libsvm), or convert it"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_AT_MOST])
    return shown + (f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else "")
