"""Prediction, not measured: lists each assumption of the predictions for a GPU once, from data sheets, from libraries,
and from measurements without a GPU.

Where a figure of a GPU differs from its prediction, one of these is wrong, and finding it is the purpose of predicting.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """The figures of a GPU's data sheet."""

    name: str
    #: Bytes a second of its memory.
    memory: float
    #: Multiprocessors.
    units: int


H200, H100 = Sheet("H200", 4.8e12, 132), Sheet("H100", 3.35e12, 132)
SHEETS = (H200, H100)

# Bytes a second of the bus, and of an H200's memory as a copy reaches it.
BUS = 55e9
COPY = 4.0e12
# Microseconds to begin and end a kernel in a graph, however small.
NODE_US = 2.5

# Sessions. Products of these sizes reach no more than this of a GPU's 67, 495 and 989 TFLOP/s.
FLOPS = {"fp32": 35e12, "tf32": 150e12, "bf16": 200e12}
ITEM = {"fp32": 4, "tf32": 4, "bf16": 2}
# Kernels of a batch: unpack, 8 layers, 7 ReLU, 4 that concatenate tensors, products of pairs, sigmoid, result.
# With bf16 there are 5 more, which round, or compute what is read both rounded and not.
KERNELS = {"fp32": 23, "tf32": 23, "bf16": 28}
# Microseconds of the host: an operator from Python, and the cost of a batch beside them; a launch and the wait for its
# end.
OPERATOR_US, EAGER_US, CALL_US = 8.0, 25.0, 15.0
# Microseconds of the interpreter, which one thread holds at a time: a request end to end; and packing its ids, in
# addition.
INTERPRETER_US, PACK_US = 250.0, 76.0
# One thread's lookups, in bytes read and written.
LOOKUP_BYTES_S = 12e9

# Rows. Shares of the memory's rate: writes or reads within a row, and rows from 256 bytes on; pieces of 64 bytes
# at random, below which memory transfers no less; pieces between.
STREAM, PIECES, BETWEEN = 0.85, 0.60, 0.72
PIECE_BYTES = 64
# Second-level cache: bytes that hold rows and buckets, bytes a second, a load that it answers; a load from memory.
NEAR_BYTES, NEAR, NEAR_US, FAR_US = 40e6, 5.5e12, 0.3, 0.7
# Warps of version 2 of our kernels on a multiprocessor (128 registers), loads of one thread under way at once,
# threads of a warp.
WARPS, AHEAD, SESSIONS = 16, 4, 32
IN_SECOND = 0.15
BUCKET_BYTES = 64
# torch's EmbeddingBag: 1,024 blocks of eight warps, a thread for each value, one row after the other.
TORCH_WARPS = 8192
# FBGEMM by row numbers, as a share of the pooled limit.
FBGEMM_SHARE = 0.75
# A tenth of the rows is on the GPU. The policy is a point below the best static choice.
POLICY_POINT = 0.01
# Microseconds of a thread: a missed row, found in DRAM and written where the GPU fetches it; an id copied and reported.
MISS_US, ID_US = 0.15, 0.0012
# Microseconds of both cores of a virtual machine for a row of a delta: the GPU's index, its row, the lists to send.
INDEX_US, FIND_US, LISTS_US = 0.076, 0.031, 0.029
LIST_BYTES = 48

# The rows of the page's table: name, value, source.
TOLD = (
    ("the bus", f"{BUS / 1e9:.0f} GB/s", "PCIe 5 x16 carries 63; pinned copies reach this"),
    ("copies within an H200", f"{COPY / 1e12:.1f} TB/s", "five sixths of the data sheet's 4.8"),
    ("a small kernel in a graph", f"{NODE_US} us", "assumed"),
    (
        "products, " + " / ".join(FLOPS),
        " / ".join(f"{rate / 1e12:.0f}" for rate in FLOPS.values()) + " TFLOP/s",
        "of 67, 495 and 989: they are small",
    ),
    ("an operator from Python, of the host", f"{OPERATOR_US:.0f} us", "assumed"),
    ("a batch of them, a launch and its wait", f"{EAGER_US:.0f} us, {CALL_US:.0f} us", "assumed"),
    ("a request, of the interpreter", f"{INTERPRETER_US:.0f} us", "measured on a processor"),
    ("packing the ids of 512 samples", f"{PACK_US:.0f} us", "measured on a processor"),
    ("lookups of one thread", f"{LOOKUP_BYTES_S / 1e9:.0f} GB/s", "measured on a processor"),
    (
        "memory of H200 / H100, multiprocessors",
        " / ".join(f"{each.memory / 1e12:g}" for each in SHEETS) + f" TB/s, {H200.units}",
        "data sheets",
    ),
    (
        "of that rate: in a row, between, 64 bytes at random",
        f"{100 * STREAM:.0f} / {100 * BETWEEN:.0f} / {100 * PIECES:.0f} %",
        "assumed; in a row from 256 bytes on",
    ),
    ("a load from memory / the second-level cache", f"{FAR_US} / {NEAR_US} us", "assumed"),
    ("rows and buckets that cache holds, its rate", f"{NEAR_BYTES / 1e6:.0f} MB, {NEAR / 1e12:g} TB/s", "assumed"),
    ("warps a multiprocessor, rows under way a session", f"{WARPS}, {AHEAD}", "128 registers; the kernels"),
    ("ids in their second bucket", f"{100 * IN_SECOND:.0f} %", "measured on a processor"),
    ("torch's EmbeddingBag", f"{TORCH_WARPS:,} warps", "its source"),
    ("FBGEMM, of the pooled limit", f"{FBGEMM_SHARE:g}", "assumed"),
    ("a missed row / an id, of a thread", f"{MISS_US} / {ID_US} us", "measured on a processor"),
    (
        "a row of a delta: index, row, lists",
        f"{INDEX_US} / {FIND_US} / {LISTS_US} us",
        "measured on two cores, by both (`python -m benchmarks.gpu.delta_parts --rows 12000000`)",
    ),
)
