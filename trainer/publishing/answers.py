"""Puts the rows of lookups together as the result of a call of an embedding layer, in the dense half.

B rows of the batch, W ids of a row, D dim of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainer.publishing.cut_plan import CutCall, Reduction


def answer(
    call: CutCall,
    found: Mapping[str, tuple[Tensor, Tensor | None]],
    weight: Tensor | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Returns the result of a call.

    found: rows and lengths by feature. weight: the rows of the layer, where the graph has them. args, kwargs: those of
    the call; its ids and weights are those of the batch only where the call needs them.
    """
    given = dict(zip(("input", "offsets", "per_sample_weights"), args, strict=False)) | kwargs
    if call.shape == "own":
        assert weight is not None
        own = functional.embedding(given["input"], weight)
        return own if call.reduction is None else _reduced(call.reduction, own, given)
    rows, lengths = found[call.features[0]] if call.features else (torch.empty(0), None)
    if call.shape == "rows_lengths":
        return rows, lengths
    if call.shape == "pooled":
        return rows
    assert call.placement is not None
    placement, is_simple = call.placement, len(call.features) == 1 and not call.constants and not call.order
    if is_simple and placement.form == "axis" and placement.axis == 0 and placement.rest == tuple(rows.shape[1:-1]):
        placed = rows
    else:
        placed = placement.placed(_together(call, found, weight))
    return placed if call.reduction is None else _reduced(call.reduction, placed, given)


def _together(call: CutCall, found: Mapping[str, tuple[Tensor, Tensor | None]], weight: Tensor | None) -> Tensor:
    """Returns the rows of a call, (B, W, D)."""
    parts = [found[name][0] for name in call.features]
    if call.constants:
        assert weight is not None
        own = functional.embedding(torch.tensor(call.constants), weight)
        parts.append(own.expand(parts[0].shape[0], *own.shape))
    if len(parts) > 1 and all(part.dim() == 2 for part in parts):
        rows = torch.stack(parts, 1)
    else:
        raised = [part.unsqueeze(1) if part.dim() == 2 else part for part in parts]
        rows = raised[0] if len(raised) == 1 else torch.cat(raised, 1)
    return rows.index_select(1, torch.tensor(call.order)) if call.order else rows


def _reduced(reduction: Reduction, rows: Tensor, given: Mapping[str, Any]) -> Tensor:
    """Returns what nn.EmbeddingBag makes of the rows (S, n, D) of ids (S, n). given: its arguments by name."""
    shape = (*rows.shape[:-1], 1)
    if reduction.is_weighted:
        rows = rows * given["per_sample_weights"].reshape(shape)
    if reduction.padding is None:
        if reduction.mode == "max":
            return rows.amax(-2)
        return rows.sum(-2) if reduction.mode == "sum" else rows.mean(-2)
    counts = (given["input"] != reduction.padding).reshape(shape)
    if reduction.mode == "max":
        largest = torch.where(counts, rows, torch.full_like(rows, -torch.inf)).amax(-2)
        return torch.where(counts.any(-2), largest, torch.zeros_like(largest))
    total = torch.where(counts, rows, torch.zeros_like(rows)).sum(-2)
    return total if reduction.mode == "sum" else total / counts.sum(-2).clamp(min=1)
