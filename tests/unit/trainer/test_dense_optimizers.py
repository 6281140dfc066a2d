"""Optimizers of the dense weights: torch's own, to the bit, without loading its compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from trainer.optimizer_config import DenseOptimizerConfig
from trainer.optimizers import dense_optimizer

KINDS: dict[Literal["Adam", "AdamW", "SGD", "Adagrad"], Any] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
    "Adagrad": torch.optim.Adagrad,
}

SCRIPT = """
import sys, torch
from trainer import EmbeddingTable, SparseAdagrad
from trainer.optimizer_config import DenseOptimizerConfig
from trainer.optimizers import dense_optimizer

model = torch.nn.Linear(3, 2)
dense = dense_optimizer(DenseOptimizerConfig(), model)
sparse = SparseAdagrad([EmbeddingTable("t", 4, optimizer="adagrad")])
model(torch.ones(2, 3)).sum().backward()
for optimizer in (dense, sparse):
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def trained(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns the weights after a few steps, in the middle of which the state is saved and loaded."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 5, generator=generator)).pow(2).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize("kind", list(KINDS))
def test_weights_are_those_of_torchs_optimizer_to_the_bit(
    kind: Literal["Adam", "AdamW", "SGD", "Adagrad"],
) -> None:
    config = DenseOptimizerConfig(type=kind, lr=0.1, weight_decay=0.01)
    found = []
    for make in (dense_optimizer, lambda _, model: KINDS[kind](model.parameters(), 0.1, weight_decay=0.01, fused=True)):
        torch.manual_seed(1)
        model = torch.nn.Linear(5, 3)
        optimizer = make(config, model)
        found.append((trained(optimizer, model), str(optimizer.state_dict())))
    (ours, our_state), (theirs, their_state) = found
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert our_state == their_state


def test_torchs_own_classes_are_not_changed() -> None:
    before = {kind: kind.zero_grad for kind in KINDS.values()}
    dense_optimizer(DenseOptimizerConfig(), torch.nn.Linear(2, 1))
    assert all(kind.zero_grad is method for kind, method in before.items())


def test_steps_do_not_load_the_compiler() -> None:
    """It takes half as long to load as torch itself, in every process that trains."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() == "False", done.stdout + done.stderr
