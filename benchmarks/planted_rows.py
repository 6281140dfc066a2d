"""Tables whose every row encodes its id and the generation that wrote it, so that any row read can be checked.

A generation is one change of the tables. The ids that it writes and removes, and the values, are functions of
(seed, generation, table, id), so two processes agree on them without communicating. The values are whole numbers from
-127 to 127, and the first is 127: every row type (fp32, fp16, bf16, int8 with a scale) holds them exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.checkpoint.tables import Shard
from storage.rows import RowCodec
from storage.specs import TableSpec

Array = np.ndarray[Any, Any]
ABSENT = -1
EDGE_IDS = (-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1)
_SHARD_ROWS = 4096


def mixed(values: Array, salt: int) -> Array:
    """Hashes values (n,) of 64 bits to (n,) uint64 with the finaliser of splitmix64."""
    x = values.astype(np.uint64, copy=True)
    x ^= np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


@dataclass(frozen=True)
class PlantedState:
    """The content of the tables at one generation."""

    generation: int
    #: By table, the generation that wrote each id of the universe; ABSENT where it has no row.
    wrote: Mapping[str, Array]


class PlantedRows:
    """Computes the rows of each table, id and generation.

    tables: name -> (dim, ids of its universe). The universe has ids of the whole int64 range, its extremes included.
    """

    def __init__(self, tables: Mapping[str, tuple[int, int]], *, seed: int = 1, row_type: str = "fp32") -> None:
        self.seed = seed
        self.row_type = row_type
        self.dims = {name: dim for name, (dim, _) in tables.items()}
        rng = np.random.default_rng(seed)
        self.ids: dict[str, Array] = {}
        for name, (_, count) in tables.items():
            near = np.arange(-(count // 4), count // 4)
            far = rng.integers(-(2**63), 2**63 - 1, max(0, count - len(near) - len(EDGE_IDS)), endpoint=True)
            self.ids[name] = np.unique(np.concatenate([near, far, EDGE_IDS])).astype(np.int64)

    def first(self) -> PlantedState:
        """Returns generation 0: three ids of four have a row."""
        wrote = {name: np.where(self._dice(name, 0) % 4 == 0, ABSENT, 0) for name in self.ids}
        return PlantedState(0, wrote)

    def change(self, before: PlantedState, generation: int, *, one_in: int = 3) -> tuple[PlantedState, PlantedDelta]:
        """Changes one id in `one_in`: it is written anew or, once in five times, removed if it had a row."""
        wrote: dict[str, Array] = {}
        written: dict[str, Array] = {}
        removed: dict[str, Array] = {}
        for name, old in before.wrote.items():
            dice = self._dice(name, generation)
            touched = dice % one_in == 0
            gone = touched & (dice // one_in % 5 == 0)
            new = np.where(touched, np.where(gone, ABSENT, generation), old)
            wrote[name] = new
            written[name] = np.flatnonzero(touched & ~gone)
            removed[name] = self.ids[name][gone & (old != ABSENT)]
        after = PlantedState(generation, wrote)
        return after, PlantedDelta(self, generation, one_in, written, removed)

    def rows(self, table: str, positions: Array, generations: Array | int) -> Array:
        """Returns the rows that a generation writes to the ids at these positions of the universe: (n, dim) float32."""
        dim = self.dims[table]
        salted = self.ids[table][positions].view(np.uint64) + np.asarray(generations).astype(np.uint64) * np.uint64(
            0xD6E8FEB86659FD93
        )
        columns = np.arange(dim, dtype=np.uint64) * np.uint64(0xA0761D6478BD642F)
        dice = mixed(salted[:, None] + columns[None, :], self.seed + 1)
        rows = (dice % np.uint64(255)).astype(np.int64) - 127
        rows[:, 0] = 127
        return rows.astype(np.float32)

    def expected(self, state: PlantedState, table: str, positions: Array) -> tuple[Array, Array]:
        """Returns the correct result of a lookup of the ids at these positions of the universe.

        That is rows (n, dim), zeros where absent, and found (n,).
        """
        generations = state.wrote[table][positions]
        found = generations != ABSENT
        rows = self.rows(table, positions, np.maximum(generations, 0))
        rows[~found] = 0
        return rows, found

    def specs(self, state: PlantedState | None = None) -> tuple[TableSpec, ...]:
        """Returns the specs of the tables, with their numbers of rows in a state."""
        return tuple(
            TableSpec(
                name,
                dim,
                self.row_type,
                rows=0 if state is None else int(np.count_nonzero(state.wrote[name] != ABSENT)),
            )
            for name, dim in self.dims.items()
        )

    def codec(self, table: str) -> RowCodec:
        """Returns the codec of the table's rows."""
        return RowCodec(self.row_type, self.dims[table])

    def version(self, state: PlantedState) -> PlantedVersion:
        """Wraps a state in the interface of a published version."""
        return PlantedVersion(self, state)

    def _dice(self, table: str, generation: int) -> Array:
        name = int.from_bytes(hashlib.sha256(table.encode()).digest()[:4], "little")
        return mixed(self.ids[table].view(np.uint64), self.seed + name + generation * 7919).astype(np.int64) & 2**62 - 1


