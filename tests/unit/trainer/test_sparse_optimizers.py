"""Every optimizer of tables beside its formula in float64, and beside torch's where torch has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import ConfigError
from trainer import (
    EmbeddingBag,
    EmbeddingTable,
    Initializer,
    SparseAdagrad,
    SparseAdagradDecay,
    SparseAdam,
    SparseAdamW,
    SparseFtrl,
    SparseLamb,
    SparseMomentum,
    SparseOptimizer,
    SparseRowwiseAdagrad,
    SparseRowwiseAdam,
    SparseSGD,
    global_clip,
)

IDS, STEPS = 30, 25
Row = dict[str, Any]
Formula = Callable[[Row, np.ndarray, int], None]


def sgd(row: Row, g: np.ndarray, t: int) -> None:
    row["w"] -= 0.1 * (g + 0.01 * row["w"])


def momentum(row: Row, g: np.ndarray, t: int) -> None:
    row["m"] = 0.8 * row.get("m", 0.0) + g + 0.01 * row["w"]
    row["w"] -= 0.1 * row["m"]


def adagrad(row: Row, g: np.ndarray, t: int) -> None:
    g = g + 0.01 * row["w"]
    row["a"] = row.get("a", 0.1) + g * g
    row["w"] -= 0.1 * g / (np.sqrt(row["a"]) + 1e-8)


def rowwise_adagrad(row: Row, g: np.ndarray, t: int) -> None:
    row["a"] = row.get("a", 0.1) + np.mean(g * g)
    row["w"] -= 0.1 * g / (np.sqrt(row["a"]) + 1e-8)


def adagrad_decay(row: Row, g: np.ndarray, t: int) -> None:
    periods = (t - 1) // 4
    for _ in range(periods - row.get("period", 0)):
        row["a"] = np.maximum(row.get("a", 0.1) * 0.5, 0.1)
    row["period"] = periods
    row["a"] = row.get("a", 0.1) + g * g
    row["w"] -= 0.1 * g / (np.sqrt(row["a"]) + 1e-8)


def moments(row: Row, g: np.ndarray, t: int, squares: Any) -> tuple[Any, Any]:
    row["m"] = 0.8 * row.get("m", 0.0) + 0.2 * g
    row["v"] = 0.9 * row.get("v", 0.0) + 0.1 * squares
    return row["m"] / (1 - 0.8**t), row["v"] / (1 - 0.9**t)


def adam(row: Row, g: np.ndarray, t: int) -> None:
    g = g + 0.01 * row["w"]
    m, v = moments(row, g, t, g * g)
    row["w"] -= 0.1 * m / (np.sqrt(v) + 1e-6)


def adamw(row: Row, g: np.ndarray, t: int) -> None:
    row["w"] *= 1 - 0.1 * 0.01
    m, v = moments(row, g, t, g * g)
    row["w"] -= 0.1 * m / (np.sqrt(v) + 1e-6)


def rowwise_adam(row: Row, g: np.ndarray, t: int) -> None:
    m, v = moments(row, g, t, np.mean(g * g))
    row["w"] -= 0.1 * m / (np.sqrt(v) + 1e-6)


def lamb(row: Row, g: np.ndarray, t: int) -> None:
    m, v = moments(row, g, t, g * g)
    update = m / (np.sqrt(v) + 1e-6) + 0.01 * row["w"]
    row["w"] -= 0.1 * np.linalg.norm(row["w"]) / np.linalg.norm(update) * update


def ftrl(row: Row, g: np.ndarray, t: int) -> None:
    before = row.get("n", 0.1)
    row["n"] = before + g * g
    row["z"] = row.get("z", 0.0) + g - (np.sqrt(row["n"]) - np.sqrt(before)) / 0.1 * row["w"]
    z = row["z"]
    shrunk = -(z - np.sign(z) * 0.3) / ((1.0 + np.sqrt(row["n"])) / 0.1 + 0.2)
    row["w"] = np.where(np.abs(z) <= 0.3, 0.0, shrunk)


BETAS: dict[str, Any] = {"betas": (0.8, 0.9), "eps": 1e-6}
CASES: dict[type[SparseOptimizer], tuple[dict[str, Any], Formula]] = {
    SparseSGD: ({"weight_decay": 0.01}, sgd),
    SparseMomentum: ({"momentum": 0.8, "weight_decay": 0.01}, momentum),
    SparseAdagrad: ({"weight_decay": 0.01}, adagrad),
    SparseRowwiseAdagrad: ({}, rowwise_adagrad),
    SparseAdagradDecay: ({"decay": 0.5, "decay_steps": 4}, adagrad_decay),
    SparseAdam: ({**BETAS, "weight_decay": 0.01}, adam),
    SparseAdamW: ({**BETAS, "weight_decay": 0.01}, adamw),
    SparseRowwiseAdam: (BETAS, rowwise_adam),
    SparseLamb: ({**BETAS, "weight_decay": 0.01}, lamb),
    SparseFtrl: ({"beta": 1.0, "l1": 0.3, "l2": 0.2}, ftrl),
}


def table_for(kind: type[SparseOptimizer], dim: int = 7) -> EmbeddingTable:
    return EmbeddingTable("t", dim, optimizer=kind.rule, seed=3, rows=Initializer("uniform", 0.5))


@pytest.mark.parametrize("dim", [1, 7, 40])
@pytest.mark.parametrize("kind", CASES, ids=[kind.__name__ for kind in CASES])
def test_steps_are_those_of_the_formula(kind: type[SparseOptimizer], dim: int) -> None:
    options, formula = CASES[kind]
    table = table_for(kind, dim)
    start = table.lookup(np.arange(IDS), train=True)
    rows: list[Row] = [{"w": each.astype(np.float64)} for each in start]
    optimizer: Any = kind([table], lr=0.1, **options)
    rng = np.random.default_rng(2)
    for step in range(1, STEPS + 1):
        ids = rng.integers(0, IDS, 20)
        grads = rng.standard_normal((20, dim)).astype(np.float32)
        table.add_gradients(ids, grads)
        assert optimizer.step() == len(set(ids.tolist()))
        for each in set(ids.tolist()):
            formula(rows[each], grads[ids == each].astype(np.float64).sum(0), step)
    expected = np.array([row["w"] for row in rows])
    np.testing.assert_allclose(table.lookup(np.arange(IDS), train=False), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "options", "of_torch"),
    [
        (SparseSGD, {"weight_decay": 0.1}, lambda w: torch.optim.SGD(w, lr=0.1, weight_decay=0.1)),
        (SparseMomentum, {}, lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9)),
        (SparseAdagrad, {}, lambda w: torch.optim.Adagrad(w, lr=0.1, initial_accumulator_value=0.1, eps=1e-8)),
        (SparseAdam, {}, lambda w: torch.optim.Adam(w, lr=0.1)),
        (SparseAdamW, {"weight_decay": 0.1}, lambda w: torch.optim.AdamW(w, lr=0.1, weight_decay=0.1)),
    ],
)
def test_steps_of_every_row_are_those_of_torch(
    kind: type[SparseOptimizer], options: dict[str, Any], of_torch: Callable[[Any], torch.optim.Optimizer]
) -> None:
    table = table_for(kind)
    weight = torch.nn.Parameter(torch.from_numpy(table.lookup(np.arange(IDS), train=True).copy()))
    ours: Any = kind([table], lr=0.1, **options)
    theirs = of_torch([weight])
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (ours, theirs)]
    layer = EmbeddingBag(table)
    offsets = torch.arange(IDS + 1)
    for step in range(10):
        target = torch.randn(IDS, 7, generator=torch.Generator().manual_seed(step))
        ((layer(torch.arange(IDS), offsets) - target) ** 2).sum().backward()
        theirs.zero_grad()
        ((weight - target) ** 2).sum().backward()
        ours.step()
        theirs.step()
        for schedule in schedules:
            schedule.step()
    torch.testing.assert_close(
        torch.from_numpy(table.lookup(np.arange(IDS), train=False)), weight.detach(), rtol=1e-4, atol=1e-5
    )


def test_a_gradient_is_clipped_to_the_norm_of_a_row() -> None:
    table = table_for(SparseSGD)
    before = table.lookup(np.arange(2), train=True)
    grads = np.array([[3.0] * 7, [0.01] * 7], np.float32)
    table.add_gradients(np.arange(2), grads)
    SparseSGD([table], lr=1.0, row_clip=0.5).step()
    moved = before - table.lookup(np.arange(2), train=False)
    np.testing.assert_allclose(moved[0], 0.5 / np.sqrt(7), rtol=1e-4)
    np.testing.assert_allclose(moved[1], 0.01, rtol=1e-3)


def test_all_gradients_are_clipped_to_one_norm() -> None:
    table = table_for(SparseSGD)
    before = table.lookup(np.arange(3), train=True)
    table.add_gradients(np.array([0, 1, 1]), np.full((3, 7), 2.0, np.float32))
    dense = torch.nn.Parameter(torch.zeros(4))
    dense.grad = torch.full((4,), 3.0)
    optimizer = SparseSGD([table], lr=1.0)
    norm = np.sqrt(4 * 9.0 + 7 * 4.0 + 7 * 16.0)
    assert optimizer.squared_norm() == pytest.approx(7 * 4.0 + 7 * 16.0)
    factor = global_clip(2.0, [dense], optimizer)
    assert factor == pytest.approx(2.0 / norm)
    optimizer.step(scale=factor)
    torch.testing.assert_close(dense.grad, torch.full((4,), 3.0 * factor))
    moved = before - table.lookup(np.arange(3), train=False)
    np.testing.assert_allclose(moved, np.outer([2 * factor, 4 * factor, 0], np.ones(7)), rtol=1e-4, atol=1e-6)
    assert global_clip(1000.0, [dense], optimizer) == 1.0


def test_adam_goes_on_where_a_saved_table_ended() -> None:
    whole, part = table_for(SparseAdam), table_for(SparseAdam)
    ids, grads = np.arange(5), np.ones((5, 7), np.float32)
    for table in (whole, part):
        table.lookup(ids, train=True)
        table.add_gradients(ids, grads)
        SparseAdam([table], lr=0.1).step()
    copy = table_for(SparseAdam)
    copy.set_stamp(part.stamp)
    copy.restore(*part.export_rows())
    copy.set_steps(part.steps)
    for table in (whole, copy):
        table.add_gradients(ids, grads)
        SparseAdam([table], lr=0.1).step()
    for one, other in zip(whole.export_rows(), copy.export_rows(), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda table: SparseAdagrad([table], lr=-1.0), "lr"),
        (lambda table: SparseAdagrad([table], eps=float("nan")), "eps"),
        (lambda table: SparseAdagradDecay([table], decay=1.5), "decay"),
        (lambda table: SparseAdagradDecay([table], decay_steps=0), "decay_steps"),
        (lambda table: SparseAdam([table], betas=(1.0, 0.9)), "betas"),
        (lambda table: SparseAdam([table]), "tables.t.optimizer"),
        (lambda table: EmbeddingTable("t", 4, optimizer="best"), "tables.t.optimizer"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Callable[[EmbeddingTable], object], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(table_for(SparseAdagrad))
    assert refused.value.field == field
