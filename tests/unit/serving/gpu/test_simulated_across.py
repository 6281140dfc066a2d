"""Lookups across simulated GPUs: rows of both come, and launches that go where they must not are found."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from storage._table import GpuCache
from storage.hbm import lookup_kernels
from storage.hbm.device import KernelCall
from storage.hbm.lookup_kernels import FEATURE_WORDS
from storage.hbm.sharing import PEER_CHAIN_WORDS, PEER_CHAINS_WORD, PEER_WORDS, across
from tests.simulated_gpu import LifetimeError, MisuseError, SimulatedGpus
from tests.support.gpu import model_of_replica
from tests.support.gpu.beside_host import BesideHost, bytes_of, translated
from tests.support.gpu.model_of_replica import MEAN, SUM, WEIGHTED, Batch, Feature, Replica

GPUS, OWN, PEER = 3, 1, 2  # GPU 0 has no rows.
TABLE = 1
IDS = np.array([0, 1, -1, 2**63 - 1, -(2**63), *range(100, 130)])
ABSENT = (1000, -1000)
PEER_CHAIN = (2, 1)


def replica(ids: np.ndarray, seed: int) -> Replica:
    """Makes rows of the base, and two differences of some of them."""
    on = Replica("fp16", 8, 160, seed)
    on.publish(TABLE, ids)
    on.publish(TABLE + model_of_replica.TABLES, ids[::3])
    on.publish(TABLE + 2 * model_of_replica.TABLES, ids[1::3])
    on.publish(TABLE + 2 * model_of_replica.TABLES, ids[2::9], ask_host=True)
    return on


class LookedUpAcross:
    """Looks a batch up on GPU OWN.

    OWN has a third of the ids; PEER has them all, with other rows; GPU 0 has none.

    expected: by feature, its rows (n, 8), or sums, and states.
    """

    def __init__(self, gpus: SimulatedGpus, *, pooled: bool, reach: bool = True) -> None:
        self.driver, self.other = gpus.driver(OWN), gpus.driver(PEER)
        self.pooled = pooled
        self.on, self.at_peer = replica(IDS[::3], 1), replica(IDS, 2)
        known = [*IDS.tolist(), *ABSENT]
        random = np.random.default_rng(3)
        shapes: list[dict[str, Any]] = (
            [{"pooling": pooling} for pooling in (SUM, MEAN, WEIGHTED)] if pooled else [{}, {"length": 4}]
        )
        bags = [
            [[known[place] for place in random.permutation(len(known))[:9]] for _ in range(model_of_replica.ROWS - 2)]
            for _ in shapes
        ]
        self.features = [Feature(self.on, TABLE, bag, **shape) for bag, shape in zip(bags, shapes, strict=True)]
        self.batch = Batch(self.features, (1,))
        self._pack_chains()
        self.other.enter_thread()
        self.beside_peer = BesideHost(self.other)
        self.theirs: tuple[torch.Tensor, ...] = tuple(self.beside_peer.bring(part) for part in self.at_peer.shared)
        self.driver.enter_thread()
        if reach:
            self.driver.reach(self.other)
        self.beside = BesideHost(self.driver)
        self.header, self.misses = self.beside.bring(self.header_of_host), self.driver.device(self.batch.misses.nbytes)
        self.count = self.driver.device(8)
        self.outputs = tuple(self.driver.device(output.nbytes) for output in self.batch.outputs)
        self.shared = tuple(self.beside.bring(tensor) for tensor in self.on.shared)
        self.peers = self.beside.bring(self.peer_words())
        self.table = self.beside.bring(self.table_words())

    def _pack_chains(self) -> None:
        """Appends the peers' chains to the header of a batch of one GPU."""
        chains = np.full((GPUS, PEER_CHAIN_WORDS), 2**40)
        chains[:, 0] = 0
        chains[PEER, : 1 + len(PEER_CHAIN)] = len(PEER_CHAIN), *PEER_CHAIN
        packed = bytes_of(self.batch.header).tobytes()
        self.chains_at = len(packed) + -len(packed) % 16
        packed = packed.ljust(self.chains_at, b"\0") + chains.tobytes()
        self.header_of_host = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        self.header_of_host.view(torch.int64)[PEER_CHAINS_WORD] = self.chains_at

    def peer_words(self, **changes: int) -> torch.Tensor:
        """Returns the words by which OWN knows the other GPUs.

        changes: replace words for PEER.
        """
        buckets, slab, uses = (buffer.data_ptr() for buffer in self.theirs)
        words = {
            "buckets": buckets,
            "bucket_count": self.at_peer.bucket_count,
            "slab": slab,
            "slots": self.at_peer.slots,
        }
        words |= {"uses": uses} | changes
        table = torch.zeros((GPUS, PEER_WORDS), dtype=torch.int64)
        table[PEER] = torch.tensor(list(words.values()))
        return table

    def table_words(self) -> torch.Tensor:
        own, gpu = (*self.on.shared, *self.batch.outputs), (*self.shared, *self.outputs)
        at = {tensor.data_ptr(): there for tensor, there in zip(own, gpu, strict=True)}
        table = translated(self.batch.table, at).view(-1, FEATURE_WORDS)
        table[:, 11], table[:, 12] = self.peers.data_ptr(), OWN << 32 | GPUS
        return table

    def write(self, buffer: torch.Tensor, words: torch.Tensor) -> None:
        host = self.driver.pinned(words.nbytes)
        host.numpy()[:] = bytes_of(words)
        self.driver.copy(buffer[: words.nbytes], host, self.beside.stream)
        self.beside.finish()

    def set_chain(self, length: int) -> None:
        """Sets the length of PEER's chain; with -1, PEER does not answer."""
        self.header_of_host[self.chains_at :].view(torch.int64)[PEER * PEER_CHAIN_WORDS] = length
        self.write(self.header, self.header_of_host)

    def call(self, *, looks_across: bool = True, **changes: Any) -> KernelCall:
        arguments: dict[str, Any] = {
            "row_type": self.on.codec.row_type,
            "features": self.table,
            "feature_count": len(self.features),
            "header": self.header,
            "rows": model_of_replica.ROWS,
            "misses": self.misses,
            "miss_count": self.count,
            "miss_room": len(self.batch.misses),
            "use_every": 1,
            "outputs": self.outputs,
            "shared": self.shared,
        }
        arguments |= changes
        peers = arguments.pop("peers", self.peers)
        if self.pooled:
            call = lookup_kernels.pool(**arguments)
        else:
            longest = max(len(feature.output) for feature in self.features)
            call = lookup_kernels.gather("fp32", longest=longest, **arguments)
        return across(call, peers) if looks_across else call

    def run(self, **changes: Any) -> None:
        self.driver.zero(self.count, self.beside.stream)
        self.driver.kernel(self.call(**changes), self.beside.stream)
        self.beside.finish()

    def find(self, id_: int, *, answers: bool = True) -> tuple[int, np.ndarray | None]:
        """Returns the GPU that has a row, and the row.

        answers: whether PEER answers.
        """
        for table in (TABLE + model_of_replica.TABLES, TABLE):
            if (table, id_) in self.on.rows:
                return OWN, self.on.rows[table, id_]
        part = int(GpuCache.parts_of(TABLE, np.array([id_]), GPUS)[0])
        return PEER, self.at_peer.find(TABLE, id_, PEER_CHAIN) if part == PEER and answers else None

    def check(self, *, answers: bool = True) -> int:
        """Checks outputs, misses and marks; returns how many rows came from PEER."""
        misses = 0
        found: list[set[int]] = [set() for _ in range(GPUS)]
        for feature, output in zip(self.features, self.outputs[::2], strict=True):
            expected = np.zeros(feature.output.shape, np.float32)
            for row, bag in enumerate(feature.bags):
                for at, id_ in enumerate(bag):
                    place = feature.place(row, at)
                    if place is None:
                        continue
                    gpu, one = self.find(id_, answers=answers)
                    if one is None:
                        misses += 1
                        continue
                    found[gpu].add(id_)
                    weight = feature.weights[int(feature.ranges[row, 0]) + at] if feature.shape == WEIGHTED else 1
                    expected[place] = expected[place] + np.float32(weight) * one if self.pooled else one
                if self.pooled and feature.shape == MEAN:
                    expected[row] /= np.float32(max(len(bag), 1))
            assert np.array_equal(self.beside.fetch(output), expected.view(np.uint8).reshape(-1))
        assert self.beside.fetch(self.count).view(np.int64)[0] == misses > 0
        assert int(self.beside.fetch(self.shared[2]).sum()) == len(found[OWN]) > 0
        self.other.enter_thread()
        marked = int(self.beside_peer.fetch(self.theirs[2]).sum())
        self.driver.enter_thread()
        assert marked == len(found[PEER])
        return marked