def snapshot_name(seed: int, generation: int) -> str:
    """Returns the snapshot id of a generation: 32 hex digits."""
    return f"{seed % 2**32:08x}{generation:024x}"


class PlantedVersion:
    """A state of planted rows, readable as a published version is."""

    equals: str | None = None

    def __init__(self, world: PlantedRows, state: PlantedState) -> None:
        self.path = Path(f"version-{state.generation}")
        self.snapshot = snapshot_name(world.seed, state.generation)
        self.tables = world.specs(state)
        self._world, self._state = world, state

    def shards(self, table: str) -> Iterator[Shard]:
        """Yields the rows in the order of ids; the most used ids are near zero."""
        places = np.flatnonzero(self._state.wrote[table] != ABSENT)
        for start in range(0, max(1, len(places)), _SHARD_ROWS):
            part = places[start : start + _SHARD_ROWS]
            ids = self._world.ids[table][part]
            freq = np.clip(200 - np.abs(ids.astype(np.float64)) / 8, 0, 200).astype(np.uint8)
            rows = self._world.expected(self._state, table, part)[0]
            yield Shard(ids, rows, freq, self._world.codec(table))

    def uses(self, table: str) -> Iterator[tuple[Array, Array]]:
        """Yields the ids and use counts of the shards."""
        for shard in self.shards(table):
            yield shard.ids, shard.freq

    def table_digest(self, table: str) -> str:
        """Returns a digest of the table's content."""
        text = f"{self._world.seed} {table} {self._world.row_type} ".encode()
        return hashlib.sha256(text + self._state.wrote[table].tobytes()).hexdigest()


class PlantedDelta:
    """The rows that a generation writes and the ids that it removes, readable as a published delta is."""

    def __init__(
        self,
        world: PlantedRows,
        generation: int,
        one_in: int,
        written: Mapping[str, Array],
        gone: Mapping[str, Array],
    ) -> None:
        self.path = Path(f"delta-{generation}")
        self.snapshot = snapshot_name(world.seed, generation)
        self.tables = tuple(
            TableSpec(name, world.dims[name], world.row_type, rows=len(places)) for name, places in written.items()
        )
        self._world, self._generation, self._one_in = world, generation, one_in
        self._written, self._gone = written, gone

    def shards(self, table: str) -> Iterator[Shard]:
        """Yields the written rows in the order of ids."""
        places = self._written[table]
        for start in range(0, len(places), _SHARD_ROWS):
            part = places[start : start + _SHARD_ROWS]
            rows = self._world.rows(table, part, self._generation)
            freq = np.zeros(len(part), np.uint8)
            yield Shard(self._world.ids[table][part], rows, freq, self._world.codec(table))

    def removed(self, table: str) -> Array:
        """Returns the ids that had a row before and have none now."""
        return self._gone[table]

    def applied_to(self, before: PlantedState) -> PlantedState:
        """Returns the state after this delta."""
        return self._world.change(before, self._generation, one_in=self._one_in)[0]
