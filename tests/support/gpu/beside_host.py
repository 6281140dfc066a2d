"""Launches kernels on a device and the same ones on the host; both must write the same bits.

`BesideHost` replaces the host in `model_of_replica`; the `check_` functions run batches through it, on a real GPU and
on the simulated one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from unittest.mock import patch

import numpy as np
import torch

from storage.hbm import lookup_kernels
from storage.hbm.device import Device, KernelCall
from storage.hbm.lookup_kernels import FEATURE_SHIFT, FEATURE_WORDS, OutputType
from tests.simulated_gpu import kernels
from tests.support.gpu import model_of_replica
from tests.support.gpu.model_of_replica import MEAN, SUM, TABLES, WEIGHTED, Batch, Feature, Replica

# Addresses in a row of the table of features.
_ADDRESSES = (0, 2, 8, 14, 15)
# Both signs, and the extremes of the range.
ENDS = (0, 1, -1, 2**63 - 1, -(2**63), 1 - 2**63)
CHAINS: tuple[tuple[int, ...], ...] = ((), (1,), (2, 1), (1, 2))


class BesideHost:
    """Runs kernels on a device and compares. Not thread-safe: one thread uses it at a time.

    Copies of buffers that launches share stay on the device and are written there by launches alone.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.new_stream("kernels")
        self._done = device.new_event()
        self._shared: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @contextmanager
    def in_place_of_host(self, rows: int) -> Iterator[None]:
        """Replaces the host for replicas and batches of `model_of_replica`.

        rows: the rows that launches are sized for.
        """
        with patch.multiple(model_of_replica, run=self.run, ROWS=rows, MISS_ROOM=200 * rows):
            yield

    def run(self, call: KernelCall) -> None:
        """Runs a call over host tensors, which get the host's results. Asserts that the device's are the same."""
        at = {tensor.data_ptr(): self._copy_of(tensor) for tensor in call.shared}
        for tensor in (*call.reads, *call.writes):
            if tensor.data_ptr() not in at:
                at[tensor.data_ptr()] = self.bring(tensor)
        if call.name.startswith(("lookup", "missed")):
            features = tensor_of(call.values[0])
            at[features.data_ptr()] = self.bring(translated(features, at))
        there = KernelCall(
            call.name,
            call.blocks,
            tuple(at[value.data_ptr()] if isinstance(value, torch.Tensor) else value for value in call.values),
            tuple(at[tensor.data_ptr()] for tensor in call.reads),
            tuple(at[tensor.data_ptr()] for tensor in call.writes),
            tuple(at[tensor.data_ptr()] for tensor in call.shared),
        )
        self.device.kernel(there, self.stream)
        self.finish()
        kernels.run(call.name, call.values, call.blocks)
        listed = call.values[3] if call.name.startswith("lookup") else None
        for tensor in (*call.writes, *call.shared):
            found, expected = self.fetch(at[tensor.data_ptr()]), bytes_of(tensor)
            if tensor is listed:
                count, room = int(tensor_of(call.values[4])[0]), len(tensor)
                found, expected = sorted_entries(found, count, room), sorted_entries(expected, count, room)
            assert np.array_equal(found, expected), f"{call.name} differs from byte {np.argmax(found != expected)} on"

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a buffer of the device with the same bytes."""
        host, buffer = self.device.pinned(tensor.nbytes), self.device.device(tensor.nbytes)
        host.numpy()[:] = bytes_of(tensor)
        self.device.copy(buffer, host, self.stream)
        self.finish()
        return buffer

    def fetch(self, buffer: torch.Tensor) -> np.ndarray:
        """Returns the bytes of a buffer, after all work that was put on the stream."""
        host = self.device.pinned(buffer.nbytes)
        self.device.copy(host, buffer, self.stream)
        self.finish()
        return host.numpy().copy()

    def finish(self) -> None:
        """Waits for all work that was put on the stream."""
        self.device.record(self._done, self.stream)
        self.device.synchronize(self._done)

    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in self._shared:
            # The tensor is kept, so that no other one gets its address.
            self._shared[tensor.data_ptr()] = tensor, self.bring(tensor)
        return self._shared[tensor.data_ptr()][1]


def tensor_of(value: int | torch.Tensor) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns the bytes of a host tensor, not a copy."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy()


def translated(features: torch.Tensor, at: dict[int, torch.Tensor]) -> torch.Tensor:
    """Returns a table of features with the device's addresses."""
    table = features.clone().view(torch.int64).view(-1, FEATURE_WORDS)
    for row in table:
        for word in _ADDRESSES:
            if int(row[word]) in at:
                row[word] = at[int(row[word])].data_ptr()
    return table


def sorted_entries(data: np.ndarray, count: int, room: int) -> np.ndarray:
    """Returns the entries of a list of misses in a fixed order, because their order has no meaning.

    Of a list that was too short it returns none, because which of them are stored has no meaning either.
    """
    entries = data.view(np.int64).reshape(-1, 2)
    assert len(np.unique(entries[: min(count, room)], axis=0)) == min(count, room)
    if count > room:
        return np.empty(0, np.int64)
    return entries[np.lexsort(entries.T[::-1])]


