"""The hot-id list names the ids that were in DRAM, or on a GPU, hottest first. A store that is opened again warms up
with them.

    magic, 8 bytes | length of the header, u32 | header, JSON: names and numbers of ids of the tables, in order |
    for each table: ids, i64 (n,), hottest first; use counts, u8 (n,) | SHA-256 of all bytes before it

Everything is little-endian. The file is replaced whole, by rename. It is a hint: a file that is damaged or cannot be
read is ignored with a warning, and the frequencies of the version are used alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import StoreError

_log = logging.getLogger(__name__)

HOT_IDS = "hot_ids"
HOT_IDS_HBM = "hot_ids_hbm"
_MAGIC = b"EMBHOT1\n"
_MAX_HEADER = 1 << 20
_ID_BYTES = 9
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class HotIds:
    """The hot ids of one table and their use counts."""

    #: (n,) int64, hottest first.
    ids: np.ndarray
    #: (n,) uint8, use counts as `export_batch` gives them.
    counts: np.ndarray


def save_hot_ids(folder: Path, tables: Mapping[str, HotIds], name: str = HOT_IDS) -> None:
    """Replaces a list in a store's folder; it is on the disk when the call returns. Raises StoreError."""
    header = json.dumps([[name, len(hot.ids)] for name, hot in tables.items()]).encode()
    parts: list[bytes] = [_MAGIC, len(header).to_bytes(4, "little"), header]
    for hot in tables.values():
        parts += [hot.ids.astype("<i8").tobytes(), hot.counts.astype(np.uint8).tobytes()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    temporary = folder / f".{name}.new"
    try:
        with temporary.open("wb") as file:
            file.writelines([*parts, digest.digest()])
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
        if path.stat().st_size > most * _ID_BYTES + _MAX_HEADER:
            raise ValueError(f"it is larger than a list of {most} ids")
        return _parse(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        _log.warning("%s is left out, published frequencies do for it: %s", path, error)
        return {}


def _parse(data: bytes) -> dict[str, HotIds]:
    body = data[:-_DIGEST_BYTES]
    if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[-_DIGEST_BYTES:]:
        raise ValueError("its bytes are not those that were written")
    start = len(_MAGIC) + 4
    place = start + int.from_bytes(body[len(_MAGIC) : start], "little")
    tables: dict[str, HotIds] = {}
    for name, count in json.loads(body[start:place]):
        ids = np.frombuffer(body, "<i8", count, place).astype(np.int64)
        counts = np.frombuffer(body, np.uint8, count, place + 8 * count)
        tables[name] = HotIds(ids, counts)
        place += _ID_BYTES * count
    if place != len(body):
        raise ValueError("its header does not fit its length")
    return tables
