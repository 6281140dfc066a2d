"""A second process group of the ranks, for a thread whose exchanges go on beside those of the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trainer.ranks import Ranks, Traffic, gone


class RankGroup:
    """Exchanges of one thread of each rank; made by all ranks together. Every method is called by these threads, in the
    same order.

    traffic: gets the bytes.
    """

    def __init__(self, ranks: Ranks, traffic: Traffic) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._traffic = traffic
        with _explained():
            self._group = dist.new_group(backend="gloo")

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Returns K numbers of each rank, (R, K)."""
        own = torch.tensor(numbers, dtype=torch.int64)
        found = torch.empty(self.size, len(own), dtype=torch.int64)
        with _explained():
            dist.all_gather(list(found), own, group=self._group)
        return found.numpy()

    def gather_texts(self, text: str) -> list[str]:
        """Returns the text of each rank."""
        found = [""] * self.size
        with _explained():
            dist.all_gather_object(found, text, group=self._group)
        return found

    def exchange(
        self, message: NDArray[np.uint8], sending: Sequence[int], coming: Sequence[int], kind: str
    ) -> NDArray[np.uint8]:
        """Sends each rank its part of a message, and returns what came from all, by rank.

        sending, coming: bytes to and from each rank, (R,). kind: what they are, for the traffic.
        """
        received = torch.empty(sum(coming), dtype=torch.uint8)
        with _explained():
            dist.all_to_all_single(received, torch.from_numpy(message), list(coming), list(sending), group=self._group)
        self._traffic.add(kind, sum(sending) - sending[self.rank], sum(coming) - coming[self.rank])
        return received.numpy()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise gone(error) from error
