"""Finds modules whose outputs for a row depend on which rows come before it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from storage.errors import ParityError
from trainer.publishing.dense_half import named_outputs
from trainer.publishing.sample import Sample

# A module that sums in another order for another place of a row rounds otherwise.
_ACCEPTED = 1e-4


def check_row_order(module: nn.Module, sample: Sample, outputs: Mapping[str, Tensor]) -> None:
    """Runs a module on the sample with its rows in reverse order, and compares with its outputs on the sample.

    What a module reads from a tensor as a number (`x[0].item()`) is a constant of its graph; only the module itself
    shows that it was none. outputs: those of the whole sample, by name. A sample whose tensors do not all have the
    batch first, and nowhere else, is not tried. Raises ParityError.
    """
    rows = len(next(iter(outputs.values())))
    if any(leaf.shape[:1] != (rows,) or rows in leaf.shape[1:] for leaf in sample.leaves.values()):
        return
    flipped = {name: leaf.flip(0) for name, leaf in sample.leaves.items()}
    try:
        reverse = named_outputs(sample.call(module, flipped))
    except Exception:  # offsets of bags, which have an order of their own
        return
    for name, wanted in outputs.items():
        got = reverse.get(name)
        if not wanted.dim() or len(wanted) != rows:
            continue
        if got is None or got.shape != wanted.shape or not _close(got.flip(0), wanted):
            raise ParityError(
                f"output {name!r} differs for some rows when the sample's rows come in reverse order; a module "
                "that draws random numbers, or depends on other rows of its batch, cannot be cut"
            )


def _close(got: Tensor, wanted: Tensor) -> bool:
    if not wanted.is_floating_point():
        return torch.equal(got, wanted)
    finite = wanted[wanted.isfinite()].abs()
    accepted = _ACCEPTED * max(1.0, float(finite.max()) if finite.numel() else 0.0)
    return torch.allclose(got, wanted, rtol=0.0, atol=accepted, equal_nan=True)
