"""Compares the kernel that unpacks a batch with numpy, over layouts of every kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from serving.gpu.driver import Assembly, Driver, Stream

# The bytes between the tensors of the target, which the kernel leaves unchanged.
UNTOUCHED = 0xAB


def aligned(at: int) -> int:
    return -(-at // 16) * 16


@dataclass
class Batch:
    """One batch as the host packs it, and the expected content of the target. See cuda/assemble.cuh."""

    staging: np.ndarray
    table: np.ndarray
    expected: np.ndarray
    stamp: int
    rows: int
    widest: int


def make_batch(generator: np.random.Generator, inputs: int, batch: int, rows: int, users: int) -> Batch:
    """Makes a batch of random bytes.

    rows: of the tensors; users: 0 where every input has a row for each of the batch.
    """
    row_bytes = generator.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128, 256, 1000], inputs)
    of_user = generator.integers(0, 2, inputs)
    user_of_row = generator.integers(0, max(users, 1), batch).astype(np.int32)
    stamp = int(generator.integers(1, 2**62))
    header = np.zeros(4 + inputs, np.int64)
    header[:3] = stamp, batch, users
    parts: list[tuple[int, np.ndarray]] = []
    at = aligned(header.nbytes)
    header[3] = at
    if users:
        parts.append((at, user_of_row.view(np.uint8)))
        at = aligned(at + user_of_row.nbytes)
    table = np.zeros((inputs, 4), np.int64)
    begins, end = [], 0
    for number, width in enumerate(row_bytes):
        per_user = bool(users and of_user[number])
        section = generator.integers(0, 256, (users if per_user else batch, width), dtype=np.uint8)
        header[4 + number] = at
        parts.append((at, section.reshape(-1)))
        at = aligned(at + section.nbytes)
        unit_log2 = min(4, (int(width) & -int(width)).bit_length() - 1)
        table[number] = end, width, unit_log2, of_user[number]
        begins.append((end, section[user_of_row] if per_user else section))
        end = aligned(end + rows * int(width)) + 16 * int(generator.integers(0, 3))
    staging = np.full(max(at, 16), 0xCD, np.uint8)
    staging[: header.nbytes] = header.view(np.uint8)
    for place, part in parts:
        staging[place : place + part.nbytes] = part
    expected = np.full(max(end, 16), UNTOUCHED, np.uint8)
    for begin, values in begins:
        width = values.shape[1]
        tensor = np.zeros((rows, width), np.uint8)
        tensor[: min(batch, rows)] = values[:rows]
        expected[begin : begin + rows * width] = tensor.reshape(-1)
    return Batch(staging, table, expected, stamp, rows, int(row_bytes.max(initial=0)))


class Gpu:
    """Buffers for one batch."""

    def __init__(self, driver: Driver, stream: Stream, batch: Batch) -> None:
        self.driver, self.stream, self.batch = driver, stream, batch
        self.staging = self.bring(batch.staging)
        table = self.bring(batch.table) if batch.table.size else driver.device(32)
        self.target = self.bring(np.full(batch.expected.nbytes, UNTOUCHED, np.uint8))
        self.stamp = driver.device(8)
        self.assembly = Assembly(
            self.staging,
            table.view(torch.int64).view(-1, 4)[: len(batch.table)],
            self.target,
            self.stamp,
            batch.widest,
        )

    def bring(self, values: np.ndarray) -> torch.Tensor:
        host, buffer = self.driver.pinned(values.nbytes), self.driver.device(values.nbytes)
        host.numpy()[:] = values.view(np.uint8).reshape(-1)
        self.driver.copy(buffer, host, self.stream)
        self.finish()
        return buffer

    def fetch(self, buffer: torch.Tensor) -> np.ndarray:
        host = self.driver.pinned(buffer.nbytes)
        self.driver.copy(host, buffer, self.stream)
        self.finish()
        return host.numpy().copy()

    def finish(self) -> None:
        event = self.driver.new_event()
        self.driver.record(event, self.stream)
        self.driver.synchronize(event)

    def check(self) -> None:
        assert int(self.fetch(self.stamp).view(np.int64)[0]) == self.batch.stamp
        assert np.array_equal(self.fetch(self.target), self.batch.expected)


@pytest.mark.parametrize("seed", range(40))
def test_random_layouts(driver: Driver, seed: int) -> None:
    generator = np.random.default_rng(seed)
    batch = int(generator.integers(0, 300))
    rows = batch + int(generator.integers(0, 2)) * int(generator.integers(0, 300))
    users = int(generator.integers(1, batch + 1)) if batch and seed % 2 else 0
    made = make_batch(generator, int(generator.integers(1, 40)), batch, max(rows, 1), users)
    gpu = Gpu(driver, driver.new_stream("test"), made)
    driver.assemble(gpu.assembly, made.rows, gpu.stream)
    gpu.check()


@pytest.mark.parametrize(
    ("inputs", "batch", "rows", "users"), [(0, 3, 4, 0), (1, 1, 1, 1), (300, 2, 2, 1), (3, 5, 2, 0)]
)
def test_layouts_at_the_ends(driver: Driver, inputs: int, batch: int, rows: int, users: int) -> None:
    made = make_batch(np.random.default_rng(7), inputs, batch, rows, users)
    gpu = Gpu(driver, driver.new_stream("test"), made)
    driver.assemble(gpu.assembly, made.rows, gpu.stream)
    gpu.check()


def test_a_large_batch(driver: Driver) -> None:
    made = make_batch(np.random.default_rng(11), 30, 4000, 4096, 50)
    gpu = Gpu(driver, driver.new_stream("test"), made)
    driver.assemble(gpu.assembly, made.rows, gpu.stream)
    gpu.check()


def test_a_captured_one_unpacks_the_batch_of_the_launch(driver: Driver) -> None:
    stream, pool = driver.new_stream("test"), driver.new_pool()
    generator = np.random.default_rng(13)
    made = make_batch(generator, 8, 64, 64, 0)
    gpu = Gpu(driver, stream, made)
    graph = driver.capture(lambda: driver.assemble(gpu.assembly, 64, stream), pool, stream, name="test")
    assert not gpu.fetch(gpu.stamp).any()
    driver.launch(graph, stream)
    gpu.check()
    # The same layout with a smaller batch: the rest of the last one becomes zeros.
    header = made.staging.view(np.int64)
    header[0], header[1] = made.stamp + 1, 20
    host = driver.pinned(made.staging.nbytes)
    host.numpy()[:] = made.staging
    driver.copy(gpu.staging, host, stream)
    driver.launch(graph, stream)
    for begin, width, _, _ in made.table.tolist():
        made.expected[begin + 20 * width : begin + 64 * width] = 0
    made.stamp += 1
    gpu.check()
