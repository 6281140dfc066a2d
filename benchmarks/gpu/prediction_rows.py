"""Prediction, not measured: the figures that `gpu_lookup` and `gpu_tiers` should find on an H200 and an H100, from
bytes, from loads in flight, and from the host's rates.

Written before any GPU ran them, from benchmarks/gpu/prediction_assumptions.py.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from benchmarks.gpu.lookup_parts import (
    BAG,
    BEST_PUBLIC,
    IDS,
    IN_A_GRAPH,
    NARROW,
    OF_GATHER,
    OF_POOLED,
    OVER_FBGEMM,
    OVER_TORCH,
    ROWS,
    SMALL_IDS,
    SMALL_US,
    TINY,
    TINY_RATE,
    WIDE,
)
from benchmarks.gpu.measured import Found, Line
from benchmarks.gpu.prediction_assumptions import (
    AHEAD,
    BETWEEN,
    BUCKET_BYTES,
    BUS,
    FAR_US,
    FBGEMM_SHARE,
    FIND_US,
    H200,
    ID_US,
    IN_SECOND,
    INDEX_US,
    LIST_BYTES,
    LISTS_US,
    MISS_US,
    NEAR,
    NEAR_BYTES,
    NEAR_US,
    NODE_US,
    PIECE_BYTES,
    PIECES,
    POLICY_POINT,
    SESSIONS,
    SHEETS,
    STREAM,
    TORCH_WARPS,
    WARPS,
    Sheet,
)
from benchmarks.gpu.replica import Shape
from benchmarks.gpu.tier_parts import (
    DELTA_BAGS,
    DELTA_DIM,
    DELTA_LENGTH,
    DELTA_ROWS,
    MISS_BAGS,
    MISS_BYTES,
    MISS_DIM,
    MISS_LENGTH,
    MISS_THREADS,
    NVE_RATE,
    P99_BESIDE,
    VISIBLE_MS,
)
from loadtest.popularity import ZIPF


def share_of_rows(row_bytes: float) -> float:
    """Returns the share of the memory's rate that random rows reach."""
    return STREAM if row_bytes >= 256 else PIECES if row_bytes <= 64 else BETWEEN


def harmonic(rows: float) -> float:
    """Returns the sum of r^-ZIPF over r up to `rows`."""
    zeta = math.fsum(r**-ZIPF for r in range(1, 1000)) + math.pow(999.5, 1 - ZIPF) / (ZIPF - 1)
    return zeta - math.pow(rows + 0.5, 1 - ZIPF) / (ZIPF - 1)


def hottest(part: float, rows: float) -> float:
    """Returns the share of Zipf lookups that go to the hottest `part` of the rows."""
    return harmonic(part) / harmonic(rows)


@dataclass(frozen=True)
class Rate:
    """Ids a second. by: what bounds it."""

    ids: float
    by: str


def limit(sheet: Sheet, shape: Shape, written: float, near: float = 0.0) -> Rate:
    """Predicts the rate of rows by their numbers.

    written: bytes for each id. near: share of the rows that the second-level cache has.
    """
    return _by_bytes(sheet, shape, written, near, 0.0)


def lookup(sheet: Sheet, shape: Shape, written: float, near: float = 0.0) -> Rate:
    """Predicts the rate of lookups: for each id one more bucket, for some two; or the loads that can be under way."""
    by_bytes = _by_bytes(sheet, shape, written, near, (1 + IN_SECOND) * BUCKET_BYTES)
    warp_us = search_us(near) + copy_us(shape, near)
    by_loads = Rate(sheet.units * WARPS * SESSIONS / warp_us * 1e6, f"loads: {SESSIONS} ids a warp in {warp_us:.1f} us")
    return min(by_bytes, by_loads, key=lambda rate: rate.ids)


def search_us(near: float = 0.0) -> float:
    """Predicts the microseconds of a warp's search, as version 2 of the lookups did it.

    It loads its ids, their buckets, the word and a second check, the flags, and the second bucket where one id needs
    it. Version 3 loads a bucket at once.
    """
    far_us = near * NEAR_US + (1 - near) * FAR_US
    return 2 * far_us + 2 * NEAR_US + NEAR_US + far_us + 2 * NEAR_US


