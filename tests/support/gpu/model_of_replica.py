"""Builds a GPU's replica on the processor in Python, and batches over it, for tests that launch its kernels.

`Replica` has the index of cuda/cache_bucket.cuh, published by launches as decision 0029 says; `Feature` and `Batch` are
what a session packs for cuda/lookup.cuh, with the answers that follow from a dict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from storage.hbm import lookup_kernels
from storage.hbm.device import KernelCall
from storage.hbm.lookup_kernels import CHAIN_LENGTH_WORD, CHAIN_WORD, FEATURE_SHIFT, OutputType, header_words
from storage.rows import RowCodec
from storage.specs import ROW_TYPES
from tests.simulated_gpu import kernels

ASK_HOST = 0xFFFFFFFF
TABLES = 3
ROWS = 14  # the rows that launches are sized for
MISS_ROOM = 500
SUM, MEAN, WEIGHTED = 0, 1, 3
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MASK = (1 << 64) - 1


def run(call: KernelCall) -> None:
    """Runs a launch as a GPU does when its turn comes."""
    kernels.run(call.name, call.values, call.blocks)


def mix(value: int) -> int:
    """Computes `mix` of cuda/bucket.cuh."""
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 & MASK
    value ^= value >> 27
    value = value * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def both_buckets(table: int, id_: int, buckets: int) -> tuple[int, int]:
    """Returns the two buckets of an id's owner, as cuda/bucket.cuh and cache_bucket.cuh define them."""
    salt = mix(table * 0xA0761D6478BD642F & MASK)
    mixed = mix(((id_ & MASK) ^ salt) + 0x9E3779B97F4A7C15 & MASK)
    first = mixed * buckets >> 64
    second = ((mixed << 32 & MASK) | mixed >> 32) * buckets >> 64
    return first, (second + 1) % buckets if second == first else second


