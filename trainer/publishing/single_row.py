"""Finds modules that take a batch but not one row alone, such as those that squeeze() the batch away."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from storage.errors import EmberlineError
from trainer.publishing.dense_half import named_outputs
from trainer.publishing.sample import Sample


def needs_more_rows(module: nn.Module, sample: Sample, outputs: Mapping[str, Tensor]) -> bool:
    """Returns whether a module fails for the first row of a sample, or gives outputs of other dimensions than a row's.

    outputs: those of the whole sample, by name. A sample whose tensors do not all have the batch first is not tried.
    """
    rows = len(next(iter(outputs.values())))
    if any(leaf.shape[:1] != (rows,) for leaf in sample.leaves.values()):
        return False
    try:
        alone = named_outputs(sample.call(module, {name: leaf[:1].clone() for name, leaf in sample.leaves.items()}))
    except EmberlineError:
        return False
    except Exception:  # whatever a module raises, it is the same module that takes the whole sample
        return True
    # An output without dimensions, as squeeze() makes of one row, counts as none.
    shapes = {name: (1, *value.shape[1:]) for name, value in outputs.items() if value.dim()}
    return any(name not in alone or alone[name].shape != shape for name, shape in shapes.items())
