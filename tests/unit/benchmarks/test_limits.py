"""The native limits from Python, and their stub."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from nanobind.stubgen import StubGen

import benchmarks
import benchmarks._limits as module
from benchmarks._limits import ByteLimit, IndexLimit, RowLimit, has_io_uring, random_reads
from benchmarks.traffic import random_ids


def test_the_committed_stub_is_the_modules_own() -> None:
    generator = StubGen(module, quiet=True)
    generator.put(module)
    stub = Path(benchmarks.__file__).parent / "_limits.pyi"
    assert ast.unparse(ast.parse(stub.read_text())) == ast.unparse(ast.parse(generator.get())), (
        "out of date: run python -m nanobind.stubgen -m benchmarks._limits -o benchmarks/_limits.pyi, then ruff format"
    )


def test_the_probe_finds_every_id_and_no_other() -> None:
    ids = random_ids(20_000)
    probe = IndexLimit(ids[:10_000])
    places = np.empty(20_000, np.uint32)
    assert probe.size() == 10_000
    assert probe.find(ids, places) == 10_000
    assert len(np.unique(places[:10_000])) == 10_000
    assert (places[10_000:] == 2**32 - 1).all()
    assert probe.memory_bytes() >= 10_000 * 10


def test_gather_and_pool_are_those_of_numpy() -> None:
    rows = RowLimit(1000, 24)
    weights = np.repeat(np.arange(1000, dtype=np.float32), 24).reshape(1000, 24)
    numbers = np.random.default_rng(1).integers(0, 1000, 500)
    out = np.empty((500, 24), np.float32)
    rows.gather(numbers, out)
    assert np.array_equal(out, weights[numbers])
    offsets = np.array([0, 3, 3, 499, 500])
    sums = np.empty((4, 24), np.float32)
    rows.pool(numbers, offsets, sums)
    expected = [weights[numbers[a:b]].sum(axis=0) for a, b in zip(offsets, offsets[1:], strict=False)]
    assert np.allclose(sums, expected)


def test_wrong_arguments_are_named() -> None:
    rows = RowLimit(10, 4)
    out = np.empty((1, 4), np.float32)
    with pytest.raises(IndexError, match="numbers"):
        rows.gather(np.array([10]), out)
    with pytest.raises(TypeError, match="numbers"):
        rows.gather(np.array([1.0]), out)
    with pytest.raises(ValueError, match="offsets"):
        rows.pool(np.array([1]), np.array([0, 2]), out)
    with pytest.raises(ValueError, match="isa"):
        IndexLimit(np.array([1]), isa="abacus")
    with pytest.raises(ValueError, match="twice"):
        IndexLimit(np.array([1, 1]))
    with pytest.raises(ValueError, match="bytes"):
        ByteLimit(1)


def test_random_reads_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    path.write_bytes(bytes(64 * 4096))
    for engine in ("threads", "io_uring") if has_io_uring() else ("threads",):
        try:
            rate, used = random_reads(str(path), count=200, engine=engine)
        except OSError as error:
            pytest.skip(f"this file system has no direct reads: {error}")
        assert rate > 0
        assert used == engine
    with pytest.raises(OSError, match="absent"):
        random_reads(str(tmp_path / "absent"), count=1)
    with pytest.raises(ValueError, match="depth"):
        random_reads(str(path), count=1, depth=0)
