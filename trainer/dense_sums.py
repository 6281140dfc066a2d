"""The gradients of dense weights, of which each rank has those of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trainer.ranks import Ranks


def sum_gradients(weights: Iterable[Tensor], ranks: Ranks) -> None:
    """Replaces the gradients of weights by their sums over the ranks, the same bits at each, which all call it.

    A weight that has a gradient at some rank has one at all of them then. weights: in the same order everywhere, such
    as model.parameters(). Gradients of rows of tables are summed by the backward pass already.
    """
    sum_with_facts(weights, (), ranks)


def sum_with_facts(weights: Iterable[Tensor], facts: Sequence[float], ranks: Ranks) -> list[float]:
    """Does what `sum_gradients` does, and returns the sums of numbers of each rank."""
    if not ranks.are_several:
        return list(facts)
    learned = [each for each in weights if each.requires_grad]
    has = [float(each.grad is not None) for each in learned]
    # In float64, so that a loss loses nothing beside that of one rank.
    numbers = torch.tensor([*facts, *has], dtype=torch.float64)
    flat = [each.new_zeros(each.numel()) if each.grad is None else each.grad.reshape(-1) for each in learned]
    total = torch.cat(flat) if flat else torch.zeros(0)
    numbers_arrive, total_arrives = ranks.start_sum(numbers), ranks.start_sum(total, rounds=True)
    numbers_arrive.wait()
    total_arrives.wait()
    sums: list[float] = numbers.tolist()
    for each, part, some in zip(
        learned, torch.split(total, [part.numel() for part in flat]), sums[len(facts) :], strict=True
    ):
        each.grad = part.view_as(each) if some else None
    return sums[: len(facts)]