def copy_us(shape: Shape, near: float = 0.0) -> float:
    """Predicts the microseconds in which a warp copies 32 rows, with four loads under way in every thread."""
    units = max(1, shape.row_bytes // 16)
    steps = max(1, min(SESSIONS, units) // AHEAD)
    return steps * (near * NEAR_US + (1 - near) * FAR_US)


def torch_bag(shape: Shape, near: float = 0.0) -> float:
    """Predicts the ids a second of nn.EmbeddingBag."""
    return TORCH_WARPS / (shape.dim / 32 * (near * NEAR_US + (1 - near) * FAR_US)) * 1e6


def small_us(shape: Shape) -> float:
    """Predicts the microseconds of a graph of two nodes; every id has a thread of a warp at once."""
    return 2 * NODE_US + 2 * NEAR_US + search_us() + copy_us(shape)


def miss_share() -> float:
    """Predicts the share of lookups that miss with a tenth of the rows on the GPU."""
    rows = MISS_BYTES / (4 * MISS_DIM)
    return 1 - hottest(rows / 10, rows) + POLICY_POINT


def miss_batch_us(sheet: Sheet) -> float:
    """Predicts the microseconds of a session's batch with misses: the host's part, the bus, the GPU."""
    ids = MISS_BAGS * MISS_LENGTH
    host = ids * (ID_US + miss_share() * MISS_US)
    bus = ids * (8 + miss_share() * (16 + 4 * MISS_DIM)) / BUS * 1e6
    gpu = ids / lookup(sheet, WIDE, 4 * MISS_DIM / MISS_LENGTH, near_share(WIDE, MISS_BYTES / 5120)).ids * 1e6
    return host + bus + gpu + 4 * NODE_US


def miss_rate(sheet: Sheet, sessions: int) -> Rate:
    """Predicts the ids a second of `sessions` sessions."""
    ids = MISS_BAGS * MISS_LENGTH
    bus = BUS / (8 + miss_share() * (16 + 4 * MISS_DIM))
    return min(
        Rate(sessions * ids / miss_batch_us(sheet) * 1e6, "the host"), Rate(bus, "the bus"), key=lambda rate: rate.ids
    )


def visible_ms() -> float:
    """Predicts the milliseconds of a delta, from staged to found.

    They are the host's work for each row, on two threads, and the bus.
    """
    row_us = INDEX_US + FIND_US + LISTS_US
    return DELTA_ROWS * (row_us / 1e3 + (4 * DELTA_DIM + LIST_BYTES) / BUS * 1e3)


def near_share(shape: Shape, rows: float) -> float:
    """Predicts the share of Zipf lookups whose bucket and row are in the second-level cache."""
    return hottest(NEAR_BYTES / (shape.row_bytes + BUCKET_BYTES), rows)


def row_lines() -> list[Line]:
    """Returns every figure that has a target."""
    return [*_gathers(), *_pools(), *_small(), *_tiers()]


def _gathers() -> list[Line]:
    found = []
    for shape, target in OF_GATHER.items():
        rates = [(lookup(sheet, shape, shape.row_bytes), limit(sheet, shape, shape.row_bytes)) for sheet in SHEETS]
        found.append(
            Line(
                f"{IDS:,} uniform ids of {ROWS // 10**6} M rows, {shape}, written out, over the gather's limit",
                f">= {target:g}",
                tuple(f"{ours.ids / other.ids:.2f} ({_giga(ours)})" for ours, other in rates),
                f"{rates[0][0].by}; the limit {_giga(rates[0][1])}",
                Found(f".* uniform ids of .* rows, {re.escape(str(shape))}, written out", "limit"),
            )
        )
    return found


def _pools() -> list[Line]:
    found = []
    for name, near in (("uniform", 0.0), ("Zipf(1.05)", near_share(WIDE, ROWS))):
        written = 4 * WIDE.dim / BAG
        ours = [lookup(sheet, WIDE, written, near) for sheet in SHEETS]
        limits = [limit(sheet, WIDE, written, near) for sheet in SHEETS]
        what = f"bags of {BAG}, {name}, {WIDE}, summed"
        cached = f", {100 * near:.0f} % of the rows in the second-level cache" if near else ""
        pairs = list(zip(ours, limits, strict=True))
        claim = f".* bags of {BAG} ids, {re.escape(name)}, .* rows, {re.escape(str(WIDE))}, summed"
        found += [
            Line(
                f"{what}, over the pooled limit",
                f">= {OF_POOLED:g}",
                tuple(f"{each.ids / other.ids:.2f} ({_giga(each)})" for each, other in pairs),
                f"{ours[0].by}{cached}; the limit {_giga(limits[0])}",
                Found(claim, "limit"),
            ),
            Line(
                f"{what}, ids a second",
                f"> {BEST_PUBLIC / 1e9:g} G",
                tuple(_giga(each) for each in ours),
                "as above; the target is FBGEMM's best public figure, on an H100",
                Found(claim, "bound", "ours"),
            ),
            Line(
                f"{what}, over torch EmbeddingBag",
                f">= {OVER_TORCH:g}x",
                tuple(f"{each.ids / torch_bag(WIDE, near):.1f}x" for each in ours),
                f"torch {torch_bag(WIDE, near) / 1e9:.1f} G ids/s: {TORCH_WARPS:,} warps, {WIDE.dim // 32} for an id, "
                "one load after the other",
                Found(claim, "torch EmbeddingBag"),
            ),
            Line(
                f"{what}, over FBGEMM",
                f">= {OVER_FBGEMM:g}x",
                tuple(f"{each.ids / (FBGEMM_SHARE * other.ids):.1f}x" for each, other in pairs),
                f"FBGEMM at {FBGEMM_SHARE:g} of the pooled limit, by row numbers",
                Found(claim, "FBGEMM"),
            ),
        ]
    tiny = [lookup(sheet, TINY, 4 * TINY.dim / BAG) for sheet in SHEETS]
    what = f"bags of {BAG}, uniform, {TINY}, summed, ids a second"
    measured = Found(f".* bags of {BAG} ids, uniform, .* rows, {TINY}, summed", "bound", "ours")
    found.append(Line(what, f">= {TINY_RATE / 1e9:g} G", tuple(_giga(each) for each in tiny), tiny[0].by, measured))
    return found


def _small() -> list[Line]:
    by = f"2 nodes of {NODE_US} us, search {search_us():.1f} us, rows {copy_us(WIDE):.1f} us, the feature's words"
    one = f"{SMALL_IDS:,} ids, {WIDE}, all hit, one of {IN_A_GRAPH} in a graph, on the GPU"
    return [
        Line(
            f"{SMALL_IDS:,} ids, {WIDE}, one graph",
            f"<= {SMALL_US:.0f} us",
            (f"{small_us(WIDE):.0f} us",) * len(SHEETS),
            by,
            Found(re.escape(one), "bound", "ours"),
        ),
        Line(
            f"{SMALL_IDS:,} ids, {NARROW}, one graph",
            "",
            (f"{small_us(NARROW):.0f} us",) * len(SHEETS),
            f"the same with rows {copy_us(NARROW):.1f} us",
        ),
    ]


def _tiers() -> list[Line]:
    found = []
    for sessions in MISS_THREADS:
        rates = [miss_rate(sheet, sessions) for sheet in SHEETS]
        ids = MISS_BAGS * MISS_LENGTH
        found.append(
            Line(
                f"a tenth of {MISS_BYTES / 1e9:.0f} GB on the GPU, {MISS_BAGS} x {MISS_LENGTH}, Zipf(1.05), "
                f"{sessions} sessions",
                f">= {NVE_RATE / 1e6:.0f} M ids/s" if sessions == MISS_THREADS[-1] else "",
                tuple(f"{rate.ids / 1e6:.0f} M ids/s" for rate in rates),
                f"{rates[0].by}: {100 * miss_share():.1f} % missed, {MISS_US:g} us each: "
                f"{ids * miss_share() * MISS_US / 1e3:.1f} of the {miss_batch_us(H200) / 1e3:.1f} ms of a batch",
                Found(rf".* rows on the GPU, .*, {sessions} sessions", "bound", "ours"),
            )
        )
    bus_ms = DELTA_ROWS * (4 * DELTA_DIM + LIST_BYTES) / BUS * 1e3
    beside = DELTA_BAGS * DELTA_LENGTH
    found += [
        Line(
            f"delta of {DELTA_ROWS // 10**6} M rows x {4 * DELTA_DIM} B: staged until found",
            f"<= {VISIBLE_MS:.0f} ms",
            (f"{visible_ms():,.0f} ms",) * len(SHEETS),
            f"the host, two threads: index {INDEX_US:g} us a row, its row {FIND_US:g} us, lists {LISTS_US:g} us; "
            f"the bus {bus_ms:.1f} ms",
            Found("delta of .* staged until found", "", "ours"),
        ),
        Line(
            f"the same: p99 of a lookup of {beside:,} ids, over p99 without",
            f"<= {P99_BESIDE:g}x",
            ("1.3x",) * len(SHEETS),
            "a copy of 4 MiB on the bus before a session's, 0.08 ms, and the interpreter, in turns",
            Found("delta of .* p99 of a lookup", "without", "ratio"),
        ),
        Line(
            "the same: lookups that the GPU could not answer",
            "0",
            ("0",) * len(SHEETS),
            "no reader waits; also so in the simulation",
            Found("delta of .* lookups that the GPU could not answer", "none", "ours"),
        ),
    ]
    return found


def _by_bytes(sheet: Sheet, shape: Shape, written: float, near: float, buckets: float) -> Rate:
    row = max(PIECE_BYTES, shape.row_bytes)
    straight = (8 + written) / STREAM
    far = (1 - near) * (row / share_of_rows(shape.row_bytes) + buckets / PIECES) + straight
    far_rate = sheet.memory / far
    near_rate = NEAR / (8 + written + shape.row_bytes + buckets) if near else math.inf
    total = 8 + written + row + buckets
    if near_rate < far_rate:
        return Rate(near_rate, f"{8 + written + shape.row_bytes + buckets:.0f} B an id through the second-level cache")
    rest = f"at {100 * total / far:.0f} % of the memory's rate" if not near else "those that are not cached from memory"
    return Rate(far_rate, f"{total:.0f} B an id, {rest}")


def _giga(rate: Rate) -> str:
    return f"{rate.ids / 1e9:.1f} G ids/s"
