"""Prediction, not measured: what the predictions for a GPU assume, each once, from data sheets, from libraries, and
from what was measured without a GPU.

Where a figure of a GPU differs from its prediction, one of these is wrong, and that is what the prediction is for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """Of a GPU's data sheet. memory: bytes a second. units: multiprocessors."""

    name: str
    memory: float
    units: int


H200, H100 = Sheet("H200", 4.8e12, 132), Sheet("H100", 3.35e12, 132)
SHEETS = (H200, H100)

# The bus, and an H200's memory as a copy reaches it.
BUS = 55e9
COPY = 4.0e12
# A kernel in a graph, small as it is: to begin and to end.
NODE_US = 2.5

# Sessions. Products of such sizes reach no more of a GPU's 67, 495 and 989 TFLOP/s.
FLOPS = {"fp32": 35e12, "tf32": 150e12, "bf16": 200e12}
ITEM = {"fp32": 4, "tf32": 4, "bf16": 2}
# Kernels of a batch: unpack, 8 layers, 7 ReLU, 4 that put tensors together, products of pairs, sigmoid, result.
# With bf16 there are 5 more that round, or that compute what is read both rounded and not.
KERNELS = {"fp32": 23, "tf32": 23, "bf16": 28}
# What the host takes: an operator from Python, and what a batch costs beside them; a launch and the wait for its end.
OPERATOR_US, EAGER_US, CALL_US = 8.0, 25.0, 15.0
# Of the interpreter, which one thread has at a time: a request end to end; and what packing its ids adds to that.
INTERPRETER_US, PACK_US = 250.0, 76.0
# One thread's lookups, in bytes read and written.
LOOKUP_BYTES_S = 12e9

# Rows. Shares of the memory's rate: what is written or read in a row, and rows from 256 bytes on; pieces of 64 bytes at
# random, below which memory gives no less; pieces between.
STREAM, PIECES, BETWEEN = 0.85, 0.60, 0.72
PIECE_BYTES = 64
# Second-level cache: bytes that hold rows and buckets, bytes a second, a load that it answers; a load from memory.
NEAR_BYTES, NEAR, NEAR_US, FAR_US = 40e6, 5.5e12, 0.3, 0.7
# Warps of our kernels on a multiprocessor (128 registers), and rows of one session that are under way at once.
WARPS, AHEAD, SESSIONS = 16, 4, 32
# Ways of a bucket, which the first version of the search took in turn.
WAYS = 4
IN_SECOND = 0.15
BUCKET_BYTES = 64
# torch's EmbeddingBag: 1,024 blocks of eight warps, a session for each value, one row after the other.
TORCH_WARPS = 8192
# FBGEMM by row numbers, of the pooled limit.
FBGEMM_SHARE = 0.75
# A tenth of the rows is on the GPU. The policy is a point below the best static choice.
POLICY_POINT = 0.01
# A thread: a row that was missed, found in DRAM and written to where the GPU fetches it; an id copied and told.
MISS_US, ID_US = 0.15, 0.0012
# By both cores of a virtual machine, a row of a delta: the GPU's index, its row, the lists to be sent.
INDEX_US, FIND_US, LISTS_US = 0.076, 0.031, 0.029
LIST_BYTES = 48

# As the page has them: what, how much, whence.
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
