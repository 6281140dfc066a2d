"""Finds modules whose outputs for a row depend on the other rows, or on their order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from storage.errors import ParityError
from trainer.publishing.dense_half import named_outputs
from trainer.publishing.sample import Sample

_WHY = "a module that draws random numbers, or depends on other rows of its batch, cannot be cut"
# A module that sums in another order for another place of a row rounds otherwise.
_ACCEPTED = 1e-4


def check_row_order(module: nn.Module, sample: Sample, outputs: Mapping[str, Tensor]) -> None:
    """Runs a module on the sample with its rows in reverse order, and with every other row replaced, and compares with
    its outputs on the sample.

    What a module reads from a tensor as a number (`x[0].item()`) is a constant of its graph; only the module itself
    shows that it was none. outputs: those of the whole sample, by name. A sample whose tensors do not all have the
    batch first, and nowhere else, is not tried. Raises ParityError.
    """
    rows = len(next(iter(outputs.values())))
    if any(leaf.shape[:1] != (rows,) or rows in leaf.shape[1:] for leaf in sample.leaves.values()):
        return
    _compare(module, sample, {name: leaf.flip(0) for name, leaf in sample.leaves.items()}, outputs, None)
    draw = torch.Generator().manual_seed(0)
    for replace in (torch.zeros_like, lambda leaf: _recombined(leaf, draw)):
        for first in (0, 1):
            kept = torch.arange(rows) % 2 == first
            changed = {name: leaf.clone() for name, leaf in sample.leaves.items()}
            for leaf in changed.values():
                leaf[~kept] = replace(leaf)[~kept]
            _compare(module, sample, changed, outputs, kept)


def _recombined(leaf: Tensor, draw: torch.Generator) -> Tensor:
    """Returns rows of which each value is one that the sample has in that place, or 0."""
    columns = torch.cat([leaf, torch.zeros_like(leaf[:1])]).reshape(len(leaf) + 1, -1)
    places = torch.randint(0, len(columns), (len(leaf), columns.shape[1]), generator=draw)
    return columns.gather(0, places).reshape(leaf.shape)


def _compare(
    module: nn.Module, sample: Sample, leaves: Mapping[str, Tensor], outputs: Mapping[str, Tensor], kept: Tensor | None
) -> None:
    """Compares outputs on other rows. kept: the rows that are the sample's; None for all, in reverse order."""
    try:
        found = named_outputs(sample.call(module, leaves))
    except Exception:  # offsets of bags, which have an order of their own, or values that do not go together
        return
    rows = len(next(iter(outputs.values())))
    for name, wanted in outputs.items():
        got = found.get(name)
        if not wanted.dim() or len(wanted) != rows:
            continue
        if got is not None and got.shape == wanted.shape:
            own, other = (got.flip(0), wanted) if kept is None else (got[kept], wanted[kept])
            if _close(own, other):
                continue
        what = "the sample's rows come in reverse order" if kept is None else "other rows of the sample are replaced"
        raise ParityError(f"output {name!r} differs for some rows when {what}; {_WHY}")


def _close(got: Tensor, wanted: Tensor) -> bool:
    if not wanted.is_floating_point():
        return torch.equal(got, wanted)
    finite = wanted[wanted.isfinite()].abs()
    accepted = _ACCEPTED * max(1.0, float(finite.max()) if finite.numel() else 0.0)
    return torch.allclose(got, wanted, rtol=0.0, atol=accepted, equal_nan=True)
