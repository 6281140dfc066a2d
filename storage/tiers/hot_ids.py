"""The hot-id list names the ids that were in DRAM, or on a GPU, hottest first. A store that is opened again warms up
with them, and so does one on another machine.

    magic, 8 bytes | length of the header, u32 | header, JSON: see _Header |
    for each table: ids, i64 (n,), hottest first; use counts, u8 (n,) | SHA-256 of all bytes before it

Everything is little-endian. The file is replaced whole, by rename. It is a hint: a file that is damaged or cannot be
read is ignored with a warning, and the frequencies of the version are used alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError

from storage.checkpoint.signed import Part
from storage.checkpoint.strict_json import canonical_json, parse_json
from storage.errors import StoreError, UnsafeArtifact

_log = logging.getLogger(__name__)

HOT_IDS = "hot_ids"
HOT_IDS_HBM = "hot_ids_hbm"
_MAGIC = b"EMBHOT2\n"
_MAX_HEADER = 1 << 20
_ID_BYTES = 9
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class HotIds:
    """The hot ids of one table and their use counts, and what recent lookups found; 0 of 0 when that is not known."""

    #: (n,) int64, hottest first.
    ids: np.ndarray
    #: (n,) uint8, use counts as `export_batch` gives them.
    counts: np.ndarray
    #: Ids with a row that were looked up.
    found: float = 0.0
    #: Those of them that these ids answered.
    hits: float = 0.0


class _Table(Part):
    name: str
    ids: int = Field(ge=0, lt=2**48)
    found: float = Field(ge=0, allow_inf_nan=False)
    hits: float = Field(ge=0, allow_inf_nan=False)


class _Header(Part):
    #: What the ids mean, for whoever reads the list elsewhere: lists with another text name other ids.
    meaning: str
    tables: tuple[_Table, ...]


def most_bytes(most: int) -> int:
    """Returns the bytes that a list of `most` ids may take."""
    return most * _ID_BYTES + _MAX_HEADER


def save_hot_ids(folder: Path, tables: Mapping[str, HotIds], name: str = HOT_IDS) -> None:
    """Replaces a list in a store's folder; it is on the disk when the call returns. Raises StoreError."""
    write_hot_ids(folder, encode_hot_ids(tables), name)


def write_hot_ids(folder: Path, data: bytes, name: str = HOT_IDS) -> None:
    """Does the same with a list that is encoded."""
    temporary = folder / f".{name}.new"
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / name)
    except OSError as error:
        with suppress(OSError):  # read-only, or gone
            temporary.unlink()
        raise StoreError(f"writing {folder / name}: {error}") from error


def load_hot_ids(folder: Path, most: int, name: str = HOT_IDS) -> dict[str, HotIds]:
    """Reads a list from a store's folder, by table; empty when there is none, or it is damaged.

    most: the most ids of all tables together; a larger file is ignored.
    """
    path = folder / name
    try:
        if path.stat().st_size > most_bytes(most):
            raise UnsafeArtifact(f"it is larger than a list of {most} ids")
        return decode_hot_ids(path.read_bytes())[0]
    except FileNotFoundError:
        return {}
    except (OSError, UnsafeArtifact) as error:
        _log.warning("%s is left out, published frequencies do for it: %s", path, error)
        return {}


def encode_hot_ids(tables: Mapping[str, HotIds], meaning: str = "") -> bytes:
    """Returns the bytes of a list."""
    entries = [
        {"name": name, "ids": len(hot.ids), "found": hot.found, "hits": hot.hits} for name, hot in tables.items()
    ]
    header = canonical_json({"meaning": meaning, "tables": entries})
    parts: list[bytes] = [_MAGIC, len(header).to_bytes(4, "little"), header]
    for hot in tables.values():
        parts += [hot.ids.astype("<i8").tobytes(), hot.counts.astype(np.uint8).tobytes()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def decode_hot_ids(data: bytes) -> tuple[dict[str, HotIds], str]:
    """Returns the hot ids by table, and what they mean. Raises UnsafeArtifact for anything but a whole list."""
    body = memoryview(data)[:-_DIGEST_BYTES]
    if body[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[-_DIGEST_BYTES:]:
        raise UnsafeArtifact("its bytes are not those of a list that this release writes")
    start = len(_MAGIC) + 4
    place = start + int.from_bytes(body[len(_MAGIC) : start], "little")
    content = bytes(body[start:place])
    parse_json(content, what="its header", max_bytes=_MAX_HEADER)
    try:
        header = _Header.model_validate_json(content)
    except ValidationError as error:
        raise UnsafeArtifact(f"its header is not one of a list of ids: {error.errors()[0]['msg']}") from None
    if place + sum(table.ids for table in header.tables) * _ID_BYTES != len(body):
        raise UnsafeArtifact("its header does not fit its length")
    tables: dict[str, HotIds] = {}
    for table in header.tables:
        ids = np.frombuffer(body, "<i8", table.ids, place).astype(np.int64)
        counts = np.frombuffer(body, np.uint8, table.ids, place + 8 * table.ids)
        tables[table.name] = HotIds(ids, counts, table.found, min(table.hits, table.found))
        place += _ID_BYTES * table.ids
    return tables, header.meaning