@pytest.fixture
def gpus() -> SimulatedGpus:
    # One stream runs at a time and is waited for after each launch, so every schedule is the same.
    return SimulatedGpus(GPUS, schedule="lazy")


@pytest.fixture(params=[False, True], ids=["gather", "pool"])
def pooled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_rows_of_another_gpu_come(gpus: SimulatedGpus, pooled: bool) -> None:
    on = LookedUpAcross(gpus, pooled=pooled)
    on.run()
    assert on.check() > 3
    for driver in gpus.drivers[1:]:
        driver.enter_thread()
        driver.finish()


def test_a_gpu_that_does_not_answer_is_not_read(gpus: SimulatedGpus, pooled: bool) -> None:
    on = LookedUpAcross(gpus, pooled=pooled)
    on.set_chain(-1)
    kept = on.theirs[2]
    on.theirs = ()
    gc.collect()
    on.run()
    on.theirs = (kept,) * 3
    assert on.check(answers=False) == 0
    # A GPU that has nothing by the table is not read either.
    on.set_chain(0)
    on.write(on.peers, on.peer_words(buckets=0))
    on.run()
    assert on.check(answers=False) == 0


def test_without_a_table_or_chains_no_other_gpu_is_read(gpus: SimulatedGpus, pooled: bool) -> None:
    on = LookedUpAcross(gpus, pooled=pooled, reach=False)
    table = on.table_words()
    table[:, 11:13] = 0
    on.write(on.table, table)
    on.run()
    assert on.check(answers=False) == 0
    on.write(on.table, on.table_words())
    on.header_of_host.view(torch.int64)[PEER_CHAINS_WORD] = 0
    on.write(on.header, on.header_of_host)
    on.run()
    assert on.check(answers=False) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("gone", "what"), [(0, "the index"), (1, "the slab"), (2, "the marks of use")])
