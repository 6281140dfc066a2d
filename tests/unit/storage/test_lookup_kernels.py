"""Launches of a GPU's lookups have what the kernels expect, under the names that the kernels have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import ConfigError
from storage.hbm import kernel_sources, lookup_kernels, sharing
from storage.hbm.device import KernelCall
from storage.hbm.kernel_sources import ROW_TYPES, SOURCES
from storage.hbm.lookup_kernels import OutputType
from storage.hbm.replica import MOST_DIFFERENCES
from storage.hbm.sharing import across

CUDA = Path(__file__).parents[3] / "cuda"
NAMES = [name for names in SOURCES.values() for name in names]


def buffer() -> torch.Tensor:
    return torch.zeros(8, dtype=torch.uint8)


FEATURES, HEADER, MISSES, MISS_COUNT, OUTPUT, STATES, BUCKETS, USES = (buffer() for _ in range(8))
ENTRIES, COUNT, STAGING, WEIGHTS, SLAB, PEERS = (buffer() for _ in range(6))
LOOKUP: dict[str, Any] = {
    "features": FEATURES,
    "header": HEADER,
    "rows": 512,
    "misses": MISSES,
    "miss_count": MISS_COUNT,
    "miss_room": 9,
    "outputs": (OUTPUT, STATES),
    "shared": (BUCKETS, SLAB, USES),
}
LOOKUP_READS = (FEATURES, HEADER, MISSES, MISS_COUNT)
LOOKUP_WRITES = (MISSES, MISS_COUNT, OUTPUT, STATES)
LATE: dict[str, Any] = {
    "features": FEATURES,
    "header": HEADER,
    "rows": 512,
    "entries": ENTRIES,
    "count": COUNT,
    "room": 100,
    "staging": STAGING,
    "outputs": (OUTPUT, STATES),
}
LATE_READS = (FEATURES, HEADER, ENTRIES, COUNT, STAGING)


def gather_across(output: OutputType, **arguments: Any) -> KernelCall:
    return across(lookup_kernels.gather(output, **arguments), PEERS)


def pool_across(**arguments: Any) -> KernelCall:
    return across(lookup_kernels.pool(**arguments), PEERS)


OUTPUTS: tuple[OutputType, ...] = ("fp32", "fp16", "bf16")
# What is asked for, and the launch.
LAUNCHES: list[tuple[Callable[..., KernelCall], tuple[str, ...], dict[str, Any], KernelCall]] = [
    (
        lookup_kernels.gather,
        (output,),
        LOOKUP | {"row_type": row_type, "feature_count": 5, "longest": 1000, "use_every": 8},
        KernelCall(
            f"lookup_gather_{row_type}_{output}",
            (4, 5),
            (FEATURES, HEADER, 512, MISSES, MISS_COUNT, 9, 7),
            LOOKUP_READS,
            LOOKUP_WRITES,
            (BUCKETS, SLAB, USES),
        ),
    )
    for row_type in ROW_TYPES
    for output in OUTPUTS
]
LAUNCHES += [
    (
        gather_across,
        ("fp32",),
        LOOKUP | {"row_type": row_type, "feature_count": 5, "longest": 1000, "use_every": 8},
        KernelCall(
            f"lookup_gather_across_{row_type}",
            (4, 5),
            (FEATURES, HEADER, 512, MISSES, MISS_COUNT, 9, 7),
            (*LOOKUP_READS, PEERS),
            LOOKUP_WRITES,
            (BUCKETS, SLAB, USES),
        ),
    )
    for row_type in ROW_TYPES
]
LAUNCHES += [
    (
        pool_across,
        (),
        LOOKUP | {"row_type": row_type, "feature_count": 26, "use_every": 8},
        KernelCall(
            f"lookup_pool_across_{row_type}",
            (64, 26),
            (FEATURES, HEADER, 512, MISSES, MISS_COUNT, 9, 7),
            (*LOOKUP_READS, PEERS),
            LOOKUP_WRITES,
            (BUCKETS, SLAB, USES),
        ),
    )
    for row_type in ROW_TYPES
]
LAUNCHES += [
    (
        lookup_kernels.pool,
        (),
        LOOKUP | {"row_type": row_type, "feature_count": 26, "use_every": 0},
        KernelCall(
            f"lookup_pool_{row_type}",
            (64, 26),
            (FEATURES, HEADER, 512, MISSES, MISS_COUNT, 9, -1),
            LOOKUP_READS,
            LOOKUP_WRITES,
            (BUCKETS, SLAB, USES),
        ),
    )
    for row_type in ROW_TYPES
]
LAUNCHES += [
    (
        lookup_kernels.scatter_missed,
        ("bf16",),
        LATE,
        KernelCall(
            "missed_rows_bf16",
            (13, 1),
            (FEATURES, HEADER, 512, ENTRIES, COUNT, 100, STAGING, 0),
            (*LATE_READS, OUTPUT, STATES),
            (OUTPUT, STATES),
        ),
    ),
    (
        lookup_kernels.add_missed,
        (),
        LATE | {"weights": WEIGHTS},
        KernelCall(
            "missed_rows_add",
            (13, 1),
            (FEATURES, HEADER, 512, ENTRIES, COUNT, 100, STAGING, WEIGHTS),
            (*LATE_READS, WEIGHTS, OUTPUT, STATES),
            (OUTPUT, STATES),
        ),
    ),
    (
        lookup_kernels.add_missed,
        (),
        LATE | {"weights": None},
        KernelCall(
            "missed_rows_add",
            (13, 1),
            (FEATURES, HEADER, 512, ENTRIES, COUNT, 100, STAGING, 0),
            (*LATE_READS, OUTPUT, STATES),
            (OUTPUT, STATES),
        ),
    ),
    (
        lookup_kernels.publish_rows,
        (),
        {
            "entries": ENTRIES,
            "count": COUNT,
            "room": 10**6,
            "staging": STAGING,
            "staged": 70,
            "slab": SLAB,
            "slots": 10**6,
            "stride": 512,
        },
        KernelCall(
            "publish_rows",
            (1024, 1),
            (ENTRIES, COUNT, 10**6, STAGING, 70, SLAB, 10**6, 512),
            (ENTRIES, COUNT, STAGING),
            (),
            (SLAB,),
        ),
    ),
    (
        lookup_kernels.publish_stores,
        (),
        {"entries": ENTRIES, "count": COUNT, "room": 0, "buckets": BUCKETS, "bucket_count": 99},
        KernelCall("publish_stores", (1, 1), (ENTRIES, COUNT, 0, BUCKETS, 99), (ENTRIES, COUNT), (), (BUCKETS,)),
    ),
]


def named(call: KernelCall) -> tuple[Any, ...]:
    """A launch with buffers by their addresses: tensors compare by their content."""
    parts = (call.values, call.reads, call.writes, call.shared)
    addresses = [tuple(p.data_ptr() if isinstance(p, torch.Tensor) else p for p in part) for part in parts]
    return (call.name, call.blocks, *addresses)


@pytest.mark.parametrize(("build", "outputs", "arguments", "expected"), LAUNCHES)
def test_a_launch_has_what_the_kernel_expects(
    build: Callable[..., KernelCall], outputs: tuple[str, ...], arguments: dict[str, Any], expected: KernelCall
) -> None:
    assert named(build(*outputs, **arguments)) == named(expected)


def test_every_kernel_is_launched_and_is_in_its_source() -> None:
    """The kernels of a source are those with a budget there: `make cuda-check`, which compiles them, refuses others."""
    launched = {expected.name for *_, expected in LAUNCHES} | {"missed_rows_fp32", "missed_rows_fp16"}
    assert launched == set(NAMES)
    for source, names in SOURCES.items():
        text = (CUDA / f"{source}.cu").read_text(encoding="utf-8")
        assert set(names) == set(re.findall(r"^// budget: (\w+) ", text, re.MULTILINE)), source


def test_a_kernel_takes_as_many_values_as_a_launch_gives() -> None:
    for *_, expected in LAUNCHES:
        name = expected.name
        (source,) = (source for source, names in SOURCES.items() if name in names)
        text = (CUDA / f"{source}.cu").read_text(encoding="utf-8")
        parameters = re.search(rf"{name}\(const([^)]*)\)", text) or re.search(r"name\(const([^)]*)\)", text)
        assert parameters is not None
        assert len(parameters[1].split(",")) == len(expected.values), name


@pytest.mark.parametrize(
    ("kernels_name", "value"),
    [
        ("kFeatureWords", lookup_kernels.FEATURE_WORDS),
        ("kFeatureShift", lookup_kernels.FEATURE_SHIFT),
        ("kChainLengthWord", lookup_kernels.CHAIN_LENGTH_WORD),
        ("kChainWord", lookup_kernels.CHAIN_WORD),
        ("kMostChain", lookup_kernels.MOST_CHAIN),
        ("kMostChain", MOST_DIFFERENCES),
        ("kPackedFeatureWord", lookup_kernels.PACKED_FEATURE_WORD),
        ("kPackedFeatureWords", lookup_kernels.PACKED_FEATURE_WORDS),
        ("kPeerChainsWord", sharing.PEER_CHAINS_WORD),
        ("kPeerWords", sharing.PEER_WORDS),
    ],
)
def test_layouts_are_those_of_the_kernels(kernels_name: str, value: int) -> None:
    text = "".join((CUDA / name).read_text(encoding="utf-8") for name in ("lookup.cuh", "lookup_across.cuh"))
    assert f"constexpr int {kernels_name} = {value};" in text


def test_row_types_are_those_of_the_kernels() -> None:
    text = (CUDA / "row_decode.cuh").read_text(encoding="utf-8")
    assert {
        name.lower(): int(n) for name, n in re.findall(r"int kRow(Fp32|Fp16|Bf16|Int8|Fp8) = (\d);", text)
    } == ROW_TYPES


def test_threads_of_a_block_are_what_the_kernels_were_compiled_for() -> None:
    for source in SOURCES:
        bounds = re.findall(r"__launch_bounds__\((\d+)", (CUDA / f"{source}.cu").read_text(encoding="utf-8"))
        assert bounds
        assert set(bounds) == {str(kernel_sources.THREADS)}


def test_across_gpus_there_is_one_type_of_output() -> None:
    with pytest.raises(ConfigError, match="expected fp32 where GPUs share rows, got bf16"):
        gather_across("bf16", **LOOKUP, row_type="fp16", feature_count=1, longest=1, use_every=0)


def test_chains_of_other_gpus_have_room_for_every_difference() -> None:
    text = (CUDA / "lookup_across.cuh").read_text(encoding="utf-8")
    assert "constexpr int kPeerChainWords = 1 + kMostChain;" in text
    assert sharing.PEER_CHAIN_WORDS == 1 + MOST_DIFFERENCES


def test_a_header_ends_with_its_last_feature() -> None:
    assert lookup_kernels.header_words(1) == 16
    assert lookup_kernels.header_words(26) == 116


@pytest.mark.parametrize("feature_count", [0, 65536])
def test_no_feature_or_too_many_is_refused(feature_count: int) -> None:
    message = f"feature_count: expected 1 to 65535, got {feature_count}"
    with pytest.raises(ConfigError, match=message):
        lookup_kernels.pool(**LOOKUP, row_type="fp32", feature_count=feature_count, use_every=0)
    with pytest.raises(ConfigError, match=message):
        lookup_kernels.gather("fp32", **LOOKUP, row_type="fp32", feature_count=feature_count, longest=9, use_every=0)


@pytest.mark.parametrize("use_every", [-1, 3, 12])
def test_a_sample_that_is_no_power_of_two_is_refused(use_every: int) -> None:
    with pytest.raises(ConfigError, match="use_every: expected 0 or a power of two, got"):
        lookup_kernels.pool(**LOOKUP, row_type="fp32", feature_count=1, use_every=use_every)
