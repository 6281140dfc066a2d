"""Gradients of the dense weights of a training loop of one's own, in several processes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from trainer.ranks import Ranks


def sum_gradients(weights: Iterable[Tensor], ranks: Ranks) -> None:
    """Replaces the gradients of weights by their sums over the ranks, the same bits at each, which all call it.

    A weight that has a gradient at some rank has one at all of them then. weights: in the same order everywhere, such
    as model.parameters(). Gradients of rows of tables are summed by the backward pass already.
    """
    if not ranks.are_several:
        return
    learned = [each for each in weights if each.requires_grad]
    has = torch.tensor([float(each.grad is not None) for each in learned])
    ranks.sum(has)
    flat = [each.new_zeros(each.numel()) if each.grad is None else each.grad.reshape(-1) for each in learned]
    total = torch.cat(flat)
    ranks.sum(total, rounds=True)
    for each, part, some in zip(learned, torch.split(total, [part.numel() for part in flat]), has, strict=True):
        each.grad = part.view_as(each) if some else None