def make_replica(row_type: str, dim: int, ids: int) -> tuple[Replica, list[int]]:
    """Makes tables 1 and 2 with `ids` ids each, and two differences of table 1.

    Difference 1 has other rows; difference 2 has others again, and some that ask the host. Returns ids to look up, some
    of which are nowhere.
    """
    random = np.random.default_rng(dim)
    known = np.array([*ENDS, *random.integers(-(2**63), 2**63 - 1, max(0, ids - len(ENDS)))])
    on = Replica(row_type, dim, 4 * len(known), seed=dim)
    half = len(known) // 2
    on.publish(1, known[: half + 3])
    on.publish(2, known)
    on.publish(1 + TABLES, known[::3])
    on.publish(1 + 2 * TABLES, known[1::5])
    on.publish(1 + 2 * TABLES, known[2::5], ask_host=True)
    return on, [*known.tolist(), 1000, -1000, 77]


def make_bags(on: Replica, known: Sequence[int], rows: int, longest: int) -> list[list[int]]:
    """Makes bags for fewer rows than launches are for: repeated ids, and empty rows, also the first and the last."""
    lengths = on.random.integers(0, longest + 1, max(rows - 2, 1))
    lengths[[0, -1]] = 0
    return [[known[place] for place in on.random.integers(0, len(known), length)] for length in lengths]


def share_ranges(feature: Feature) -> Feature:
    """Gives pairs of rows one range, as rows of one user have."""
    feature.ranges[1::2] = feature.ranges[: len(feature.ranges) - 1 : 2]
    return feature


def check_gather(
    beside: BesideHost, row_type: str, dim: int, output: OutputType, chain: tuple[int, ...], rows: int, ids: int
) -> None:
    """Checks unpooled features, then the rows that they missed."""
    with beside.in_place_of_host(rows):
        on, known = make_replica(row_type, dim, ids)
        features = [
            Feature(on, 1, make_bags(on, known, rows, 6), type_=output),
            share_ranges(Feature(on, 1, make_bags(on, known, rows, 6), length=3, type_=output)),
            Feature(on, 2, make_bags(on, known, rows, 2), length=1, type_=output),
        ]
        batch = Batch(features, chain)
        batch.look_up(output, use_every=2)
        missed = batch.missed()
        assert missed
        late = on.encoded(len(missed))[1].copy()
        beside.run(
            lookup_kernels.scatter_missed(
                output,
                features=batch.table,
                header=batch.header,
                rows=rows,
                entries=torch.tensor(
                    [
                        ((key >> FEATURE_SHIFT << FEATURE_SHIFT) | place, number * dim)
                        for number, (key, place) in enumerate(missed)
                    ]
                ),
                count=torch.tensor([len(missed)]),
                room=len(missed),
                staging=torch.from_numpy(late),
                outputs=batch.outputs,
            )
        )


def check_pool(
    beside: BesideHost, row_type: str, dim: int, chain: tuple[int, ...], rows: int, ids: int, longest: int = 40
) -> None:
    """Checks pooled features, then the rows that they missed. longest: longest bag, in ids."""
    with beside.in_place_of_host(rows):
        on, known = make_replica(row_type, dim, ids)
        features = [Feature(on, 1, make_bags(on, known, rows, longest), pooling) for pooling in (SUM, MEAN, WEIGHTED)]
        features.append(share_ranges(Feature(on, 2, make_bags(on, known, rows, 3), MEAN)))
        batch = Batch(features, chain)
        batch.look_up(None, use_every=1)
        missed = batch.missed()
        assert missed
        entries: list[tuple[int, int, int, int]] = []
        numbers: list[tuple[int, int]] = []
        bag_of = sorted((key >> FEATURE_SHIFT, bag, key) for key, bag in missed)
        for (number, bag), group in groupby(bag_of, key=lambda entry: entry[:2]):
            first = len(numbers)
            numbers += [(number, key & ((1 << FEATURE_SHIFT) - 1)) for _, _, key in group]
            entries.append((number << FEATURE_SHIFT | bag, first * dim, len(numbers) - first, first))
        beside.run(
            lookup_kernels.add_missed(
                features=batch.table,
                header=batch.header,
                rows=rows,
                entries=torch.tensor(entries),
                count=torch.tensor([len(entries)]),
                room=len(entries),
                staging=torch.from_numpy(on.encoded(len(numbers))[1].copy()),
                weights=torch.tensor(np.array([features[number].weights[at] for number, at in numbers])),
                outputs=batch.outputs,
            )
        )


def check_publish(beside: BesideHost, stride: int, entries: int) -> None:
    """Checks rows published into every other slot, and stores all over an index."""
    random = np.random.default_rng(stride)
    slab = torch.from_numpy(random.integers(0, 256, (2 * entries + 1) * stride, dtype=np.uint8))
    staging = torch.from_numpy(random.integers(0, 256, entries * stride, dtype=np.uint8))
    slots = 2 * random.permutation(entries) + 1
    # The last ones are beyond the count.
    for given in (entries - entries // 4, 0):
        beside.run(
            lookup_kernels.publish_rows(
                entries=torch.from_numpy(np.stack([slots, random.integers(0, entries, entries)], 1)),
                count=torch.tensor([given]),
                room=entries,
                staging=staging,
                staged=entries,
                slab=slab,
                slots=2 * entries,
                stride=stride,
            )
        )
        bucket_count = entries // 4 + 2
        buckets = torch.from_numpy(random.integers(-(2**63), 2**63 - 1, 8 * bucket_count))
        places = random.permutation(8 * bucket_count)[:entries]
        beside.run(
            lookup_kernels.publish_stores(
                entries=torch.from_numpy(np.stack([places, random.integers(-(2**63), 2**63 - 1, entries)], 1)),
                count=torch.tensor([given]),
                room=entries,
                buckets=buckets,
                bucket_count=bucket_count,
            )
        )
