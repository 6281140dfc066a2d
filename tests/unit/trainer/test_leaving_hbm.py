"""Rows that leave the memory of a GPU, or are read elsewhere, in the middle of a step: each takes its step, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.late_transfers import LateTransfers
from trainer import EmbeddingBag, EmbeddingTable, SparseAdagrad, SparseAdam
from trainer.devices import replaced_transfers
from trainer.embedding import Embedding, HbmRows

HOST = torch.device("cpu")
IDS, OFFSETS, OTHERS = torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]), torch.tensor([3, 9, 2])


@pytest.fixture(autouse=True)
def late() -> Iterator[LateTransfers]:
    made = LateTransfers()
    with replaced_transfers(HOST, made):
        yield made


class Side:
    """A table with its optimizer. rows: chosen after a first step, if any GPU keeps rows."""

    def __init__(self, *, keeps: bool) -> None:
        self.table = EmbeddingTable("t", 4, optimizer="adam")
        self.bag = EmbeddingBag(self.table)
        self.optimizer = SparseAdam([self.table], 0.1)
        self.hbm = HbmRows([self.table], 1 << 20, HOST, LateTransfers()) if keeps else None
        self.loss().backward()
        self.optimizer.step()
        if self.hbm is not None:
            self.hbm.choose()
            assert self.hbm.figures().rows == 3

    def loss(self, ids: Tensor = IDS) -> Tensor:
        """The loss of a lookup."""
        loss: Tensor = self.bag(ids, OFFSETS).square().sum()
        return loss

    def step(self, before: Callable[[Side], None] | None = None, after: Callable[[Side], None] | None = None) -> None:
        """Takes a step: `before` comes between the forward and the backward pass, `after` behind it."""
        loss = self.loss()
        if before is not None:
            before(self)
        loss.backward()
        if after is not None:
            after(self)
        self.optimizer.step()


def read_on_host(side: Side) -> None:
    side.table.lookup(np.array([2]), train=True)


def look_up_on_both_sides(side: Side) -> None:
    read_on_host(side)
    (0.1 * side.loss()).backward()
    (0.3 * side.loss(OTHERS)).backward()


def give_gradients(side: Side) -> None:
    side.table.add_gradients(np.array([2, 3]), np.ones((2, 4), np.float32))


def erase(side: Side) -> None:
    side.table.erase(np.array([2]))


def close_stamp(side: Side) -> None:
    side.table.advance()


def restore(side: Side) -> None:
    ids, rows, slots, counts, stamps, ticks = side.table.export_rows()
    side.table.restore(ids, rows + np.float32(1), slots, counts, stamps, ticks)


def look_up_again(side: Side) -> None:
    (side.loss(OTHERS) + Embedding(side.table, 2)(IDS, OFFSETS)[0].square().sum()).backward()


def read_without_training(side: Side) -> None:
    side.bag.eval()
    side.loss(OTHERS).backward()
    side.bag.train()


def choose_if_due(side: Side) -> None:
    side.loss(OTHERS + 20).backward()
    if side.hbm is not None:
        side.hbm.before_step(0)
        side.hbm.before_step(100)


@pytest.mark.parametrize("place", ["before backward", "after backward"])
@pytest.mark.parametrize(
    "act",
    [
        read_on_host,
        look_up_on_both_sides,
        give_gradients,
        erase,
        close_stamp,
        restore,
        look_up_again,
        read_without_training,
        choose_if_due,
    ],
)
def test_what_comes_in_the_middle_of_a_step_changes_no_bit(act: Callable[[Side], None], place: str) -> None:
    results: list[Any] = []
    for keeps in (False, True):
        side = Side(keeps=keeps)
        if place == "before backward":
            side.step(before=act)
        else:
            side.step(after=act)
        side.step()
        results.append(side.table.export_rows())
    assert all(np.array_equal(one, other) for one, other in zip(*results, strict=True))


def test_rows_that_are_read_without_training_and_stepped_are_in_the_next_delta() -> None:
    side = Side(keeps=True)
    stamp = side.table.advance()
    side.bag.eval()
    side.step()
    assert side.table.changed_since(stamp).tolist() == [1, 2, 3]


def test_rows_that_a_lookup_on_the_host_stepped_are_old_nowhere() -> None:
    results: list[Any] = []
    for keeps in (False, True):
        side = Side(keeps=keeps)
        side.bag.eval()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("trainer.embedding.lookups.transfers_of", lambda _: None)
            side.step()
        results.append(side.bag(IDS, OFFSETS).detach())
    assert torch.equal(*results)


def test_a_gpu_without_memory_for_rows_keeps_none(late: LateTransfers, monkeypatch: pytest.MonkeyPatch) -> None:
    table = EmbeddingTable("t", 4)
    bag, optimizer = EmbeddingBag(table), SparseAdagrad([table], 0.1)
    rows = HbmRows([table], 1 << 20, HOST, late)

    def step() -> None:
        bag(IDS, OFFSETS).square().sum().backward()
        optimizer.step()

    step()
    rows.choose()
    step()
    table.lookup(np.arange(10, 30), train=True)
    expected: Any = table.export_rows()

    def full(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr("trainer.embedding.hbm_group.torch.empty", full)
        with pytest.raises(torch.OutOfMemoryError):
            rows.choose()
    assert rows.figures().rows == rows.figures().memory_bytes == 0
    found: Any = table.export_rows()
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    step()
    rows.choose()
    assert rows.figures().rows == 23