def test_memory_of_another_gpu_that_went_is_not_read(gpus: SimulatedGpus, pooled: bool, gone: int, what: str) -> None:
    on = LookedUpAcross(gpus, pooled=pooled)
    on.run()
    on.theirs = (*on.theirs[:gone], *on.theirs[gone + 1 :])
    gc.collect()
    with pytest.raises(LifetimeError, match=rf"{what} of feature 0 on GPU 2, .* lives on a GPU which it reaches"):
        on.run()


def test_a_gpu_that_was_never_reached_is_not_read(gpus: SimulatedGpus, pooled: bool) -> None:
    on = LookedUpAcross(gpus, pooled=pooled, reach=False)
    on.driver.reach(gpus.driver(0))  # Reaching another GPU does not help.
    with pytest.raises(LifetimeError, match=r"the index of feature 0 on GPU 2, .* lives on a GPU which it reaches"):
        on.run()
    on.driver.reach(on.other)
    on.run()
    assert on.check() > 3


@pytest.mark.parametrize(
    ("word", "change", "what"),
    [("bucket_count", 1, "the index"), ("slots", 1, "the slab"), ("buckets", 8, "the index"), ("slab", 4, "the slab")],
)
def test_sizes_and_places_are_those_of_its_buffers(
    gpus: SimulatedGpus, pooled: bool, word: str, change: int, what: str
) -> None:
    on = LookedUpAcross(gpus, pooled=pooled)
    buckets, slab, _ = (buffer.data_ptr() for buffer in on.theirs)
    values = {"bucket_count": on.at_peer.bucket_count, "slots": on.at_peer.slots, "buckets": buckets, "slab": slab}
    on.write(on.peers, on.peer_words(**{word: values[word] + change}))
    with pytest.raises(LifetimeError, match=f"{what} of feature 0 on GPU 2"):
        on.run()


def test_what_is_known_of_other_gpus_is_named(gpus: SimulatedGpus, pooled: bool) -> None:
    on = LookedUpAcross(gpus, pooled=pooled)
    with pytest.raises(MisuseError, match="for what other GPUs have of feature 0, and does not name it"):
        on.run(peers=on.peers[: 8 * PEER_WORDS * (GPUS - 1)])
    with pytest.raises(MisuseError, match="for the chains of other GPUs, and does not name it"):
        on.run(header=on.header[: len(on.header) - 8])
    on.run()
    assert on.check() > 3


def test_buffers_of_another_gpu_are_no_arguments(gpus: SimulatedGpus, pooled: bool) -> None:
    on = LookedUpAcross(gpus, pooled=pooled)
    with pytest.raises(MisuseError, match="no memory of a buffer"):
        on.run(shared=(*on.shared, on.theirs[0]))


def test_lookups_of_one_gpu_go_to_no_other(gpus: SimulatedGpus, pooled: bool) -> None:
    on = LookedUpAcross(gpus, pooled=pooled, reach=False)
    on.run(looks_across=False)
    assert on.check(answers=False) == 0


def test_a_gpu_does_not_reach_itself(gpus: SimulatedGpus) -> None:
    gpus.driver(0).enter_thread()
    with pytest.raises(MisuseError, match="is to reach itself"):
        gpus.driver(0).reach(gpus.driver(0))
