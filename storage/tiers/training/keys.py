"""Lays out the rows of training tables that are not in DRAM as keys and values of one database.

A key starts with a space (u32, big endian): the kind of its entry, then the number of the table. Ids follow with their
sign bit flipped, so that byte order is the order of ids.

    RECORDS     space, id          what is known of an id: its row, or what it has without one
    ROWS_AT     space, stamp, id   a row changed last at that stamp; one entry for each row of RECORDS, no value
    WAITING_AT  space, stamp, id   the count of an id without a row became the value (u32); the newest stamp counts
    REMOVED_AT  space, stamp, id   an id was erased at that stamp, if its record still says so; no value
    USED_AT     space, part, tick, id   a row was used last at that tick, if its record still says so; no value

The part of an id is a bounded share of all ids (`TrainingTable.parts_of`); USED_AT is there for tables that evict.

A row's record is what the native table packs: count, stamp, tick, weights, optimizer values. The record of an id
without a row is a `BARE`, whose size no row's record has, because those are multiples of four.
"""

from __future__ import annotations

import numpy as np

TABLES = 1 << 24
RECORDS, ROWS_AT, WAITING_AT, REMOVED_AT, USED_AT = (kind * TABLES for kind in range(5))
BARE = np.dtype([("count", "<u4"), ("waiting", "<u4"), ("removed", "<u4"), ("tag", "u1")])
_RECORD_KEY = np.dtype([("space", ">u4"), ("id", ">u8")])
_AT_KEY = np.dtype([("space", ">u4"), ("stamp", ">u4"), ("id", ">u8")])
_USED_KEY = np.dtype([("space", ">u4"), ("part", ">u2"), ("tick", ">u4"), ("id", ">u8")])
_SIGN = np.uint64(1 << 63)


def space_prefix(space: int) -> bytes:
    """Returns the prefix of all keys of a space, which is also the end of the keys of the space before."""
    return space.to_bytes(4, "big")


def at_prefix(space: int, stamp: int) -> bytes:
    """Returns the prefix of all keys of a stamp."""
    return space_prefix(space) + stamp.to_bytes(4, "big")


def record_keys(table: int, ids: np.ndarray) -> list[bytes]:
    """Returns the keys of the records of ids (n,) int64."""
    keys = np.empty(len(ids), _RECORD_KEY)
    keys["space"] = RECORDS + table
    keys["id"] = _flipped(ids)
    return _raw(keys)


def at_keys(space: int, stamps: np.ndarray, ids: np.ndarray) -> list[bytes]:
    """Returns the keys of ids (n,) int64 at stamps (n,)."""
    keys = np.empty(len(ids), _AT_KEY)
    keys["space"] = space
    keys["stamp"] = stamps
    keys["id"] = _flipped(ids)
    return _raw(keys)


def used_prefix(table: int, part: int, tick: int) -> bytes:
    """Returns the prefix of all USED_AT keys of a part and a tick."""
    return space_prefix(USED_AT + table) + part.to_bytes(2, "big") + tick.to_bytes(4, "big")


def used_keys(table: int, parts: np.ndarray, ticks: np.ndarray, ids: np.ndarray) -> list[bytes]:
    """Returns the USED_AT keys of ids (n,) int64 with their parts (n,) and ticks (n,), in ascending order."""
    keys = np.empty(len(ids), _USED_KEY)
    keys["space"] = USED_AT + table
    keys["part"] = parts
    keys["tick"] = ticks
    keys["id"] = _flipped(ids)
    return _raw(keys[np.lexsort((keys["id"], keys["tick"], keys["part"]))])


def parts_of_used(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ticks (n,) uint32 and ids (n,) int64 of USED_AT keys."""
    parts = np.frombuffer(b"".join(keys), _USED_KEY)
    return parts["tick"].astype(np.uint32), _plain(parts["id"])


def raw_values(values: np.ndarray) -> list[bytes]:
    """Returns the bytes of each entry of values (n,) or (n, m), contiguous."""
    if len(values) == 0:
        return []
    size = values.nbytes // len(values)
    raw: list[bytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8).view(f"V{size}").tolist()
    return raw


def ids_of_records(keys: list[bytes]) -> np.ndarray:
    """Returns the ids (n,) int64 of record keys."""
    return _plain(np.frombuffer(b"".join(keys), _RECORD_KEY)["id"])


def parts_of_at(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the stamps (n,) uint32 and ids (n,) int64 of keys at stamps."""
    parts = np.frombuffer(b"".join(keys), _AT_KEY)
    return parts["stamp"].astype(np.uint32), _plain(parts["id"])


def _flipped(ids: np.ndarray) -> np.ndarray:
    flipped: np.ndarray = np.ascontiguousarray(ids, np.int64).view(np.uint64) ^ _SIGN
    return flipped


def _plain(flipped: np.ndarray) -> np.ndarray:
    plain: np.ndarray = (flipped.astype(np.uint64) ^ _SIGN).view(np.int64)
    return plain


def _raw(keys: np.ndarray) -> list[bytes]:
    # 'V' and not 'S': numpy strips trailing zero bytes from 'S'.
    raw: list[bytes] = keys.view(f"V{keys.dtype.itemsize}").tolist()
    return raw
