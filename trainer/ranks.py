"""The processes that train one model together, and what they exchange. torchrun starts them, gloo carries the bytes.

Every method of `Ranks` but the properties is called by all ranks, in the same order.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from storage.errors import ConfigError, Unavailable

_Value = TypeVar("_Value")
Bytes = NDArray[np.uint8]


@dataclass
class Traffic:
    """Bytes that this rank has sent to others, by what they were."""

    sent: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, count: int) -> None:
        """Counts bytes."""
        self.sent[what] = self.sent.get(what, 0) + count


class Ranks:
    """The ranks of a training: this one is number `rank` of `size`. A training in one process has one, without a
    process group.
    """

    def __init__(self, rank: int = 0, size: int = 1, local_size: int = 1, *, restarted: bool = False) -> None:
        self.rank = rank
        self._of_gpus: Any = None
        self.size = size
        #: Ranks on this machine.
        self.local_size = local_size
        #: True when torchrun has started the ranks again, after one of them ended.
        self.restarted = restarted
        self.traffic = Traffic()

    @property
    def is_first(self) -> bool:
        """True for the rank that writes what there is once: state, reports, versions."""
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        """True when there are other ranks."""
        return self.size > 1

    @property
    def local_rank(self) -> int:
        """The number of this rank among those on this machine."""
        return int(os.environ.get("LOCAL_RANK", "0")) if self.are_several else 0

    def use(self, device: torch.device) -> None:
        """Has `sum` add up what is on GPUs there, by NCCL, where each rank has one of its own. Called by all ranks."""
        if not self.are_several:
            return
        devices = self.gather((socket.gethostname(), str(device)))
        own_each = len(set(devices)) == self.size and all(name.startswith("cuda") for _, name in devices)
        if own_each and dist.is_nccl_available():
            self._of_gpus = dist.new_group(backend="nccl")

    def exchange(self, parts: Sequence[Sequence[NDArray[Any]]], sizes: Sequence[int], what: str) -> list[Bytes]:
        """Sends arrays to each rank and returns the bytes that came from each, by rank.

        parts: by rank, contiguous arrays that are sent one after the other. sizes: the bytes to come from each rank.
        One message goes to each other rank; what a rank sends to itself is copied.
        """
        sending = [0 if to == self.rank else sum(part.nbytes for part in of) for to, of in enumerate(parts)]
        coming = [0 if of == self.rank else size for of, size in enumerate(sizes)]
        out = np.empty(sum(sending), np.uint8)
        at = 0
        for to, of in enumerate(parts):
            for part in of if to != self.rank else ():
                out[at : at + part.nbytes] = part.reshape(-1).view(np.uint8)
                at += part.nbytes
        received = np.empty(sum(coming), np.uint8)
        with _whole():
            dist.all_to_all_single(torch.from_numpy(received), torch.from_numpy(out), coming, sending)
        self.traffic.add(what, len(out))
        ends = np.cumsum([0, *coming])
        found = [received[ends[of] : ends[of + 1]] for of in range(self.size)]
        own = [part.reshape(-1).view(np.uint8) for part in parts[self.rank]]
        found[self.rank] = own[0] if len(own) == 1 else np.concatenate(own) if own else np.empty(0, np.uint8)
        return found

    def sum(self, values: Tensor) -> None:
        """Replaces float values by their sums over the ranks, the same bits at each."""
        if self.are_several:
            with _whole():
                if values.device.type == "cpu" or self._of_gpus is not None:
                    dist.all_reduce(values, group=self._of_gpus if values.device.type != "cpu" else None)
                else:
                    on_host = values.cpu()
                    dist.all_reduce(on_host)
                    values.copy_(on_host)
            self.traffic.add("dense", 2 * values.nbytes * (self.size - 1) // self.size)

    def gather(self, value: _Value) -> list[_Value]:
        """Returns the values of all ranks, by rank. For what is small and seldom sent."""
        if not self.are_several:
            return [value]
        values: list[Any] = [None] * self.size
        with _whole():
            dist.all_gather_object(values, value)
        return values

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Lets the first rank do the block before the others, which find what it left on the disk."""
        if not self.is_first:
            self.gather(None)
        yield
        if self.is_first:
            self.gather(None)

    def from_first(self, value: _Value) -> _Value:
        """Returns the value of the first rank."""
        return self.gather(value)[0]


@contextmanager
def _whole() -> Iterator[None]:
    """Says in one sentence that another rank has gone."""
    try:
        yield
    except RuntimeError as error:
        raise Unavailable(
            f"another rank of the training ended, or cannot be reached; what it said stands above or in its own log "
            f"({str(error).splitlines()[0][:200]})"
        ) from error


def is_first_rank() -> bool:
    """Returns whether this process is the first rank that torchrun has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def refuse_ranks(what: str) -> None:
    """Raises ConfigError under torchrun with several ranks. what: what one process does."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(f"{what} is not done by several ranks yet; run it without torchrun", field="WORLD_SIZE")


@contextmanager
def joined() -> Iterator[Ranks]:
    """Joins the ranks that torchrun has started; without it, there is this process alone."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1" or dist.is_initialized():
        yield Ranks()
        return
    try:
        rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        ranks = Ranks(rank, int(size), local, restarted=restarts > 0)
        store, _, _ = next(rendezvous("env://"))
        # torchrun's store still has the addresses of ranks that ended, under the names that new ones would use.
        own = PrefixStore(f"emberline-{restarts}", store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=int(size))
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"WORLD_SIZE is {size!r}, but RANK, LOCAL_WORLD_SIZE, MASTER_ADDR or MASTER_PORT is missing or is no "
            f"number ({error}); start ranks with torchrun, or unset WORLD_SIZE",
            field="WORLD_SIZE",
        ) from None
    try:
        yield ranks
    finally:
        dist.destroy_process_group()
