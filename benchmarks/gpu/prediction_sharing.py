"""Prediction, not measured: where several GPUs find rows, each caching what it is asked for alone, and with
`hbm_placement: shard`.

The real cache policy of each GPU, its index and its counts run over the same traffic. There is no GPU, no rows and no
time: only where ids are found is counted. A GPU reports to its policy as a session would (serving/gpu/lookup.py): ids
missed on every GPU, to the GPU whose part they belong to; every eighth use as a mark; a sample of every sixteenth
batch.

    python -m benchmarks.gpu.prediction_sharing
    python -m benchmarks.gpu.prediction_sharing --gpus 8 --share 0.01
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import numpy as np

from benchmarks.traffic import BATCH, Array, random_ids
from loadtest.popularity import Popularity, production_reuse, zipf
from storage._table import GpuCache
from storage.hbm.sharing import Placement

_TABLE = 0
_ROW = 4  # bytes; no row is looked at
_USE_EVERY = 8
_SAMPLED_BATCHES, _SAMPLED_IDS = 16, 4
_MARKS_EVERY_ROWS = 20


@dataclass
class Gpu:
    """The cache policy of one GPU."""

    cache: GpuCache
    #: Its part number, of `parts`.
    part: int
    parts: int
    #: Lookups that have not been reported to its policy yet.
    lookups: int = 0
    #: Hits that have not been reported to its policy yet.
    hits: int = 0
    marks: Array = field(init=False)

    def __post_init__(self) -> None:
        self.marks = np.zeros(self.cache.slots + 1, np.uint8)

    def offer(self, ids: Array) -> None:
        """Offers ids that were requested and are not here to the policy."""
        wanted = ids[self.cache.ask(_TABLE, ids)]
        step = max(1, self.cache.free_slots)
        for start in range(0, len(wanted), step):
            piece = wanted[start : start + step]
            self.cache.offer(_TABLE, piece, np.zeros((len(piece), _ROW), np.uint8), None, True)
            self.cache.take_set()
            self.cache.complete_set()

    def passed(self, lookups: int, hits: int) -> None:
        """Reports a batch to the policy, and marks when they are due."""
        self.lookups, self.hits = self.lookups + lookups, self.hits + hits
        if self.lookups > _MARKS_EVERY_ROWS * self.cache.capacity_rows:
            self.cache.note_uses(self.marks, _USE_EVERY, 1, self.parts, self.part)
            self.marks[:] = 0
            self.cache.pass_lookups(self.lookups, self.hits)
            self.lookups = self.hits = 0


class Gpus:
    """Several GPUs. placement: None when each GPU caches what it is asked for alone."""

    def __init__(self, count: int, rows: int, placement: Placement | None) -> None:
        parts = 1 if placement is None else count
        self.gpus = [Gpu(GpuCache(_ROW, rows, 1), number if parts > 1 else 0, parts) for number in range(count)]
        self._placement = placement
        self._batches = 0
        self._rng = np.random.default_rng(2)

    def look_up(self, number: int, ids: Array) -> tuple[int, int]:
        """Looks up a batch on one GPU; returns how many ids it has itself, and how many another one has."""
        gpu, self._batches = self.gpus[number], self._batches + 1
        slots = gpu.cache.find(_TABLE, ids)
        self._mark(gpu, slots)
        own = int(np.count_nonzero(slots))
        missed, across = ids[slots == 0], 0
        if self._placement is None:
            gpu.offer(np.unique(missed))
            gpu.passed(len(ids), own)
            return own, 0
        parts = self._placement.parts(_TABLE, missed)
        for part, other in enumerate(self.gpus):
            its = missed[parts == part]
            if other is not gpu:
                there = other.cache.find(_TABLE, its)
                self._mark(other, there)
                across += int(np.count_nonzero(there))
                its = its[there == 0]
            other.offer(np.unique(its))
        if self._batches % (_SAMPLED_BATCHES * len(self.gpus)) < len(self.gpus):
            sample = ids[::_SAMPLED_IDS].copy()
            sample = sample[self._placement.parts(_TABLE, sample) != number]
            gpu.cache.use(_TABLE, sample)
            gpu.offer(sample)
        self.gpus[self._batches % len(self.gpus)].passed(len(ids), own + across)
        return own, across

    def _mark(self, gpu: Gpu, slots: Array) -> None:
        gpu.marks[slots[self._rng.random(len(slots)) < 1 / _USE_EVERY]] = 1


def measure(traffic: Popularity, gpus: int, rows: int, placement: Placement | None, batches: int) -> tuple[Array, int]:
    """Measures shares of ids that were on the GPU itself, and on another one, in the last quarter.

    Also returns how many distinct rows the GPUs hold.
    """
    group = Gpus(gpus, rows, placement)
    ids = random_ids(traffic.count)
    rng = np.random.default_rng(3)
    found = np.zeros(2)
    for batch in range(batches):
        own, across = group.look_up(batch % gpus, ids[traffic.ranks(rng, BATCH)])
        if batch >= batches * 3 // 4:
            found += own, across
    held = np.zeros(len(ids), np.bool_)
    for gpu in group.gpus:
        held |= gpu.cache.find(_TABLE, ids) != 0
    return found / (BATCH * (batches - batches * 3 // 4)), int(held.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table")
    parser.add_argument("--share", type=float, default=0.025, help="of the rows that fit on one GPU")
    parser.add_argument("--batches", type=int, default=2400)
    options = parser.parse_args()
    room = int(options.rows * options.share)
    print("prediction, not measured on any GPU")
    print(f"{options.gpus} GPUs with room for {room:,} of {options.rows:,} rows each")
    print(
        f"{'traffic':<18} {'placement':<10} {'own gpu':>8} {'another':>8} {'host':>8} {'rows held':>10}   best static"
    )
    for traffic in (zipf(options.rows), production_reuse(options.rows)):
        for name, placement in (("replicate", None), ("shard", Placement(tuple(range(options.gpus))))):
            (own, across), held = measure(traffic, options.gpus, room, placement, options.batches)
            best = traffic.best_static(room if placement is None else room * options.gpus)
            line = f"{traffic.name:<18} {name:<10} {own:8.3f} {across:8.3f} {1 - own - across:8.3f} {held:10,}"
            print(f"{line}   {1 - best:.3f} to the host")


if __name__ == "__main__":
    main()
