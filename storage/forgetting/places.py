"""Finds the places on disk that hold ids to be forgotten: files of tables by their tensors, raw requests by the feature
engine, lists of hot ids, and every other file, such as the pages of a store, by its bytes.

A place is a file and what it holds. What is found of rows goes into the needles, so that a later search finds the same
bytes wherever they lie.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.checkpoint.tensors import TensorFile
from storage.errors import EmberlineError, UnsafeArtifact
from storage.features import FeatureEngine, FeatureSpec, unpack_columns
from storage.forgetting.needles import Needles
from storage.forgetting.served_logs import is_log, rows_in_log
from storage.forgetting.wanted import Wanted
from storage.tiers.hot_ids import HOT_IDS, HOT_IDS_HBM, decode_hot_ids

# tables/T.safetensors and tables/T/0-of-2.safetensors of a commit, tables/T.00000-of-00001.safetensors of a version.
_OF_TABLE = re.compile(r"tables/([A-Za-z0-9_-]+)(?:\.\d{5}-of-\d{5}|/\d+-of-\d+)?\.safetensors$")
_REQUESTS = ("golden.safetensors", "sample.safetensors")
_REMOVED = "removed.safetensors"
_INPUT = "input."
# What a file of a known kind holds stands for the bytes of it.
_SAME = {
    "bytes of rows": {"rows"},
    "bytes of ids": {"rows", "removed ids", "counts", "requests", "hot ids"},
    "bytes of values": {"requests"},
}


@dataclass(frozen=True)
class Place:
    """A file that holds something of the ids."""

    path: Path
    #: rows, removed ids, counts, requests, hot ids, or bytes: byte strings in a file of another kind.
    what: str
    #: How many ids, requests or byte strings.
    count: int
    table: str = ""

    @property
    def is_personal(self) -> bool:
        """True for what says more of an id than that it was there."""
        return self.what in ("rows", "requests", "bytes of rows", "bytes of values")


def find_places(
    roots: Iterable[Path],
    wanted: Wanted,
    spec: FeatureSpec | None,
    needles: Needles,
    on_bytes: Callable[[int], None] = lambda _: None,
    *,
    log_key: bytes = b"",
) -> list[Place]:
    """Returns the files in folders that hold something of the ids, in the order of folders and paths.

    spec: makes the features of raw requests. needles: gets the rows that are found, and is searched in every file; kept
    for a later call, it finds them where nothing else tells what they are. on_bytes: called with how many more bytes
    were read. log_key: that of digests in logs of served requests.

    Links are not followed. A file that goes meanwhile is left out.
    """
    engine = None if spec is None else FeatureEngine(spec)
    roots, found = list(roots), dict[Path, list[Place]]()
    for path in _every(roots):
        with suppress(FileNotFoundError):
            found[path] = list(_of_file(path, wanted, engine, needles, log_key))
    # Once all rows are known, wherever they were read.
    for path in _every(roots):
        with suppress(FileNotFoundError):
            known = {place.what for place in found.get(path, ())}
            found.setdefault(path, []).extend(
                place
                for place in _of_bytes(path, wanted, needles, on_bytes)
                if not known & _SAME.get(place.what, set())
            )
    return [place for places in found.values() for place in places]


def _every(roots: Iterable[Path]) -> Iterator[Path]:
    return (path for root in roots for path in files_under(root))


def files_under(root: Path) -> Iterator[Path]:
    """Yields the plain files under a folder, by path. Raises OSError for a folder that cannot be listed."""
    if root.is_file():
        yield root
    for place, folders, names in os.walk(root, onerror=_unless_gone):
        folders.sort()
        paths = (Path(place, name) for name in sorted(names))
        # A pipe would not end, and a socket cannot be opened.
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _unless_gone(error: OSError) -> None:
    """Raises the error unless the folder went meanwhile: what was not looked at would count as clean."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _of_file(
    path: Path, wanted: Wanted, engine: FeatureEngine | None, needles: Needles, log_key: bytes
) -> Iterator[Place]:
    """Yields what is known of a file of a kind that is written here; a damaged one is left to the search of bytes."""
    try:
        if path.suffix == ".safetensors":
            yield from _of_tensors(path, wanted, engine, needles)
        elif path.suffix == ".parquet" and engine is not None and is_log(path):
            if count := int(rows_in_log(path, wanted, engine.spec, log_key).sum()):
                yield Place(path, "requests", count)
        elif path.name in (HOT_IDS, HOT_IDS_HBM):
            for table, hot in decode_hot_ids(path.read_bytes())[0].items():
                if count := len(wanted.among(table, hot.ids)):
                    yield Place(path, "hot ids", count, table)
    except (UnsafeArtifact, ValueError):
        return


def _of_tensors(path: Path, wanted: Wanted, engine: FeatureEngine | None, needles: Needles) -> Iterator[Place]:
    if path.name == _REMOVED:
        for table, ids in TensorFile.open(path).arrays.items():
            if count := len(wanted.among(table, ids)):
                yield Place(path, "removed ids", count, table)
    elif path.name in _REQUESTS and engine is not None:
        arrays = TensorFile.open(path).arrays
        if path.name == _REQUESTS[0]:
            arrays = {name[len(_INPUT) :]: array for name, array in arrays.items() if name.startswith(_INPUT)}
        if count := _requests(arrays, wanted, engine):
            yield Place(path, "requests", count)
    elif (match := _OF_TABLE.search(path.as_posix())) and match[1] in wanted.tables:
        yield from _of_table(path, match[1], TensorFile.open(path).arrays, wanted, needles)


def _of_table(
    path: Path, table: str, arrays: Mapping[str, np.ndarray], wanted: Wanted, needles: Needles
) -> Iterator[Place]:
    places = wanted.among(table, arrays["ids"]) if "ids" in arrays else np.empty(0, np.int64)
    if len(places):
        for name in ("rows", "slots"):
            for row in arrays[name][places] if name in arrays else ():
                needles.add(row.tobytes(), "bytes of rows")
        yield Place(path, "rows", len(places), table)
    for name, what in (("waiting_ids", "counts"), ("removed_ids", "removed ids")):
        if name in arrays and (count := len(wanted.among(table, arrays[name]))):
            yield Place(path, what, count, table)


def _requests(arrays: Mapping[str, np.ndarray], wanted: Wanted, engine: FeatureEngine) -> int:
    try:
        columns = unpack_columns(arrays, engine.spec)
        rows = max((column.rows for column in columns.values()), default=0)
        return int(wanted.rows_holding(engine, columns, rows).sum())
    except EmberlineError:  # of another model, or damaged: its bytes are searched
        return 0


def _of_bytes(path: Path, wanted: Wanted, needles: Needles, on_bytes: Callable[[int], None]) -> Iterator[Place]:
    match = _OF_TABLE.search(path.as_posix())
    # Another table may have the same ids, which are those of something else there.
    other = match is not None and match[1] not in wanted.tables
    # Rows and ids of these files lie at multiples of so many bytes; strings of requests lie anywhere.
    step = 4 if path.suffix == ".pages" else 2 if match is not None else 1
    for what, count in sorted(needles.search(path, on_bytes, step=step).items()):
        if what == "id":
            if not other:
                yield Place(path, "bytes of ids", count)
        else:
            yield Place(path, what, count)
