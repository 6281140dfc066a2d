"""Builds a store of planted rows with a cache on a GPU, looks rows up on it and compares them with the planted ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.planted_rows import PlantedDelta, PlantedRows, PlantedState
from storage.features import Jagged
from storage.hbm.device import Device
from storage.hbm.gpus import gpus_of
from storage.hbm.sharing import sharing_of
from storage.hbm.tier import HbmTier
from storage.specs import LookupSpec
from storage.tiers.tiered import TieredStore
from tests.support.hbm.session import GpuLookupSession

TABLES = {"user": (4, 3000), "item": (16, 6000), "word": (33, 800)}
ROWS = 512
# More than all rows take.
ALL_BYTES = 4 << 20


class GpuWorld:
    """A store, its GPUs and their sessions. Not thread-safe: one thread uses it at a time.

    state: of the served snapshot. mask: the mask that shows it. tiers, sessions: of the device, then of those that
    share rows with it.
    """

    def __init__(
        self,
        folder: Path,
        device: Device,
        *others: Device,
        hbm_bytes: int = ALL_BYTES,
        dram_bytes: int | None = None,
        row_type: str = "fp32",
        filled: bool = True,
    ) -> None:
        self.device = device
        self.rows = PlantedRows(TABLES, row_type=row_type)
        self.state = self.rows.first()
        self.mask = 0
        self.deltas: dict[int, PlantedDelta] = {}
        self.store = TieredStore.open(folder, self.rows.specs(), dram_bytes=dram_bytes)
        self.store.load(self.rows.version(self.state))
        sharing_of(self.store).share_rows([device, *others])
        self.tiers: list[HbmTier] = []
        self.sessions: list[GpuLookupSession] = []
        for each in (device, *others):
            each.enter_thread()
            tier = gpus_of(self.store).open(each, hbm_bytes)
            tier.settle_after_s = 0.3
            self.tiers.append(tier)
            self.sessions.append(self._session(each, tier, bool(others)))
        self.tier, self.session = self.tiers[0], self.sessions[0]
        device.enter_thread()
        if filled:
            assert gpus_of(self.store).wait_filled(60)

    def reopen(self, hbm_bytes: int = ALL_BYTES) -> None:
        """Opens a cache on the GPU after another one was closed; any thread may call it."""
        self.tier = gpus_of(self.store).open(self.device, hbm_bytes)
        self.session = self.sessions[0] = self._session(self.device, self.tier, False)
        assert gpus_of(self.store).wait_filled(60)

    def _session(self, device: Device, tier: HbmTier, across: bool) -> GpuLookupSession:
        reader = sharing_of(self.store).reader(tier) if across else None
        return GpuLookupSession(device, tier, list(TABLES), ROWS, ROWS * 8, reader)

    def close(self) -> None:
        """Closes the store."""
        self.store.close()

    def quiet(self) -> None:
        """Stops all upkeep: from now on the GPUs change only when a test makes them."""
        for worker in gpus_of(self.store)._workers.values():
            worker.close()

    def follow(self, state: PlantedState, mask: int) -> None:
        """Serves a snapshot and makes it the GPU's base; call it after `quiet`."""
        self.serve(state, mask)
        self.store.prepare(mask)
        self.look()
        before, self.tier.settle_after_s = self.tier.settle_after_s, 0.0
        assert self.tier.settle()
        self.tier.settle_after_s = before

    def answers(self, mask: int) -> bool:
        """Returns whether the GPU answers for a mask."""
        bags = Jagged(np.array([0]), np.array([0, 1]))
        return self.session.lookup(mask, 1, LookupSpec("user", "user", "none", 1), bags) is not None

    def look_on_the_host(self, state: PlantedState, mask: int) -> None:
        """Looks everything up on the host alone. Raises AssertionError for a wrong row."""
        for name, ids in self.rows.ids.items():
            plan = self.store.plan([LookupSpec(name, name, "none", 1)])
            result = plan.lookup(len(ids), [Jagged(ids, np.arange(len(ids) + 1))], mask=mask)
            rows, _ = self.rows.expected(state, name, np.arange(len(ids)))
            np.testing.assert_array_equal(result.outputs[0][:, 0], rows)

    def stage(self, one_in: int = 3) -> tuple[int, PlantedState, int]:
        """Stages a delta on the served snapshot; returns its overlay, state and mask. It is not served yet."""
        state, delta = self.rows.change(self.state, len(self.deltas) + 1, one_in=one_in)
        number = self.store.stage(delta)
        self.deltas[number] = delta
        return number, state, self.mask | 1 << number

    def merge(self, number: int, on_step: Callable[[str], None] | None = None) -> None:
        """Moves an overlay of `stage` into the store's base."""
        self.store.merge(number, at=self.deltas[number].snapshot, on_step=on_step)

    def install_all(self) -> int:
        """Offers every id to the GPU as a hot one; returns how many were installed."""
        tables = enumerate(self.rows.ids.values())
        return sum(self.tier.install(index, ids, np.full(len(ids), 255, np.uint8)) for index, ids in tables)

    def serve(self, state: PlantedState, mask: int) -> None:
        """Serves this state from now on."""
        self.state, self.mask = state, mask

    def look(
        self, state: PlantedState | None = None, mask: int | None = None, pooling: str = "none", gpu: int = 0
    ) -> float:
        """Looks everything up on the GPU; returns the share of rows that hit. Raises AssertionError for a wrong one.

        gpu: index of the session in `sessions`.
        """
        state, mask = state or self.state, self.mask if mask is None else mask
        had = there = 0
        each = 1 if pooling == "none" else 5
        for name in TABLES:
            ids = self.rows.ids[name]
            at = np.arange(len(ids) // each * each)
            for start in range(0, len(at), ROWS * each):
                part = at[start : start + ROWS * each]
                batch = len(part) // each
                bags = Jagged(ids[part], np.arange(batch + 1) * each)
                answer = self.sessions[gpu].lookup(mask, batch, LookupSpec(name, name, pooling, 1), bags)
                assert answer is not None, f"the GPU does not answer for mask {mask:b}"
                rows, found = self.rows.expected(state, name, part)
                assert np.isin(np.flatnonzero(~found), answer.missed).all(), "the GPU has rows that are not there"
                rows[answer.missed] = 0
                np.testing.assert_array_equal(answer.rows, rows.reshape(batch, each, -1).sum(1))
                there += int(np.count_nonzero(found))
                had += len(part) - len(answer.missed)
        return had / there

    def ask(self, table: str, places: np.ndarray) -> int:
        """Looks ids up on the GPU, one a row, and reports them as a session does; returns how many it did not have.

        It also reports many more ids, all hits, as if from other sessions, so that use counts age.
        """
        index = list(TABLES).index(table)
        ids = self.rows.ids[table][places]
        bags = Jagged(ids, np.arange(len(ids) + 1))
        answer = self.session.lookup(self.mask, len(ids), LookupSpec(table, table, "none", 1), bags)
        assert answer is not None
        lookups, misses = np.zeros(len(TABLES), np.uint64), np.zeros(len(TABLES), np.uint64)
        lookups[index], misses[index] = len(ids) + 20_000, len(answer.missed)
        self.tier.tell(lookups, misses, [(index, np.unique(ids[answer.missed]))])
        return len(answer.missed)
