"""One lookup of several layers in one native call, and the way back of its gradients.

B bags, N ids of a layer, D dim, L length, W the dims of all pooled layers together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage._table import BatchLookup
from storage.errors import ConfigError, InvalidInput
from storage.initializers import AbsentRows
from storage.specs import POOLINGS
from trainer.devices import Transfers, transfers_of
from trainer.embedding.device_lookups import DeviceLookups
from trainer.embedding.exchange import Route, RowExchange
from trainer.embedding.expected import expect_gradients
from trainer.embedding.layers import Chain, LayerIds, LayerLookup
from trainer.embedding.means import row_of_mean
from trainer.embedding.table import Ids, Rows
from trainer.embedding.whole_table import whole

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class _Run:
    """A lookup that was made, and the way back to the ranks that its rows came from."""

    native: BatchLookup
    route: Route | None


class Lookups:
    """Looks up several layers at once: their tables read an id once a batch, on all threads that torch uses.

    Rows are in host memory. For a GPU, different rows are written to pinned memory, copied and pooled there
    (device_lookups.py); with several ranks, and where layers say what ids without a row read as, the host pools them.
    Copies of gradients begin in backward, and the optimizer's step waits for them.
    """

    def __init__(self, layers: Sequence[LayerLookup]) -> None:
        self._layers = tuple(layers)
        self._tables = list(dict.fromkeys(layer.table for layer in layers))
        self._native = [table.unsettled for table in self._tables]
        places = {table: place for place, table in enumerate(self._tables)}
        self._features = [(places[layer.table], POOLINGS.index(layer.pooling), layer.length) for layer in layers]
        self._absent = [None if layer.absent is None else _native(layer.absent) for layer in layers]
        ranks = self._tables[0].ranks
        self._chained = any(layer.chain is not None for layer in layers)
        if self._chained and ranks.are_several:
            raise ConfigError(
                "several ranks (torchrun) do not train features with a fallback: its rows may belong to other ranks; "
                "leave `fallback` out, or train in one process",
                field="features",
            )
        self._hidden = [number for number, layer in enumerate(layers) if layer.hidden]
        asks = self._chained or any(each is not None for each in self._absent)
        self._exchange = RowExchange(ranks, self._tables, flags=asks) if ranks.are_several else None
        self._on_device: DeviceLookups | None = None
        if self._exchange is None and not asks:
            self._on_device = DeviceLookups(self._layers, self._tables, self._features)
        else:
            for table in self._tables:
                table.may_leave_host = False
        shown = [layer for layer in layers if not layer.hidden]
        self._width = sum(layer.table.dim for layer in shown if layer.pooling != "none")
        self._sequences = [(layer.length, layer.table.dim) for layer in shown if layer.pooling == "none"]
        # autograd calls backward only for functions with an input that wants a gradient; no dense input of a lookup
        # does.
        self._anchor = torch.zeros((), requires_grad=True)

    def __call__(
        self, ids: Sequence[LayerIds], *, train: bool, device: torch.device = _HOST
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the pooled layers side by side, (B, W) float32, and the rows (B, L, D) of each with pooling none.

        ids: those of each layer. train: counts the ids and creates the rows that are due. device: where results are.
        """
        by = transfers_of(device)
        if by is None or self._on_device is None:
            for table in self._tables:
                _ = table.leave_device() if train else table.native
            pooled, *sequences = _Lookup.apply(self._anchor, self, ids, train, by)  # type: ignore[no-untyped-call]
        else:
            given = self._anchor, self._on_device, _checked(ids), train, by
            pooled, *sequences = _DeviceLookup.apply(*given)  # type: ignore[no-untyped-call]
        return pooled, sequences

    def run(
        self, ids: Sequence[LayerIds], train: bool, by: Transfers | None = None, drawn: int | None = None
    ) -> tuple[_Run, list[Tensor]]:
        """Looks up without autograd, into host memory from which `by` copies; returns what `keep_gradients` needs, and
        the results as `__call__` does. drawn: what `draw` returned for the lookup.
        """
        batch = len(_checked(ids)[0].offsets) - 1
        made = torch.empty if by is None else by.host_tensor
        results = [made((batch, self._width)), *(made((batch, *shape)) for shape in self._sequences)]
        arrays = [result.numpy() for result in results]
        native = BatchLookup(self._native, self._features, self._absent, self._chains(), self._hidden)
        values, offsets, weights = ([getattr(each, of) for each in ids] for of in ("values", "offsets", "weights"))
        threads = torch.get_num_threads()
        if self._exchange is None:
            try:
                native.run(values, offsets, weights, batch, arrays[0], arrays[1:], train, threads, drawn)
            except ValueError as error:
                if not self._chained:
                    raise
                raise InvalidInput(str(error), field="levels") from None
            return _Run(native, None), results
        alone = self._tables[0].ranks.works_alone
        asked = native.ask(values, offsets, weights, batch, 1 if alone else self._exchange.ranks, threads)
        if alone:
            rows, flags = self._read_whole(*asked[:2])
            native.pool(rows, flags, arrays[0], arrays[1:], threads)
            return _Run(native, None), results
        rows, has_row, route = self._exchange.bring(*asked, train=train)
        native.pool(rows, has_row, arrays[0], arrays[1:], threads)
        return _Run(native, route), results

    def draw(self, train: bool) -> int | None:
        """Returns what draws the ids that read their chain in this step although they have a row; None: none does."""
        if not train or not any(layer.chain is not None and layer.chain.share for layer in self._layers):
            return None
        return sum(table.steps for table in self._tables)

    def _chains(self) -> list[tuple[list[tuple[int, bool]], Rows | None, float] | None] | None:
        """Returns the chains of the layers as the native code takes them, with the means as they are now."""
        if not self._chained:
            return None
        return [None if layer.chain is None else _native_chain(layer.chain, layer.levels) for layer in self._layers]

    def _read_whole(self, numbers: Ids, message: NDArray[np.uint8]) -> tuple[Rows, NDArray[np.uint8]]:
        """Reads rows of all ranks, which wait for it. numbers, message: what was asked of one rank for all."""
        ids = np.split(message[: 8 * int(numbers.sum())].view(np.int64), np.cumsum(numbers)[:-1])
        found = [whole(table).read(own) for table, own in zip(self._tables, ids, strict=True)]
        return np.concatenate([rows.reshape(-1) for rows, _ in found]), np.concatenate([flags for _, flags in found])

    def expect_gradients(self, run: _Run, gradients: Sequence[Tensor | None], by: Transfers) -> None:
        """Begins to bring gradients from a GPU; `keep_gradients` gets them when the tables are asked for theirs."""
        arriving = by.to_host([each.to(torch.float32) for each in gradients if each is not None])
        has = [each is not None for each in gradients]

        def keep() -> None:
            arrived = iter(arriving.wait())
            self.keep_gradients(run, [next(arrived) if some else None for some in has])

        expect_gradients(self._tables, keep)

    def keep_gradients(self, run: _Run, gradients: Sequence[Tensor | None]) -> None:
        """Gives the tables the gradients of what `run` returned; None: there are none."""
        native, threads = run.native, torch.get_num_threads()
        pooled, *sequences = (
            None if each is None else each.detach().to(torch.float32).contiguous().numpy() for each in gradients
        )
        native.set_gradients(pooled, sequences, threads)
        if self._exchange is not None and run.route is not None:
            if any(each is None for each in (*([pooled] if self._width else []), *sequences)):
                raise ConfigError(
                    "the model leaves a feature unused, which has no gradient; several ranks (torchrun) train models "
                    "that use every feature: remove it from `features`, or use it",
                    field="features",
                )
            sums = np.empty(native.asked_values, np.float32)
            native.sum_gradients(sums, threads)
            self._exchange.give(run.route, sums)
            return
        for place, table in enumerate(self._tables):
            table.leave_device()  # to step rows here; it may have read them without training
            table.keep_gradients(native.gradients(place))


