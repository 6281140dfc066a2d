"""The processes that train one model together, and what they exchange. torchrun starts them, gloo carries the bytes.

Every method of `Ranks` but the properties is called by all ranks, in the same order.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from storage.errors import RankLost
from trainer.rank_place import incomplete, rank_place
from trainer.wire import pack, rounded, unpack

_Value = TypeVar("_Value")
_Array = TypeVar("_Array", NDArray[np.int64], NDArray[np.float32], NDArray[np.uint8])
Sizes = NDArray[np.int64]
# The key that says so in the store where ranks meet.
_BEGUN = "begun"


@dataclass
class Traffic:
    """Counts what this rank has exchanged with others."""

    #: Bytes by kind: `ids`, `rows`, `gradients`, `dense`.
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    #: Seconds in exchanges, of the bytes on their way and of waiting for other ranks.
    seconds: float = 0.0

    def add(self, kind: str, sent: int, received: int) -> None:
        """Counts bytes."""
        self.sent[kind] = self.sent.get(kind, 0) + sent
        self.received[kind] = self.received.get(kind, 0) + received


class Arriving(Generic[_Value]):
    """Values that are on their way between ranks, while the caller goes on."""

    def __init__(self, ranks: Ranks, begin: Callable[[], Any], arrived: Callable[[], _Value]) -> None:
        self._ranks = ranks
        self._arrived = arrived
        with ranks.exchanging():
            self._work = begin()

    def wait(self) -> _Value:
        """Returns them when they are here. Call it once."""
        with self._ranks.exchanging():
            if self._work is not None:
                self._work.wait()
        return self._arrived()


class Ranks:
    """The ranks of a training: this one is number `rank` of `size`. A training in one process has one, without a
    process group.
    """

    def __init__(self, rank: int = 0, size: int = 1, local_size: int = 1) -> None:
        self.rank = rank
        self._of_gpus: Any = None
        self.size = size
        #: Ranks on this machine.
        self.local_size = local_size
        #: True when these ranks were started again after one of them ended, and had called `note_begun` by then.
        self.had_begun = False
        self._begun_at: Store | None = None
        self.traffic = Traffic()
        #: True at the first rank while the others wait for what it asks: `trainer.embedding.whole_table.at_first`.
        self.works_alone = False
        #: A folder for rows that do not stay in memory then; None: one of the system.
        self.scratch: Path | None = None
        #: What rows and gradients are rounded to on their way between ranks; None sends them as they are.
        self.wire: torch.dtype | None = None

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
        return rank_place().local_rank if self.are_several else 0

    def use(self, device: torch.device) -> None:
        """Has `sum` add up what is on GPUs there, by NCCL, where each rank has one of its own. Called by all ranks."""
        if not self.are_several:
            return
        devices = self.gather((socket.gethostname(), str(device)))
        own_each = len(set(devices)) == self.size and all(name.startswith("cuda") for _, name in devices)
        if own_each and dist.is_nccl_available():
            self._of_gpus = dist.new_group(backend="nccl")

    def meet(self, store: Store, *, restarts: int, keeps_store: bool) -> None:
        """Finds out whether these ranks had begun before. store: stays while they are started again, if keeps_store."""
        self._begun_at = store if keeps_store and self.is_first else None
        had_begun = restarts > 0 and (self._begun_at is None or self._begun_at.check([_BEGUN]))
        self.had_begun = self.from_first(had_begun)

    def note_begun(self) -> None:
        """Says that the command is checked and begins its work, which ranks that are started again resume."""
        if self._begun_at is not None:
            self._begun_at.set(_BEGUN, "1")

    def exchange(self, values: _Array, sending: Sizes, coming: Sizes, kind: str) -> _Array:
        """Sends each rank its part of an array (N,), and returns what came from all, by rank.

        sending, coming: values to and from each rank, (R,). kind: what they are, for `traffic`. float32 values that
        travel are rounded as `wire` says.
        """
        return self.start_exchange(values, sending, coming, kind).wait()

    def start_exchange(self, values: _Array, sending: Sizes, coming: Sizes, kind: str) -> Arriving[_Array]:
        """Begins what `exchange` does; `values` must stay as they are until it has arrived."""
        out, sends, comes = torch.from_numpy(values), sending.tolist(), coming.tolist()
        wire = self.wire if values.dtype == np.float32 else None
        if wire is not None:
            packed, more = pack(out, sends, wire)
            received = torch.empty(sum(comes) + more * self.size, dtype=packed.dtype)
        else:
            packed, more, received = out, 0, torch.empty(sum(comes), dtype=out.dtype)
        sent, came = [each + more for each in sends], [each + more for each in comes]
        item = packed.element_size()
        self.traffic.add(kind, item * (sum(sent) - sent[self.rank]), item * (sum(came) - came[self.rank]))

        def arrived() -> _Array:
            if wire is None:
                return received.numpy()
            whole = unpack(received, comes, wire)
            # What stays here was not rounded.
            first, own = sum(comes[: self.rank]), sum(sends[: self.rank])
            whole[first : first + comes[self.rank]] = out[own : own + sends[self.rank]]
            return whole.numpy()

        return Arriving(self, lambda: dist.all_to_all_single(received, packed, came, sent, async_op=True), arrived)

    def sum(self, values: Tensor, *, rounds: bool = False) -> None:
        """Replaces float values by their sums over the ranks, the same bits at each. rounds: as `wire` says."""
        self.start_sum(values, rounds=rounds).wait()

    def start_sum(self, values: Tensor, *, rounds: bool = False) -> Arriving[None]:
        """Begins what `sum` does; the sums are there when it has arrived."""
        if not self.are_several:
            return Arriving(self, lambda: None, lambda: None)
        wire = self.wire if rounds else None
        group = None if values.device.type == "cpu" else self._of_gpus
        there = values if values.device.type == "cpu" or group is not None else values.cpu()
        with self.exchanging():
            sums, scale = (there, 1.0) if wire is None else rounded(there, self.size, wire, group)
        # Each rank passes on a part to the next one, twice around.
        count = 2 * sums.nbytes * (self.size - 1) // self.size
        self.traffic.add("dense", count, count)

        def arrived() -> None:
            if sums is not there:
                there.copy_(sums)
                there.mul_(scale)
            if there is not values:
                values.copy_(there)

        return Arriving(self, lambda: dist.all_reduce(sums, group=group, async_op=True), arrived)

    def largest(self, value: float) -> float:
        """Returns the largest value of all ranks."""
        if not self.are_several:
            return value
        values = torch.tensor(value, dtype=torch.float64)
        with self.exchanging():
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return float(values)

    def gather(self, value: _Value) -> list[_Value]:
        """Returns the values of all ranks, by rank. For what is small and seldom sent."""
        if not self.are_several:
            return [value]
        values: list[Any] = [None] * self.size
        with self.exchanging():
            dist.all_gather_object(values, value)
        return values

    def gather_at_first(self, value: _Value) -> list[_Value] | None:
        """Returns the values of all ranks, by rank, at the first one, and None at each other. Values may be large."""
        if not self.are_several:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        with self.exchanging():
            dist.gather_object(value, values)
        return values

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Lets the first rank do the block before the others, which find what it left on the disk."""
        if not self.is_first:
            self.gather(None)
        yield
        if self.is_first:
            self.gather(None)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Counts the time of an exchange, and says in one sentence that another rank has gone."""
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise gone(error) from error
        finally:
            self.traffic.seconds += time.perf_counter() - began

    def from_first(self, value: _Value) -> _Value:
        """Returns the value of the first rank."""
        return self.gather(value)[0]


def gone(error: RuntimeError) -> RankLost:
    """Returns, for an error of an exchange, the one that says in one sentence that another rank has gone."""
    return RankLost(
        f"another rank of the training ended, or cannot be reached; what it said stands above or in its own "
        f"log ({str(error).splitlines()[0][:200]})"
    )


#: The ranks that `join_ranks` is in, of which `train` within it is one.
_joined: list[Ranks] = []


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Joins the ranks that torchrun, or `emberline train --nproc`, has started; otherwise there is this process alone.

    Within it, `train` and the other functions of this package take the same ranks. A process group that is there
    already is not used: then there is this process alone. Raises ConfigError for an environment that is half that of a
    rank.
    """
    place = rank_place()
    if _joined:
        yield _joined[-1]
        return
    if place.size == 1 or dist.is_initialized():
        yield Ranks()
        return
    ranks = Ranks(place.rank, place.size, place.local_size)
    try:
        store, _, _ = next(rendezvous("env://"))
        # torchrun's store still has the addresses of ranks that ended, under the names that new ones would use.
        own = PrefixStore(f"emberline-{place.restarts}", store)
        dist.init_process_group("gloo", store=own, rank=place.rank, world_size=place.size)
        ranks.meet(PrefixStore("emberline", store), restarts=place.restarts, keeps_store=place.keeps_store)
    except (KeyError, ValueError) as error:
        raise incomplete(error) from None
    _joined.append(ranks)
    try:
        yield ranks
    finally:
        _joined.pop()
        dist.destroy_process_group()
