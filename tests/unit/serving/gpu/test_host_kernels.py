"""The kernels on the processor: a replica published by lists, searched along chains, missed rows added; beside numpy.

Tests of single kernels, with every width and hostile sizes, are in tests/cpp/cuda. Here launches are those that servers
make, so that arguments, layouts and row types of Python are what the kernels take them for.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from storage.hbm import lookup_kernels
from storage.hbm.lookup_kernels import FEATURE_SHIFT, OutputType
from storage.specs import ROW_TYPES
from tests.simulated_gpu import kernels
from tests.support.gpu.model_of_replica import MEAN, ROWS, SUM, TABLES, WEIGHTED, Batch, Feature, Replica, run

DIMS = (1, 3, 16, 33, 128, 1024)
GATHERED: list[tuple[str, int, OutputType]] = [
    *((row_type, dim, "fp32") for row_type in ROW_TYPES for dim in DIMS),
    ("fp32", 33, "fp16"),
    ("fp32", 33, "bf16"),
    ("int8", 128, "fp16"),
    ("fp16", 64, "bf16"),
]
IDS = np.array([0, 1, -1, 2**63 - 1, -(2**63), 7, -9, 123456789, 2**40, 55, 56, 57])
ABSENT = [1000, -1000]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors are equal to the bit."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def replica(row_type: str, dim: int) -> Replica:
    """Makes tables 1 and 2, and differences of table 1.

    Difference 1 has new rows; difference 2 has other rows, and entries that ask the host.
    """
    on = Replica(row_type, dim, 80, seed=dim)
    on.publish(1, IDS[:10])
    on.publish(2, IDS)
    on.publish(1 + TABLES, IDS[[0, 3, 5, 10]])
    on.publish(1 + 2 * TABLES, IDS[[3, 4, 11]])
    on.publish(1 + 2 * TABLES, IDS[[5, 6]], ask_host=True)
    return on


def random_bags(on: Replica, longest: int) -> list[list[int]]:
    """Makes bags with repeated ids and absent ones, and rows without any."""
    known = [*IDS.tolist(), *ABSENT]
    return [
        [known[place] for place in on.random.integers(0, len(known), length)]
        for length in on.random.integers(0, longest + 1, ROWS - 2)
    ]


def encoded(row: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """Returns a row rounded as an output is."""
    return torch.from_numpy(row).to(like.dtype)


@pytest.mark.parametrize("chain", [(), (1,), (2, 1), (1, 2)])
@pytest.mark.parametrize(("row_type", "dim", "output"), GATHERED)
def test_rows_come_to_their_places_and_late_ones_after_them(
    row_type: str, dim: int, output: OutputType, chain: tuple[int, ...]
) -> None:
    on = replica(row_type, dim)
    features = [
        Feature(on, 1, random_bags(on, 6), type_=output),
        Feature(on, 1, random_bags(on, 6), length=3, type_=output),
        Feature(on, 2, random_bags(on, 6), length=1, type_=output),
    ]
    batch = Batch(features, chain)
    batch.look_up(output)
    assert batch.missed() == batch.expected_misses() != []
    expected = [(torch.zeros_like(feature.output), torch.zeros_like(feature.states)) for feature in features]
    for feature, (rows, states) in zip(features, expected, strict=True):
        for row, bag in enumerate(feature.bags):
            for at, id_ in enumerate(bag):
                place, found = feature.place(row, at), batch.found(feature, id_)
                if place is not None and found is not None:
                    rows[place], states[place] = encoded(found, rows), 1
        assert same(feature.output, rows)
        assert torch.equal(feature.states, states)
    # The host finds them all.
    entries = [
        ((key >> FEATURE_SHIFT << FEATURE_SHIFT) | place, n * dim) for n, (key, place) in enumerate(batch.missed())
    ]
    late = on.encoded(len(entries))[1].copy()
    run(
        lookup_kernels.scatter_missed(
            output,
            features=batch.table,
            header=batch.header,
            rows=ROWS,
            entries=torch.tensor(entries),
            count=torch.tensor([len(entries)]),
            room=len(entries),
            staging=torch.from_numpy(late),
            outputs=batch.outputs,
        )
    )
    for n, (key, place) in enumerate(batch.missed()):
        rows, states = expected[key >> FEATURE_SHIFT]
        rows[place], states[place] = encoded(late[n], rows), 1
    for feature, (rows, states) in zip(features, expected, strict=True):
        assert same(feature.output, rows)
        assert torch.equal(feature.states, states)


@pytest.mark.parametrize("chain", [(), (2, 1)])
@pytest.mark.parametrize(("row_type", "dim"), [(row_type, dim) for row_type in ROW_TYPES for dim in DIMS])
def test_bags_are_summed_in_the_order_of_their_ids_and_missed_rows_added(
    row_type: str, dim: int, chain: tuple[int, ...]
) -> None:
    on = replica(row_type, dim)
    features = [Feature(on, 1, random_bags(on, 40), pooling) for pooling in (SUM, MEAN, WEIGHTED)]
    features.append(Feature(on, 2, random_bags(on, 3), MEAN))
    batch = Batch(features, chain)
    batch.look_up(None)
    assert batch.missed() == batch.expected_misses() != []
    entries: list[tuple[int, int, int, int]] = []
    staging: list[np.ndarray] = []
    weights: list[np.float32] = []
    wanted = []
    for number, feature in enumerate(features):
        hits, missing = np.zeros((ROWS, dim), np.float32), np.zeros(ROWS, np.uint8)
        sums = np.zeros_like(hits)
        for row, bag in enumerate(feature.bags):
            first = len(staging)
            late = np.zeros(dim, np.float32)
            divisor = np.float32(max(len(bag), 1) if feature.shape == MEAN else 1)
            for at, id_ in enumerate(bag, int(feature.ranges[row, 0])):
                found = batch.found(feature, id_)
                weight = feature.weights[at] if feature.shape == WEIGHTED else np.float32(1)
                if found is not None:
                    hits[row] += weight * found
                    continue
                staging.append(on.encoded(1)[1][0])
                weights.append(weight)
                late += weight * staging[-1]
            missing[row] = len(staging) > first
            hits[row] /= divisor
            # An addition of nothing would turn -0 into 0.
            sums[row] = hits[row] + late / divisor if missing[row] else hits[row]
            if missing[row]:
                entries.append((number << FEATURE_SHIFT | row, first * dim, len(staging) - first, first))
        assert same(feature.output, torch.from_numpy(hits))
        assert feature.states.tolist() == missing.tolist()
        wanted.append(sums)
    run(
        lookup_kernels.add_missed(
            features=batch.table,
            header=batch.header,
            rows=ROWS,
            entries=torch.tensor(entries),
            count=torch.tensor([len(entries)]),
            room=len(entries) + 1,
            staging=torch.from_numpy(np.stack(staging)),
            weights=torch.tensor(np.array(weights)),
            outputs=batch.outputs,
        )
    )
    for feature, sums in zip(features, wanted, strict=True):
        assert same(feature.output, torch.from_numpy(sums))
        assert not feature.states.any()


def test_a_published_change_is_seen() -> None:
    on = replica("fp16", 8)
    feature = Feature(on, 1, [IDS.tolist()], SUM)
    before = Batch([feature], ())
    before.look_up(None)
    assert before.missed() == before.expected_misses()
    assert len(before.missed()) == 2
    # All words become no slot; the flags of their buckets stay.
    stores = [
        (8 * bucket + at, words[at] >> 56 << 56)
        for bucket, words in enumerate(on.buckets.view(-1, 8).tolist())
        for at in range(4, 8)
    ]
    run(
        lookup_kernels.publish_stores(
            entries=torch.tensor(stores),
            count=torch.tensor([len(stores)]),
            room=len(stores),
            buckets=on.buckets,
            bucket_count=on.bucket_count,
        )
    )
    after = Batch([feature], ())
    after.look_up(None)
    assert len(after.missed()) == len(IDS)
    assert not feature.output.any()


def test_uses_are_marked() -> None:
    on = replica("int8", 20)
    batch = Batch([Feature(on, 1, [IDS.tolist(), ABSENT], SUM)], (1,))
    batch.look_up(None)
    assert not on.uses.any()
    batch.look_up(None, use_every=1)
    seen = sum(on.find(1, id_, (1,)) is not None for id_ in IDS.tolist())
    assert int(on.uses.sum()) == seen
    assert on.uses[0] == 0


def test_what_is_no_kernel_or_not_its_values_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel is called 'pool_lookup'"):
        kernels.run("pool_lookup", [], (1, 1))
    with pytest.raises(ValueError, match="publish_stores takes 5 values, got 4"):
        kernels.run("publish_stores", [0, 0, 0, 0], (1, 1))