class _DeviceLookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, lookups: DeviceLookups, ids: Sequence[LayerIds], train: bool, by: Transfers
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.run = run = lookups.run(ids, train, by)
        ctx.lookups, ctx.ids, ctx.by = lookups, ids, by
        return tuple(each.detach() for each in (run.pooled, *run.sequences))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        run, ctx.run = ctx.run, None
        if run is None:  # backward ran before, and the tables may still hold what it left in the lookup
            run = ctx.lookups.run(ctx.ids, False, ctx.by)
        ctx.lookups.expect_gradients(run, gradients, ctx.by)
        return None, None, None, None, None


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, lookups: Lookups, ids: Sequence[LayerIds], train: bool, by: Transfers | None
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        drawn = lookups.draw(train)
        run, results = lookups.run(ids, train, by, drawn)
        ctx.lookups, ctx.run, ctx.ids, ctx.by, ctx.drawn = lookups, run, ids, by, drawn
        return tuple(results if by is None else by.to_device(results))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        run, ctx.run = ctx.run, None
        if run is None:  # backward ran before, and the tables may still hold what it left in the lookup
            run, _ = ctx.lookups.run(ctx.ids, False, drawn=ctx.drawn)
        if ctx.by is None:
            ctx.lookups.keep_gradients(run, gradients)
        else:
            ctx.lookups.expect_gradients(run, gradients, ctx.by)
        return None, None, None, None, None


def _checked(ids: Sequence[LayerIds]) -> Sequence[LayerIds]:
    """Returns the ids. Raises InvalidInput when layers have different numbers of bags."""
    batch = len(ids[0].offsets) - 1
    for each in ids:
        if len(each.offsets) - 1 != batch:
            raise InvalidInput(
                f"offsets: one feature has {batch} bags and another {len(each.offsets) - 1}", field="offsets"
            )
    return ids


def _native_chain(chain: Chain, levels: Sequence[int]) -> tuple[list[tuple[int, bool]], Rows | None, float]:
    places = list(zip(levels, [level.parallel for level in chain.levels], strict=True))
    return places, None if chain.mean is None else row_of_mean(chain.mean), chain.share


def _native(absent: AbsentRows) -> tuple[str, float, int]:
    return (*absent.initializer.native(), absent.seed)
