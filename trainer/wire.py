"""Rounds values that travel between ranks to 16 bits.

bf16 has the range of float32. fp16 is eight times as precise and has a small range, so each message is scaled by a
power of two that brings its largest value near the top of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.option_values import Wire

WIRES: dict[Wire, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

#: The largest value of fp16 is 65504.
_TOP = 2.0**15
_MOST = 100


def pack(values: Tensor, counts: Sequence[int], wire: torch.dtype) -> tuple[Tensor, int]:
    """Rounds the messages to all ranks, which lie one after the other, and returns how many values each has in front.

    values: float32. counts: those of each message.
    """
    if wire != torch.float16:
        return values.to(wire), 0
    packed = torch.empty(len(values) + len(counts), dtype=wire)
    at = 0
    for rank, (part, count) in enumerate(zip(torch.split(values, list(counts)), counts, strict=True)):
        power = _power(float(part.abs().max()) if count else 0.0)
        packed[at + rank] = power
        packed[at + rank + 1 : at + rank + 1 + count] = part * 2.0**power
        at += count
    return packed, 1


def unpack(packed: Tensor, counts: Sequence[int], wire: torch.dtype) -> Tensor:
    """Returns what `pack` rounded, as float32. counts: values of each message, without those in front."""
    if wire != torch.float16:
        return packed.to(torch.float32)
    values = torch.empty(sum(counts))
    parts = torch.split(packed, [count + 1 for count in counts])
    for to, part in zip(torch.split(values, list(counts)), parts, strict=True):
        to.copy_(part[1:]).mul_(2.0 ** -float(part[0]))
    return values


def rounded(
    values: Tensor, ranks: int, wire: torch.dtype, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, float]:
    """Returns values to be summed over so many ranks, rounded, and what the sum is multiplied by."""
    power = 0
    if wire == torch.float16:
        largest = values.abs().max()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        power = _power(float(largest) * ranks)
    return (values * 2.0**power).to(wire), 2.0**-power


def _power(largest: float) -> int:
    """Returns the power of two that brings a value to the top of fp16."""
    if not (0.0 < largest < math.inf):
        return 0
    return max(-_MOST, min(_MOST, math.floor(math.log2(_TOP / largest))))
