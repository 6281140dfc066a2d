"""Connects float inputs of a network to tables: a network whose rows were looked up before it, such as behind HPS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean
from storage.importing import FileTable
from trainer.converting.aten_layers import plain_name
from trainer.converting.converted import Converted, DeclaredInput

POOLINGS = ("row", "sum", "mean")
_ROWS, _BAG = 64, 3


@dataclass(frozen=True)
class RowsOf:
    """Says which table an input's values are rows of."""

    input: str
    table: str
    #: row: of one id, or of a fixed number of ids behind each other; sum or mean: of a list of ids.
    pooling: str = "row"

    @classmethod
    def parse(cls, text: str) -> RowsOf:
        """Parses INPUT=TABLE[:POOLING]. Raises ConfigError."""
        name, equals, rest = text.partition("=")
        table, _, pooling = rest.partition(":")
        if not (name and equals and table) or (pooling or "row") not in POOLINGS:
            raise ConfigError(
                f"--rows {text!r}: expected INPUT=TABLE or INPUT=TABLE:POOLING, POOLING one of {', '.join(POOLINGS)}",
                field="--rows",
            )
        return cls(name, table, pooling or "row")


class WithTables(nn.Module):
    """forward(batch) takes ids under the names of the network's connected inputs: (B,) or (B, n) for rows, and for a
    pooled input its ids (N,) with INPUT.offsets (B + 1,).
    """

    def __init__(self, network: nn.Module, uses: Sequence[tuple[RowsOf, DeclaredInput, int]]) -> None:
        super().__init__()
        self.network = network
        self._uses: list[tuple[RowsOf, DeclaredInput, str]] = []
        for use, declared, dim in uses:
            # Layers of one table share a weight, which makes them one table.
            name = plain_name(use.table)
            weight = self.get_submodule(name).get_parameter("weight") if name in self._modules else None
            name = name if weight is None else f"{name}_of_{plain_name(use.input)}"
            layer: nn.Module
            if use.pooling == "row":
                layer = nn.Embedding(1, dim)
            else:
                layer = nn.EmbeddingBag(1, dim, mode=use.pooling, include_last_offset=True)
            if weight is not None:
                layer.weight = weight
            self.add_module(name, layer)
            self._uses.append((use, declared, name))

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        given = dict(batch)
        for use, declared, name in self._uses:
            layer, ids = self.get_submodule(name), given[use.input]
            rows = layer(ids) if use.pooling == "row" else layer(ids, given.pop(f"{use.input}.offsets"))
            given[use.input] = rows.reshape(rows.shape[0], *(size or -1 for size in declared.shape))
        outputs: dict[str, Tensor] = self.network(given)
        return outputs


def connected(
    converted: Converted, rows: Sequence[RowsOf], tables: Sequence[FileTable], ids: Mapping[str, np.ndarray]
) -> tuple[nn.Module, dict[str, Tensor], dict[str, str]]:
    """Returns a network with its tables, a sample, and the module's name of each table.

    ids: some ids of each table. Raises ConfigError naming an input or a table that is not there, or does not fit.
    """
    declared = {entry.name: entry for entry in converted.inputs}
    by_name = {table.name: table for table in tables}
    uses: list[tuple[RowsOf, DeclaredInput, int]] = []
    for use in rows:
        if use.input not in declared:
            raise ConfigError(
                f"--rows: the network has no input {use.input!r}{did_you_mean(use.input, declared)}", field="--rows"
            )
        if use.table not in by_name:
            raise ConfigError(
                f"--rows: the files have no table {use.table!r}{did_you_mean(use.table, by_name)}", field="--rows"
            )
        entry, dim = declared[use.input], by_name[use.table].dim
        width = int(np.prod([size or 0 for size in entry.shape]))
        fits = width == dim if use.pooling != "row" else width > 0 and width % dim == 0
        if not fits or not entry.dtype.is_floating_point:
            raise ConfigError(
                f"--rows: the input {use.input!r} takes {['batch', *entry.shape]} of {entry.dtype}, and rows of "
                f"{use.table!r} have {dim} values",
                field="--rows",
            )
        uses.append((use, entry, dim))
    taken = {use.input for use in rows}
    rest = Converted(converted.module, tuple(entry for entry in converted.inputs if entry.name not in taken))
    random = np.random.default_rng(0)
    sample = _others(rest)
    for use, entry, dim in uses:
        count = int(np.prod([size or 0 for size in entry.shape])) // dim
        if use.pooling == "row":
            shape: tuple[int, ...] = (_ROWS,) if count == 1 else (_ROWS, count)
            sample[use.input] = torch.from_numpy(random.choice(ids[use.table], shape))
        else:
            sample[use.input] = torch.from_numpy(random.choice(ids[use.table], _ROWS * _BAG))
            sample[f"{use.input}.offsets"] = torch.arange(0, _ROWS * _BAG + 1, _BAG)
    module = WithTables(converted.module, uses)
    return module, sample, {use.table: plain_name(use.table) for use in rows}


def _others(rest: Converted) -> dict[str, Tensor]:
    """Makes the inputs that no table is connected to."""
    whole = [entry.name for entry in rest.inputs if not entry.dtype.is_floating_point]
    if whole:
        raise ConfigError(
            f"--rows: the network takes whole numbers as {whole[0]!r}; a network with lookups of its own is imported "
            "by `emberline import onnx` or `pt2`",
            field="--rows",
        )
    random = torch.Generator().manual_seed(0)
    return {
        entry.name: torch.rand([_ROWS, *(size or 1 for size in entry.shape)], generator=random).to(entry.dtype)
        for entry in rest.inputs
    }
