"""Deals the rows of an epoch out to processes that train together, the same number to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from storage.data import RowBlock, cut_blocks
from storage.errors import ConfigError


@dataclass(frozen=True)
class Share:
    """Says which rows one process of several reads: consecutive ones, in the order of the epoch.

    Every process has the same number of rows, so that none waits for a batch that another one does not have. A block at
    the border of two shares is read by both, and each takes its own rows of it. Raises ConfigError for numbers that do
    not go together.
    """

    #: The number of this process, from 0.
    rank: int = 0
    #: The number of processes.
    world_size: int = 1
    #: What becomes of fewer rows than there are processes: they are left out in this epoch, or as many are read twice.
    uneven: Literal["drop", "repeat"] = "drop"

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigError(f"world_size is {self.world_size}, expected 1 or more processes", field="world_size")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank is {self.rank}, expected 0 to {self.world_size - 1}, as world_size is {self.world_size}",
                field="rank",
            )
        if self.uneven not in ("drop", "repeat"):
            raise ConfigError(f"uneven is {self.uneven!r}, expected 'drop' or 'repeat'", field="uneven")

    def rows(self, total: int) -> int:
        """Returns how many of `total` rows the process reads. Raises ConfigError when some would have none."""
        if self.world_size > 1 and total < self.world_size:
            raise ConfigError(
                f"the data has {total} rows for {self.world_size} processes; expected one for each at least",
                field="world_size",
            )
        return -(-total // self.world_size) if self.uneven == "repeat" else total // self.world_size

    def of(self, blocks: Sequence[RowBlock], first: int = 0) -> list[RowBlock]:
        """Returns the blocks of the process, in the order given. first: the row with which the first process begins."""
        if self.world_size == 1:
            return list(blocks)
        total = sum(block.rows for block in blocks)
        count = self.rows(total)
        start = (first + self.rank * count) % total
        # The last row is followed by the first.
        return [*cut_blocks(blocks, start, start + count), *cut_blocks(blocks, 0, start + count - total)]
