"""Lookups and tiers of a GPU without one: every bucket at toy sizes, the index that a GPU makes, the predictions."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu import lookup, prediction_rows, tiers
from benchmarks.gpu.device import Gpu, find_gpu
from benchmarks.gpu.events import Timed, largest
from benchmarks.gpu.index import buckets_for, ids_of, make_index, mix, two_buckets
from benchmarks.gpu.limits import NAMES, SOURCE, PlainKernels, embedding_bag
from benchmarks.gpu.lookup_parts import NARROW, TINY, WIDE
from benchmarks.gpu.prediction_assumptions import H200
from benchmarks.gpu.replica import GpuRows, Lookups, Shape, expected_rows, fitting_rows, zipf_ranks
from benchmarks.gpu.suite import Suite
from benchmarks.gpu.tier_world import MadeDelta, fitting_table
from benchmarks.traffic import expected_codes
from loadtest.popularity import zipf
from storage._table import GpuCache
from storage.hbm.kernels import compile_source
from storage.hbm.replica import bytes_of

ROOT = Path(__file__).parents[3]

# What a run prints, each once at least: the claim, and what it is compared with.
LOOKUP_BUCKETS = [
    "the index: 3,000 rows in 1,000 buckets, ",
    *[f"512 uniform ids of 3,000 rows, {shape}, written out: .* limit " for shape in (WIDE, NARROW)],
    "512 uniform ids of 3,000 rows, d128 fp32, written out: .* torch index_select ",
    "512 uniform ids of 3,000 rows, d32 fp16, written out: by CUDA events .* p99 ",
    *[
        f"32 bags of 16 ids, {re.escape(skew)}, 3,000 rows, {shape}, summed: .* {against} "
        for skew in ("uniform", "Zipf(1.05)")
        for shape in (WIDE, TINY)
        for against in ("limit", "bound", "torch EmbeddingBag")
    ],
    "FBGEMM: left out, it needs a GPU",
    "64 ids, d128 fp32, all hit, one of 3 in a graph, on the GPU: .* us, bound 15",
    "64 ids, d128 fp32, all hit, one graph, launch until the host knows: .* us, bound 15",
]
TIER_BUCKETS = [
    "4,000 rows of 512 B in DRAM, 400 of them on the GPU ",
    r"400 of 4,000 rows on the GPU, d128 fp32, Zipf\(1.05\), 8 x 32, 2 sessions: .* M ids/s, bound 432",
    r"400 of 4,000 rows on the GPU, .* 2 sessions: .* DRAM alone ",
    r"400 of 4,000 rows on the GPU, .*: hit rate on the GPU: .* %, best static choice ",
    "delta of 100 rows x 256 B, 2,000 rows on the GPU, 4 streams: staged until found: .* ms, bound 20",
    "delta of 100 rows .*: p99 of a lookup: .* us, without ",
    "delta of 100 rows .*: lookups that the GPU could not answer: 0 batches, none 0, .* target 1: yes",
    "delta of 100 rows .*: on the GPU after ",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "buckets", "counted"),
    [(lookup.SUITE, LOOKUP_BUCKETS, set()), (tiers.SUITE, TIER_BUCKETS, {"batches"})],
    ids=["gpu_lookup", "gpu_tiers"],
)
def test_a_simulated_run_says_every_bucket_and_never_as_a_result(
    suite: Suite, buckets: list[str], counted: set[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.txt"
    code = suite.main(["--simulated", "--max-seconds", "200", "--out", str(out)])
    printed = capfd.readouterr().out
    assert code == 0, printed
    for bucket in buckets:
        assert re.search(bucket, printed), bucket
    for name in suite.parts:
        assert re.search(f"^{name}: done after ", printed, re.M), name
    said = [bucket for bucket in printed.splitlines() if bucket.startswith("  ")]
    assert said
    assert all(bucket.startswith("  simulated, no result: ") for bucket in said)
    rows = json.loads((tmp_path / "bench.txt.json").read_text())
    for row in rows[:-1]:
        assert row["claim"].startswith("simulated, no result: ")
        # Only what is counted is judged.
        assert row["target"] is None or row["unit"] in counted
    assert rows[-1]["claim"] == "parts that failed"


@pytest.mark.parametrize("suite", [lookup.SUITE, tiers.SUITE], ids=["gpu_lookup", "gpu_tiers"])
def test_without_a_gpu_nothing_is_measured_and_the_reason_is_reported(
    suite: Suite, capfd: pytest.CaptureFixture[str]
) -> None:
    from serving.gpu.gpus import find_gpus

    if not find_gpus().why_none:
        pytest.skip("there is a GPU here")
    assert suite.main(["--quick"]) == 1
    printed = capfd.readouterr()
    assert f"{suite.name}: no GPU can be measured: " in printed.err
    assert "--simulated" in printed.err
    assert "ids/s" not in printed.out


def test_options_of_sessions_are_none_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--svg", "x.svg"], ["--soak", "9"], ["--parts", "gathers"], ["--rows", "3"]):
        with pytest.raises(SystemExit) as ended:
            lookup.main(flags)
        assert ended.value.code == 2
    assert "there is no 'gathers'; there are gather, pool" in capsys.readouterr().err


def zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def test_the_mixing_is_that_of_the_kernels() -> None:
    # SplitMix64's finaliser, as in cuda/bucket.cuh.
    def reference(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
        return value ^ (value >> 31)

    values = [0, 1, -1, 2**63 - 1, -(2**63), 123456789012345]
    found = mix(torch.tensor(values)).tolist()
    assert [value % 2**64 for value in found] == [reference(value % 2**64) for value in values]


@pytest.mark.parametrize("table", [0, 7])
def test_buckets_are_those_of_the_hosts_cache(table: int) -> None:
    rows = 5000
    cache = GpuCache(4, rows, 16)
    ids = ids_of(torch.arange(1, rows + 1))
    assert cache.bucket_count == buckets_for(rows)
    is_in = cache.insert(table, ids.numpy(), np.zeros((rows, 4), np.uint8), None)
    cache.take_set()
    cache.complete_set()
    words = torch.from_numpy(np.asarray(cache.buckets()).copy()).view(torch.int64).view(-1, 8)
    held = (words[:, 4:] & 0xFFFFFFFF) != 0
    bucket = torch.arange(len(words))[:, None].expand(-1, 4)[held]
    first, second = two_buckets(words[:, :4][held], table, cache.bucket_count)
    assert int(held.sum()) == int(np.count_nonzero(is_in))
    assert ((bucket == first) | (bucket == second)).all()
    assert (bucket == first).float().mean() > 0.5


def test_an_index_is_as_full_as_the_hosts_and_has_every_id() -> None:
    rows = 20_000
    index = make_index(rows, zeros, table=3)
    assert index.has_place[1:].all()
    assert not index.has_place[0]
    assert 0.1 < index.in_second < 0.3
    slots = (index.buckets[:, 4:] & 0xFFFFFFFF).reshape(-1)
    held = slots[slots != 0]
    assert sorted(held.tolist()) == list(range(1, rows + 1))
    assert ((index.buckets[:, 4:] >> 32 & 0xFFFF)[(index.buckets[:, 4:] & 0xFFFFFFFF) != 0] == 3).all()
    # Nobody stands in the second bucket whose first does not say so.
    owners = index.buckets[:, 4:] & 0xFFFFFFFF
    first, _ = two_buckets(index.buckets[:, :4], 3, len(index.buckets))
    away = (owners != 0) & (first != torch.arange(len(index.buckets))[:, None])
    assert (index.buckets[first[away], 4] >> 56 & 1 == 1).all()


@pytest.fixture
def gpu() -> Gpu:
    return find_gpu(simulated=True)


@pytest.mark.parametrize("shape", [WIDE, NARROW, TINY, Shape(64, "fp16")], ids=str)
@pytest.mark.parametrize("skew", ["uniform", "zipf"])
def test_lookups_give_the_rows_that_were_made(gpu: Gpu, shape: Shape, skew: str) -> None:
    rows = GpuRows.make(gpu, shape, 700)
    for length in (None, 8):
        lookups = Lookups(rows, 2, 64, skew=skew, length=length)
        lookups.check()
        plain = PlainKernels(gpu).launch(lookups)
        plain(1)
    assert not gpu.driver.inner.errors  # type: ignore[attr-defined]


def test_wrong_rows_and_misses_are_seen(gpu: Gpu) -> None:
    rows = GpuRows.make(gpu, WIDE, 700)
    lookups = Lookups(rows, 1, 64, skew="uniform", length=8)
    rows.values[int(lookups.slots[0][9]), 5] += 1
    with pytest.raises(AssertionError, match="1 rows are wrong, 0 ids were missed"):
        lookups.check()
    rows.index.buckets.zero_()
    with pytest.raises(AssertionError, match="64 ids were missed"):
        lookups.check()


def test_peers_are_given_the_same_rows(gpu: Gpu) -> None:
    rows = GpuRows.make(gpu, WIDE, 700)
    lookups = Lookups(rows, 1, 64, skew="uniform", length=8)
    seen: list[torch.Tensor] = []
    lookups.plain(lambda slots: seen.append(rows.values[slots].view(8, 8, -1).sum(1)))(0)
    embedding_bag(lookups)(0)
    lookups.check()
    assert torch.equal(seen[0], lookups.values)
    assert torch.equal(expected_rows(lookups.slots[0], 128).view(8, 8, -1).sum(1), seen[0])


def test_sizes_follow_the_memory() -> None:
    assert fitting_rows(100_000_000, 79 << 30, 512) == 100_000_000
    assert 20_000_000 < fitting_rows(100_000_000, 23 << 30, 512) < 40_000_000
    assert fitting_rows(10, 0, 512) == 1
    # The host's memory, then the GPU's.
    assert fitting_table(500_000_000, 512, 128 << 30, 1 << 50, 0.1) == (64 << 30) // 544
    most = fitting_table(500_000_000, 512, 1 << 50, 1 << 30, 0.1)
    assert bytes_of(512, most // 10) < 0.81 * (1 << 30)
    assert fitting_table(7, 512, 1 << 40, 1 << 40, 1.0) == 7


def test_zipf_on_the_gpu_is_that_of_the_traffic() -> None:
    generator = torch.Generator().manual_seed(1)
    ranks = zipf_ranks(1000, 50_000, generator, torch.device("cpu"))
    share = float((ranks < 10).double().mean())
    assert share == pytest.approx(zipf(1000).best_static(10), abs=0.01)
    assert int(ranks.max()) < 1000


def test_use_codes_follow_the_popularity() -> None:
    codes = expected_codes(zipf(1000))
    assert codes[0] > codes[10] > codes[500] >= codes[-1] == 1
    assert (np.diff(codes.astype(int)) <= 0).all()


def test_a_made_delta_has_the_face_of_one() -> None:
    delta = MadeDelta(np.arange(0, 200_000, 2), 4, 9)
    shards = list(delta.shards("t"))
    assert sum(len(shard.ids) for shard in shards) == delta.tables[0].rows == 100_000
    assert (shards[-1].rows == 9.0).all()
    assert len(delta.removed("t")) == 0


def test_times_are_by_launch_and_the_first_turn_is_none(gpu: Gpu) -> None:
    stream = gpu.driver.new_stream("x")
    numbers: list[int] = []
    timed = Timed(gpu.driver, stream, numbers.append, times=3, run_up=2)
    assert math.isnan(timed.percentile(50))
    timed.run(0)
    assert timed.us == []
    assert timed.per_second(10.0)(1) > 0
    assert numbers == list(range(10))
    assert len(timed.us) == 3
    assert timed.percentile(0) <= timed.percentile(99)
    assert largest(("a", "b"))({"a": 1.0, "b": 3.0, "c": 9.0}) == 3.0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_the_plain_kernels_compile_within_their_registers(arch: str) -> None:
    pytest.importorskip("cupy")
    text = SOURCE.read_text(encoding="utf-8")
    cubin, said = compile_source(SOURCE.stem, arch, {SOURCE.name: text.encode()})
    assert said.strip() == ""
    for name in NAMES:
        assert name.encode() in cubin


def test_the_predictions_follow_from_bytes_and_loads() -> None:
    sheet = H200
    wide = prediction_rows.lookup(sheet, WIDE, 512)
    assert wide.ids == pytest.approx(4.8e12 / ((8 + 512 + 512) / 0.85 + 1.15 * 64 / 0.6))
    assert prediction_rows.limit(sheet, WIDE, 512).ids > wide.ids
    assert prediction_rows.lookup(sheet, TINY, 1).by.startswith("loads: 32 ids a warp in 4.3 us")
    assert prediction_rows.copy_us(WIDE) == pytest.approx(8 * 0.7)
    popularity = zipf(100_000)
    assert prediction_rows.hottest(10_000, 100_000) == pytest.approx(popularity.best_static(10_000), abs=1e-3)


def test_the_sizes_of_the_page_are_those_of_the_cache() -> None:
    page = (ROOT / "docs" / "hbm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ values, fp\d+ \| (\d+) \| (\d+) \| (\d+) M \|$", page, re.M)
    assert len(rows) == 4
    for row_bytes, on_gpu, millions in rows:
        each = bytes_of(int(row_bytes), 1 << 24) / (1 << 24)
        assert each == pytest.approx(int(on_gpu), abs=1)
        assert 10 * 2**30 / each / 1e6 == pytest.approx(int(millions), abs=1)
