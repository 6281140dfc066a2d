"""Optimizers of the tables. They step in C++ on the gradients that backward() left at the tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from storage.errors import ConfigError
from trainer.embedding.table import EmbeddingTable


class SparseOptimizer(Protocol):
    """Interface of an optimizer of tables that the training loop uses."""

    def step(self) -> int: ...

    def zero_grad(self) -> None: ...


class SparseAdagrad:
    """Adagrad, one step for each row that has a gradient: a += g * g; row -= lr * g / (sqrt(a) + eps).

    g is the sum over all places in the batch where the id stands. Source: Duchi, Hazan, Singer, "Adaptive subgradient
    methods for online learning and stochastic optimization", 2011; eps outside the root, as in torch.optim.Adagrad.
    Raises ConfigError for a table that was made for another optimizer.
    """

    def __init__(self, tables: Iterable[EmbeddingTable], lr: float = 0.05, eps: float = 1e-8) -> None:
        self._tables = _made_for("adagrad", tables)
        self.lr = lr
        self.eps = eps

    def step(self) -> int:
        """Updates the rows and forgets the gradients. Returns how many rows took a step."""
        return sum(table.adagrad(*table.take_gradients(), lr=self.lr, eps=self.eps) for table in self._tables)

    def zero_grad(self) -> None:
        """Forgets gradients that no step has used."""
        for table in self._tables:
            table.drop_gradients()


class SparseSGD:
    """Plain gradient descent, one step for each row that has a gradient: row -= lr * g."""

    def __init__(self, tables: Iterable[EmbeddingTable], lr: float = 0.05) -> None:
        self._tables = _made_for("sgd", tables)
        self.lr = lr

    def step(self) -> int:
        """Updates the rows and forgets the gradients. Returns how many rows took a step."""
        return sum(table.sgd(*table.take_gradients(), lr=self.lr) for table in self._tables)

    def zero_grad(self) -> None:
        """Forgets gradients that no step has used."""
        for table in self._tables:
            table.drop_gradients()


def _made_for(optimizer: str, tables: Iterable[EmbeddingTable]) -> list[EmbeddingTable]:
    unique = list(dict.fromkeys(tables))
    for table in unique:
        if table.optimizer != optimizer:
            raise ConfigError(
                f"table {table.name!r} was made for {table.optimizer}; make it with optimizer={optimizer!r}",
                field=f"tables.{table.name}.optimizer",
            )
    return unique
