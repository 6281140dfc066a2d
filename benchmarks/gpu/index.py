"""Builds the index of a GPU's cache on the GPU itself with torch: 100 million ids need neither a list nor a copy.

Slot s holds the row of id s * _SPREAD, modulo 2^64. Ids are inserted as the host's cache inserts them: into their first
bucket, else their second, else in place of another that moves to its own other bucket. N ids, L buckets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

IDS_OF_BUCKET = 4
BUCKET_BYTES = 64
# Bytes of the GPU's memory that building an index takes for each id, beside the buckets.
WORK_BYTES = 12
_BUCKET_WORDS = 8
_SPREAD = -0x61C8864680B583EB
# Ids that are inserted at a time.
_CHUNK = 1 << 23
# Moves after which an id is left out.
_MOVES = 200
_ONE_USE = 1 << 48
_OVERFLOW = 1 << 56


@dataclass(frozen=True)
class Index:
    """An index on the GPU."""

    #: (L, 8) int64, laid out as in cuda/cache_bucket.cuh.
    buckets: Tensor
    #: The number of rows: slots 1 to `rows` were inserted.
    rows: int
    #: (rows + 1,) bool, by slot.
    has_place: Tensor
    #: The share of the ids that are in their second bucket.
    in_second: float


def ids_of(slots: Tensor) -> Tensor:
    """Returns (n,) int64 ids of slots (n,) int64, of both signs and all different."""
    return slots * _SPREAD


def buckets_for(rows: int) -> int:
    """Returns the number of buckets that a cache of this capacity has: three of four positions are taken."""
    return max(2, (rows + 2) // 3)


def mix(values: Tensor) -> Tensor:
    """Computes `mix` of cuda/bucket.cuh in int64."""
    values = (values ^ _shifted(values, 30)) * -0x40A7B892E31B1A47
    values = (values ^ _shifted(values, 27)) * -0x6B2FB644ECCEEE15
    return values ^ _shifted(values, 31)


def two_buckets(ids: Tensor, table: int, buckets: int) -> tuple[Tensor, Tensor]:
    """Returns the first and second bucket (n,) int64 of ids; buckets: below 2^31."""
    salt = mix(torch.tensor(_signed(table * 0xA0761D6478BD642F), dtype=torch.int64))
    mixed = mix((ids ^ int(salt)) + _signed(0x9E3779B97F4A7C15))
    first = _multiply_high(mixed, buckets)
    second = _multiply_high((mixed << 32) | _shifted(mixed, 32), buckets)
    return first, torch.where(second == first, (second + 1) % buckets, second)


def make_index(rows: int, zeros: Callable[[int], Tensor], table: int = 0) -> Index:
    """Builds an index.

    zeros: allocates that many bytes on the GPU, uint8, all 0; the index begins at a multiple of 64.
    """
    count = buckets_for(rows)
    buckets = zeros(count * BUCKET_BYTES).view(torch.int64).view(count, _BUCKET_WORDS)
    places = _Places(rows, table, count, buckets.device)
    for start in range(1, rows + 1, _CHUNK):
        places.insert(torch.arange(start, min(start + _CHUNK, rows + 1), dtype=torch.int64, device=buckets.device))
    has_place = torch.zeros(rows + 1, dtype=torch.bool, device=buckets.device)
    seconds = 0
    step = max(1, _CHUNK // IDS_OF_BUCKET)
    for begin in range(0, count, step):
        owners = places.owners[begin : begin + step].long()
        held = owners > 0
        ids = ids_of(owners)
        block = buckets[begin : begin + step]
        block[:, :IDS_OF_BUCKET] = torch.where(held, ids, 0)
        block[:, IDS_OF_BUCKET:] += torch.where(held, owners | table << 32 | _ONE_USE, 0)
        first, _ = two_buckets(ids, table, count)
        own = torch.arange(begin, begin + len(block), device=buckets.device)[:, None]
        away = torch.unique(first[held & (first != own)])
        buckets[away, IDS_OF_BUCKET] |= _OVERFLOW
        seconds += int((held & (first != own)).sum())
        has_place[owners[held]] = True
    return Index(buckets, rows, has_place, seconds / max(1, int(has_place.sum())))


class _Places:
    """The slots in each bucket.

    owners: (L, 4) int32 slots, 0 for none; those of a bucket are at its beginning.
    """

    def __init__(self, rows: int, table: int, buckets: int, device: torch.device) -> None:
        self.owners = torch.zeros((buckets, IDS_OF_BUCKET), dtype=torch.int32, device=device)
        self._taken = torch.zeros(buckets, dtype=torch.int64, device=device)
        self._table, self._buckets = table, buckets

    def insert(self, slots: Tensor) -> None:
        """Inserts slots; leaves out those for which no bucket has room."""
        first, second = two_buckets(ids_of(slots), self._table, self._buckets)
        rest = self._put(slots, first)
        slots = slots[rest]
        targets = second[rest]
        for move in range(_MOVES):
            rest = self._put(slots, targets)
            slots, targets = slots[rest], targets[rest]
            if len(slots) == 0:
                return
            slots, targets = self._swap(slots, targets, move)

    def _put(self, slots: Tensor, targets: Tensor) -> Tensor:
        """Inserts into free positions of the target buckets; returns the numbers of those for which there was none."""
        order = torch.argsort(targets, stable=True)
        buckets = targets[order]
        number = torch.arange(len(buckets), device=buckets.device)
        is_first = torch.ones(len(buckets), dtype=torch.bool, device=buckets.device)
        is_first[1:] = buckets[1:] != buckets[:-1]
        at = self._taken[buckets] + number - torch.where(is_first, number, 0).cummax(0).values
        fits = at < IDS_OF_BUCKET
        self.owners[buckets[fits], at[fits]] = slots[order][fits].int()
        self._taken.index_add_(0, buckets[fits], torch.ones_like(buckets[fits]))
        return order[~fits]

    def _swap(self, slots: Tensor, targets: Tensor, move: int) -> tuple[Tensor, Tensor]:
        """Puts one id in each full bucket in place of another; the displaced ids go on to their other buckets."""
        order = torch.argsort(targets, stable=True)
        buckets = targets[order]
        wins = torch.ones(len(buckets), dtype=torch.bool, device=buckets.device)
        wins[1:] = buckets[1:] != buckets[:-1]
        winners, where = slots[order][wins], buckets[wins]
        held = self.owners[where].long()
        first, second = two_buckets(ids_of(held), self._table, self._buckets)
        others = torch.where(first == where[:, None], second, first)
        # Prefers one that finds room at once, if there is one.
        has_room = self._taken[others] < IDS_OF_BUCKET
        at = torch.where(has_room.any(1), has_room.int().argmax(1), _shifted(mix(winners + move), 62))[:, None]
        losers, to = held.gather(1, at)[:, 0], others.gather(1, at)[:, 0]
        self.owners[where, at[:, 0]] = winners.int()
        return torch.cat((slots[order][~wins], losers)), torch.cat((buckets[~wins], to))


def _shifted(values: Tensor, by: int) -> Tensor:
    """Shifts to the right, filling with zeros."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def _multiply_high(values: Tensor, by: int) -> Tensor:
    """Returns the upper 64 bits of unsigned products; by: below 2^31."""
    return _shifted(_shifted(values, 32) * by + _shifted((values & 0xFFFFFFFF) * by, 32), 32)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
