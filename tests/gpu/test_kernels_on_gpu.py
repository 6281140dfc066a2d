"""Compares the kernels of a GPU's replica (lookups, missed rows, published lists) with the same on the processor.

Their results on the processor are compared with numpy in tests/unit/serving/gpu/test_host_kernels.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from serving.gpu.driver import Driver
from storage.hbm import lookup_kernels
from storage.hbm.lookup_kernels import OutputType
from storage.specs import ROW_TYPES
from tests.support.gpu.beside_host import (
    CHAINS,
    BesideHost,
    bytes_of,
    check_gather,
    check_pool,
    check_publish,
    make_bags,
    make_replica,
    translated,
)
from tests.support.gpu.model_of_replica import MEAN, WEIGHTED, Batch, Feature

DIMS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 33, 64, 100, 128, 129, 256, 512, 768, 1000, 1024)
OUTPUTS: tuple[OutputType, ...] = ("fp32", "fp16", "bf16")


@pytest.fixture
def beside(driver: Driver) -> BesideHost:
    return BesideHost(driver)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_small_batches_of_all_kernels(beside: BesideHost, row_type: str) -> None:
    check_gather(beside, row_type, 33, "fp32", (2, 1), rows=14, ids=40)
    check_pool(beside, row_type, 33, (1,), rows=14, ids=40)
    check_publish(beside, 48, 20)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_rows_of_every_width(beside: BesideHost, row_type: str, dim: int) -> None:
    chain = CHAINS[DIMS.index(dim) % len(CHAINS)]
    check_gather(beside, row_type, dim, "fp32", chain, rows=50, ids=60)
    check_pool(beside, row_type, dim, chain, rows=50, ids=60)


@pytest.mark.parametrize(("row_type", "output"), [*itertools.product(ROW_TYPES, OUTPUTS)])
def test_outputs_of_every_type(beside: BesideHost, row_type: str, output: OutputType) -> None:
    for dim in (1, 33, 128):
        check_gather(beside, row_type, dim, output, (1, 2), rows=50, ids=60)


@pytest.mark.parametrize("chain", CHAINS)
def test_large_batches_along_chains(beside: BesideHost, chain: tuple[int, ...]) -> None:
    check_gather(beside, "fp16", 128, "fp32", chain, rows=2000, ids=400)
    check_pool(beside, "int8", 64, chain, rows=2000, ids=400)


def test_long_bags(beside: BesideHost) -> None:
    for dim in (1, 16, 1024):
        check_pool(beside, "fp32", dim, (), rows=6, ids=60, longest=300)


@pytest.mark.parametrize("stride", [4, 12, 16, 20, 48, 512, 4096])
def test_lists_of_every_stride(beside: BesideHost, stride: int) -> None:
    for entries in (1, 5, 3000):
        check_publish(beside, stride, entries)


def test_a_captured_lookup_sees_what_lies_in_its_buffers_now(driver: Driver, beside: BesideHost) -> None:
    rows, stream, pool = 30, beside.stream, driver.new_pool()
    with beside.in_place_of_host(rows):
        on, known = make_replica("fp16", 24, 40)
        batches = [
            Batch([Feature(on, 1, make_bags(on, known, rows, 9), pooling) for pooling in (MEAN, WEIGHTED)], chain)
            for chain in CHAINS
        ]
        first = batches[0]
        room = max(len(batch.header) for batch in batches)
        header, misses = driver.device(room), driver.device(first.misses.nbytes)
        count = driver.device(8)
        at = {tensor.data_ptr(): beside.bring(tensor) for tensor in (*first.outputs, *on.shared)}
        table = beside.bring(translated(first.table, at))
        outputs = tuple(at[tensor.data_ptr()] for tensor in first.outputs)
        call = lookup_kernels.pool(
            row_type="fp16",
            features=table,
            feature_count=2,
            header=header,
            rows=rows,
            misses=misses,
            miss_count=count,
            miss_room=len(first.misses),
            use_every=0,
            outputs=outputs,
            shared=tuple(at[tensor.data_ptr()] for tensor in on.shared),
        )

        def work() -> None:
            driver.zero(count, stream)
            driver.kernel(call, stream)

        graph = driver.capture(work, pool, stream, name="lookup")
        assert not beside.fetch(count).any()
        sent = driver.pinned(room)
        for batch in [*batches, first]:
            sent.numpy()[: len(batch.header)] = batch.header.numpy()
            driver.copy(header, sent, stream)
            driver.launch(graph, stream)
            beside.finish()
            batch.miss_count.zero_()
            batch.look_up(None)
            assert beside.fetch(count).view(np.int64)[0] == int(batch.miss_count[0]) > 0
            for there, expected in zip(outputs, batch.outputs, strict=True):
                assert np.array_equal(beside.fetch(there), bytes_of(expected))
        del graph


@pytest.mark.parametrize(("begin", "end"), [(0, 64), (1, 64), (8, 16), (3, 4)])
def test_parts_of_buffers_are_zeroed(beside: BesideHost, begin: int, end: int) -> None:
    buffer = beside.bring(torch.full((64,), 7, dtype=torch.uint8))
    beside.device.zero(buffer[begin:end], beside.stream)
    found = beside.fetch(buffer)
    assert not found[begin:end].any()
    assert (np.delete(found, np.arange(begin, end)) == 7).all()
