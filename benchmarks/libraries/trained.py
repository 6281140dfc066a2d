"""The result of a training: a module as `publish` takes it, and batches of rows. B rows of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Batch = dict[str, Tensor] | Tensor


@dataclass(frozen=True)
class Trained:
    """A module that a library has trained, in eval mode, called with one batch as its only argument."""

    module: nn.Module
    #: Rows that `publish` sees.
    sample: Batch
    #: Other rows, which it does not see.
    fresh: Batch


@dataclass(frozen=True)
class Model:
    """A model of a library's table, and how it is trained."""

    library: str
    #: Its family in the library's table of models.
    family: str
    name: str
    train: Callable[[], Trained]
    #: Lines that a user writes beside the library's own code; 0: the module is published as it is.
    adapter_lines: int = 0

    @property
    def published_name(self) -> str:
        """The name in the model repository."""
        return f"{self.library}_{self.name}".lower().replace("-", "_").replace("/", "_")


def rows_of(batch: Batch, start: int, stop: int) -> Batch:
    """Returns the rows start to stop of a batch."""
    if isinstance(batch, Tensor):
        return batch[start:stop]
    return {name: value[start:stop] for name, value in batch.items()}


def count_of(batch: Batch) -> int:
    """Returns the number of rows of a batch."""
    return len(batch) if isinstance(batch, Tensor) else len(next(iter(batch.values())))
