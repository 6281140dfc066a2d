"""Lays out changes, lists of ids and markers as keys of one database.

Keys are twelve bytes: a group (u32, big endian), then the id with its sign bit flipped (u64, big endian), so that byte
order is the order of ids. The groups, in the order in which one sorted file holds them:

    0x10000000 + table * 4096 + generation   changed rows of a table: the encoded row, or nothing where the id has none
    0x40000000 + table                       ids that merges changed since the version was loaded, no values
    0xFFFFFFFF + name                        markers: texts

Tables have numbers below 65,536. Numbers from 0x80000000 on are those of spilled overlays, in which each table of each
overlay has a number of its own; they have page files and no keys.
"""

from __future__ import annotations

import numpy as np

GENERATIONS = 0x1000_0000
CHANGED = 0x4000_0000
SPILLS = 0x8000_0000
MARKERS = 0xFFFF_FFFF
MAX_TABLES = 1 << 16
# Generations of a table that keys can distinguish; two are in use at a time.
GENERATION_NUMBERS = 1 << 12
SIGN = np.uint64(1 << 63)
# 'V' and not 'S': numpy strips trailing zero bytes from 'S'.
KEY = np.dtype([("table", ">u4"), ("id", ">u8")])


def generation_group(table: int, generation: int) -> int:
    """Returns the group of the rows that a generation changed in a table."""
    return GENERATIONS + table * GENERATION_NUMBERS + generation % GENERATION_NUMBERS


def table_of_group(group: int) -> int:
    """Returns the table that a generation's group belongs to."""
    return (group - GENERATIONS) // GENERATION_NUMBERS


def row_keys(group: int, ids: np.ndarray) -> list[bytes]:
    """Returns the keys of ids (n,) int64 in a group."""
    keys = np.empty(len(ids), KEY)
    keys["table"] = group
    keys["id"] = np.ascontiguousarray(ids, np.int64).view(np.uint64) ^ SIGN
    raw: list[bytes] = keys.view(f"V{KEY.itemsize}").tolist()
    return raw


def row_values(rows: np.ndarray) -> list[bytes]:
    """Returns the values of encoded rows (n, row_bytes) uint8."""
    values: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist()
    return values


def ids_of(keys: list[bytes]) -> np.ndarray:
    """Returns the ids (n,) int64 of row keys."""
    raw = np.frombuffer(b"".join(keys), KEY)["id"].astype(np.uint64)
    ids: np.ndarray = (raw ^ SIGN).view(np.int64)
    return ids


def group_prefix(group: int) -> bytes:
    """Returns the prefix of the keys of a group, which is also the end of the keys of the group before."""
    return group.to_bytes(4, "big")


def marker_key(name: str) -> bytes:
    """Returns the key of a marker."""
    return group_prefix(MARKERS) + name.encode()
