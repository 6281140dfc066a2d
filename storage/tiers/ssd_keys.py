"""How rows, lists of ids and markers are laid out as keys of one database.

Keys are twelve bytes: table number (u32, big endian), then the id with its sign bit flipped (u64, big endian), so that
byte order is the order of ids. The numbers are shared out, in the order in which one sorted file holds them:

    0 ..                 the rows of the tables, values are raw float32
    0x40000000 + table   ids that merges changed since the version was loaded, no values
    0x80000000 ..        rows of spilled overlays, each table of each overlay under a number of its own
    0xFFFFFFFF + name    markers: texts
"""

from __future__ import annotations

import numpy as np

CHANGED = 0x4000_0000
SPILLS = 0x8000_0000
MARKERS = 0xFFFF_FFFF
SIGN = np.uint64(1 << 63)
# 'V' and not 'S': numpy strips trailing zero bytes from 'S'.
KEY = np.dtype([("table", ">u4"), ("id", ">u8")])


def row_keys(table: int, ids: np.ndarray) -> list[bytes]:
    """The keys of ids (n,) int64."""
    keys = np.empty(len(ids), KEY)
    keys["table"] = table
    keys["id"] = np.ascontiguousarray(ids, np.int64).view(np.uint64) ^ SIGN
    raw: list[bytes] = keys.view(f"V{KEY.itemsize}").tolist()
    return raw


def row_values(rows: np.ndarray) -> list[bytes]:
    """The values of rows (n, D) float32."""
    raw = np.ascontiguousarray(rows, np.dtype("<f4"))
    values: list[bytes] = raw.view(f"V{raw.shape[1] * 4}").ravel().tolist()
    return values


def ids_of(keys: list[bytes]) -> np.ndarray:
    """The ids (n,) int64 of row keys."""
    raw = np.frombuffer(b"".join(keys), KEY)["id"].astype(np.uint64)
    ids: np.ndarray = (raw ^ SIGN).view(np.int64)
    return ids


def table_prefix(table: int) -> bytes:
    """What the keys of a table start with; also the first key that may come after the table before."""
    return table.to_bytes(4, "big")


def marker_key(name: str) -> bytes:
    """The key of a marker."""
    return table_prefix(MARKERS) + name.encode()