class Replica:
    """Rows of one type and dim under tables, published as decision 0029 says. rows: the published rows, decoded."""

    def __init__(self, row_type: str, dim: int, capacity: int, seed: int) -> None:
        self.codec = RowCodec(row_type, dim)
        self.random = np.random.default_rng(seed)
        self.stride = -(-self.codec.row_bytes // 16) * 16
        self.slots = capacity
        self.bucket_count = max(2, capacity // 2)
        self.buckets = torch.zeros(self.bucket_count * 8, dtype=torch.int64)
        self.slab = torch.full(((capacity + 1) * self.stride,), 0xFF, dtype=torch.uint8)
        self.uses = torch.zeros(capacity + 1, dtype=torch.uint8)
        self.shared = (self.buckets, self.slab, self.uses)
        self.rows: dict[tuple[int, int], np.ndarray | None] = {}
        self._words = np.zeros(self.bucket_count * 8, np.uint64)  # the host's copy of the index

    def encoded(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns random rows: encoded, and decoded."""
        encoded = self.codec.encode(self.random.standard_normal((n, self.codec.dim), np.float32))
        return encoded, self.codec.decode(encoded)

    def publish(self, table: int, ids: np.ndarray, ask_host: bool = False) -> None:
        """Publishes new owners: rows, words of buckets whose owners overflow, ids, words of owners."""
        encoded, decoded = self.encoded(len(ids))
        rows: list[tuple[int, int]] = []
        lists: list[dict[int, int]] = [{}, {}, {}]
        flags, names, words = lists
        for number, id_ in enumerate(ids.tolist()):
            slot = ASK_HOST if ask_host else sum(row is not None for row in self.rows.values()) + 1
            place = self._place(table, id_, flags)
            names[place] = id_
            words[place + 4] = int(self._words[place + 4]) | slot | table << 32 | 7 << 48
            self._words[place + 4] = words[place + 4]
            if not ask_host:
                rows.append((slot, number))
            self.rows[table, id_] = None if ask_host else decoded[number]
        if rows:
            staging = torch.zeros((len(ids), self.stride), dtype=torch.uint8)
            staging[:, : self.codec.row_bytes] = torch.from_numpy(encoded.copy())
            run(
                lookup_kernels.publish_rows(
                    entries=torch.tensor(rows),
                    count=torch.tensor([len(rows)]),
                    room=len(rows),
                    staging=staging,
                    staged=len(ids),
                    slab=self.slab,
                    slots=self.slots,
                    stride=self.stride,
                )
            )
        for stores in lists:
            entries = np.array([(at, word & MASK) for at, word in stores.items()], np.uint64).reshape(-1, 2)
            run(
                lookup_kernels.publish_stores(
                    entries=torch.from_numpy(entries.view(np.int64)),
                    count=torch.tensor([len(entries)]),
                    room=len(entries) + 3,
                    buckets=self.buckets,
                    bucket_count=self.bucket_count,
                )
            )

    def _place(self, table: int, id_: int, flags: dict[int, int]) -> int:
        """Returns the index of an empty position's id in one of the two buckets; flags those that overflow."""
        first, second = both_buckets(table, id_, self.bucket_count)
        for bucket in (first, second):
            if bucket == second:
                self._words[8 * first + 4] |= np.uint64(1 << 56)
                flags[8 * first + 4] = int(self._words[8 * first + 4])
            for at in range(4):
                if int(self._words[8 * bucket + 4 + at]) & 0xFFFFFFFF == 0:
                    return 8 * bucket + at
        raise AssertionError("the buckets are full: choose another seed")

    def find(self, table: int, id_: int, chain: tuple[int, ...]) -> np.ndarray | None:
        """Returns the row that a batch of this chain sees; None: a miss."""
        for at in (*(table + number * TABLES for number in chain), table):
            if (at, id_) in self.rows:
                return self.rows[at, id_]
        return None


class Feature:
    """One feature of a batch: bags of ids, and the output for them. It is pooled when a pooling is given."""

    def __init__(
        self,
        on: Replica,
        table: int,
        bags: list[list[int]],
        pooling: int | None = None,
        length: int = 0,
        type_: str = "fp32",
    ) -> None:
        self.on, self.table, self.bags = on, table, bags
        self.pooled, self.shape = pooling is not None, length if pooling is None else pooling
        self.ids = [id_ for bag in bags for id_ in bag]
        self.weights = on.random.standard_normal(len(self.ids), np.float32)
        ends = np.cumsum([0, *map(len, bags)])
        self.ranges = np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int32)
        # More outputs than rows of the batch, and than ids.
        outputs = ROWS if self.pooled else ROWS * length if length else len(self.ids) + 5
        self.bound = (1 << 63) - 1 if self.pooled or length else outputs
        self.output = torch.full((outputs, on.codec.dim), -1, dtype=TYPES[type_])
        self.states = torch.full((outputs,), 9, dtype=torch.uint8)

    def words(self) -> list[int]:
        """Returns the words of a feature's row in the table of cuda/lookup.cuh."""
        on = self.on
        replica = [on.buckets.data_ptr(), on.bucket_count, on.slab.data_ptr(), on.slots, on.stride]
        rows = [ROW_TYPES.index(on.codec.row_type), on.codec.dim, self.table, on.uses.data_ptr(), TABLES]
        return [*replica, *rows, self.bound, 0, 0, self.shape, self.output.data_ptr(), self.states.data_ptr()]

    def place(self, row: int, at: int) -> int | None:
        """Returns the output's row for the id `at` of a row; None: it is cut off."""
        if self.pooled:
            return row
        if self.shape:
            return row * self.shape + at if at < self.shape else None
        return int(self.ranges[row, 0]) + at


class Batch:
    """Packed ids of features, and launches over them."""

    def __init__(self, features: list[Feature], chain: tuple[int, ...]) -> None:
        self.features, self.chain = features, chain
        self.table = torch.tensor([feature.words() for feature in features])
        header = np.zeros(header_words(len(features)), np.int64)
        header[0], header[1] = 1234, len(features[0].bags)
        header[CHAIN_LENGTH_WORD] = len(chain)
        header[CHAIN_WORD : CHAIN_WORD + len(chain)] = chain
        sections: list[bytes] = []
        end = header.nbytes
        for number, feature in enumerate(features):
            offsets = []
            for values in (np.array(feature.ids, np.int64), feature.ranges, feature.weights):
                sections.append(bytes(-end % 16) + values.tobytes())
                offsets.append(end + -end % 16)
                end += len(sections[-1])
            at = lookup_kernels.PACKED_FEATURE_WORD + number * lookup_kernels.PACKED_FEATURE_WORDS
            header[at : at + 4] = [offsets[0], len(feature.ids), *offsets[1:]]
        self.header = torch.frombuffer(bytearray(header.tobytes() + b"".join(sections)), dtype=torch.uint8)
        self.misses = torch.full((MISS_ROOM, 2), -1)
        self.miss_count = torch.zeros(1, dtype=torch.int64)
        self.outputs = tuple(part for feature in features for part in (feature.output, feature.states))

    def look_up(self, output: OutputType | None, use_every: int = 0) -> None:
        """Launches gather, or pool when there is no output type."""
        longest = max(len(feature.output) for feature in self.features)
        of_all: dict[str, Any] = {
            "row_type": self.features[0].on.codec.row_type,
            "features": self.table,
            "feature_count": len(self.features),
            "header": self.header,
            "rows": ROWS,
            "misses": self.misses,
            "miss_count": self.miss_count,
            "miss_room": MISS_ROOM,
            "use_every": use_every,
            "outputs": self.outputs,
            "shared": self.features[0].on.shared,
        }
        if output is None:
            run(lookup_kernels.pool(**of_all))
        else:
            run(lookup_kernels.gather(output, longest=longest, **of_all))

    def found(self, feature: Feature, id_: int) -> np.ndarray | None:
        """Returns the row that this batch sees."""
        return feature.on.find(feature.table, id_, self.chain)

    def expected_misses(self) -> list[tuple[int, int]]:
        """Returns the misses that must be listed, sorted."""
        misses = []
        for number, feature in enumerate(self.features):
            for row, bag in enumerate(feature.bags):
                for at, id_ in enumerate(bag):
                    place = feature.place(row, at)
                    if place is not None and self.found(feature, id_) is None:
                        misses.append((number << FEATURE_SHIFT | int(feature.ranges[row, 0]) + at, place))
        return sorted(misses)

    def missed(self) -> list[tuple[int, int]]:
        """Returns the misses in the list, sorted."""
        count = int(self.miss_count[0])
        assert (self.misses[count:] == -1).all()
        return sorted(map(tuple, self.misses[:count].tolist()))
