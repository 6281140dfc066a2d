"""A store with a cache on a GPU under everything at once: sessions on streams of their own, deltas, rollbacks, merges,
admissions, other sizes, reopenings.

Every row that a session gets from the GPU is compared with what the snapshot that it pinned must hold; what it misses
is not wrong. Without --GPU the GPU is simulated.

    python -m tests.soak.hbm --seconds 600
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from serving.gpu.driver import Gpus
from storage.features import Jagged
from storage.hbm.device import Device
from storage.hbm.gpus import gpus_of
from storage.hbm.sharing import sharing_of
from storage.tiers.tiered import TieredStore
from tests.simulated_gpu import SimulatedGpus
from tests.soak.snapshots import Snapshot
from tests.soak.store import BAG, FEATURES, TABLES, Soak, state_line
from tests.support.hbm.session import GpuLookupSession

SESSIONS = 4
_ROWS = 256
SIZES = (300_000, 1_000_000, 4_000_000)


class HbmSoak(Soak):
    """One run over a store with a cache on GPUs; several GPUs share rows.

    counts: also GPU lookups, GPU rows, GPU misses, resized, prepared.
    """

    readers = SESSIONS + 1

    def __init__(self, folder: Path, *devices: Device, seed: int = 1, row_type: str = "fp32") -> None:
        self._devices = devices
        super().__init__(folder, seed=seed, row_type=row_type)

    def _open(self) -> TieredStore:
        store = super()._open()
        sharing_of(store).share_rows(self._devices)
        for device in self._devices:
            device.enter_thread()
            gpus_of(store).open(device, SIZES[1]).settle_after_s = 0.3
        return store

    def _serve(self, snapshot: Snapshot) -> None:
        # Half of them come unannounced: the GPU finds out by itself.
        if self.generation % 2 == 0:
            self.store.prepare(snapshot.mask)
            self.counts["prepared"] += 1
        super()._serve(snapshot)

    def _read(self, number: int) -> None:
        if number >= SESSIONS:
            super()._read(number)
            return
        rng = np.random.default_rng([self.seed, number, self.counts["reopened"]])
        store, session = None, None
        while True:
            snapshot = self.snapshots.pin()
            try:
                if session is None or store is not self.store:
                    store = self.store
                    device = self._devices[number % len(self._devices)]
                    tier = gpus_of(store).tiers[device.info.index]
                    reader = sharing_of(store).reader(tier) if len(self._devices) > 1 else None
                    session = GpuLookupSession(device, tier, list(TABLES), _ROWS, _ROWS * BAG, reader)
                self._look(session, snapshot, rng)
            finally:
                self.snapshots.unpin(snapshot)

    def _look(self, session: GpuLookupSession, snapshot: Snapshot, rng: np.random.Generator) -> None:
        batch = int(rng.choice([1, 8, 64, _ROWS]))
        spec = FEATURES[int(rng.integers(len(FEATURES)))]
        at = self._places(spec, batch, rng)
        ids = self.world.ids[spec.table][at]
        each = len(at) // batch
        answer = session.lookup(snapshot.mask, batch, spec, Jagged(ids, np.arange(batch + 1) * each))
        table = list(TABLES).index(spec.table)
        if answer is None:
            self.counts["GPU unprepared"] += 1
            time.sleep(0.001)
            return
        rows, found = self.world.expected(snapshot.state, spec.table, at)
        rows[answer.missed] = 0
        absent = np.flatnonzero(~found)
        assert np.isin(absent, answer.missed).all(), f"the GPU has rows of {spec.table} that are not there"
        want = rows.reshape(batch, each, -1).sum(1)
        assert np.array_equal(answer.rows, want), self._wrong(snapshot, spec, at, answer.rows, want)
        lookups, misses = np.zeros(len(TABLES), np.uint64), np.zeros(len(TABLES), np.uint64)
        lookups[table], misses[table] = len(at), len(answer.missed)
        wanted = [(table, np.unique(ids[answer.missed]))]
        if len(self._devices) == 1:
            session.tier.tell(lookups, misses, wanted)
        else:
            used = [(table, ids)] if rng.random() < 1 / 16 else []
            sharing_of(self.store).tell(session.tier, lookups, misses, wanted, used)
        self.counts["GPU lookups"] += 1
        self.counts["GPU rows"] += len(at) - len(answer.missed)
        self.counts["GPU misses"] += len(answer.missed)

    def _budgets(self) -> None:
        rng = np.random.default_rng([self.seed, 3000])
        while not self.snapshots.stopped:
            time.sleep(float(rng.uniform(0.0, 0.4)))
            with self._store_lock:
                if self.snapshots.stopped:
                    return
                index = self._devices[int(rng.integers(len(self._devices)))].info.index
                if rng.random() < 0.5:
                    gpus_of(self.store).resize(index, SIZES[int(rng.integers(len(SIZES)))])
                    self.counts["resized"] += 1
                else:
                    gpus_of(self.store).tiers[index].check_integrity()
                    self.counts["GPU checks"] += 1
                assert not gpus_of(self.store).tiers[index].trouble, gpus_of(self.store).tiers[index].trouble


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--row-type", default="fp32", choices=["fp32", "fp16", "bf16", "int8"])
    parser.add_argument("--gpu", action="store_true", help="on GPU 0, not a simulated one")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs that share rows (default: %(default)s)")
    options = parser.parse_args()
    gpus: Gpus = SimulatedGpus(options.gpus, schedule="random", seed=options.seed)
    if options.gpu:
        from serving.gpu.gpus import find_gpus

        gpus = find_gpus()
    with tempfile.TemporaryDirectory() as folder:
        devices = [gpus.driver(index) for index in range(options.gpus)]
        soak = HbmSoak(Path(folder) / "store", *devices, seed=options.seed, row_type=options.row_type)
        soak.run(options.seconds)
    print(f"{options.seconds:g} s: {state_line(soak.counts)}; every row its snapshot's own")
    print(soak.watch.line())


if __name__ == "__main__":
    main()
