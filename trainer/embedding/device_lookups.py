"""One lookup of several layers for a GPU: different rows cross the bus once, and are pooled there.

B bags, N ids, D dim, L length, W the dims of all pooled layers together. Tables of one shape are a group, whose
different rows of a batch are a matrix on the GPU: those that it keeps, those that the host sends, a row of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from storage._table import BatchLookup, DeviceRows
from trainer.devices import Transfers
from trainer.embedding.expected import expect_gradients
from trainer.embedding.hbm_group import HbmGroup, Held
from trainer.embedding.layers import LayerIds, LayerLookup
from trainer.embedding.table import EmbeddingTable

# Tensors by what they are of: a group, or a call and a word.
_Parts = dict[object, Tensor]


@dataclass(frozen=True)
class _Call:
    """Layers of one group and one pooling, which are pooled in one operation; of pooling none, one layer."""

    group: int
    pooling: str
    layers: tuple[int, ...]


@dataclass(frozen=True)
class _Matrix:
    """The different rows of a group in a batch."""

    rows: Tensor
    #: Places on the GPU of those that it keeps, the first ones: in host memory and there.
    kept: NDArray[np.int32]
    places: Tensor
    #: What the GPU keeps of the group, and what its places had then; None: nothing.
    store: HbmGroup | None
    held: Held | None


@dataclass(frozen=True)
class DeviceRun:
    """A lookup that was made."""

    native: BatchLookup
    rows: DeviceRows
    matrices: list[_Matrix]
    #: The pooled layers side by side, (B, W), and the rows (B, L, D) of each with pooling none.
    pooled: Tensor
    sequences: list[Tensor]
    #: Whether ids were counted.
    train: bool


class DeviceLookups:
    """Looks up layers for a GPU. layers, tables: those of `Lookups`, and the place of each layer's table."""

    def __init__(
        self, layers: Sequence[LayerLookup], tables: Sequence[EmbeddingTable], places: Sequence[tuple[int, int, int]]
    ) -> None:
        self._layers = list(layers)
        self._tables = list(tables)
        self._native = [table.unsettled for table in tables]
        self._features = list(places)
        shapes = list(dict.fromkeys((table.dim, table.slots) for table in tables))
        self._dims = [dim for dim, _ in shapes]
        self._groups = [shapes.index((table.dim, table.slots)) for table in tables]
        calls: dict[tuple[int, str, int], list[int]] = {}
        for number, layer in enumerate(layers):
            alone = number if layer.pooling == "none" else -1
            calls.setdefault((self._groups[places[number][0]], layer.pooling, alone), []).append(number)
        self._calls = [_Call(group, pooling, tuple(own)) for (group, pooling, _), own in calls.items()]

    def run(self, ids: Sequence[LayerIds], train: bool, by: Transfers) -> DeviceRun:
        """Looks up into the memory of a GPU. Arguments as for `Lookups.run`."""
        batch, threads = len(ids[0].offsets) - 1, torch.get_num_threads()
        native = BatchLookup(self._native, self._features)
        native.find(
            [each.values for each in ids],
            [each.offsets for each in ids],
            [each.weights for each in ids],
            batch,
            train,
            threads,
        )
        kept_ids = [None if table.hbm is None else table.hbm.ids for table in self._tables]
        rows = DeviceRows(native, self._groups, kept_ids, threads)
        kept = [rows.kept(group) for group in range(len(self._dims))]
        values, whole = self._written(rows, kept, batch, by, threads)
        matrices = self._matrices(kept, values, whole, train=train)
        results = [self._pooled(call, matrices[call.group], whole, batch) for call in self._calls]
        pooled, sequences = self._results(results)
        return DeviceRun(native, rows, matrices, pooled, sequences, train)

    def _results(self, of_calls: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Returns the results of calls in the order of the layers."""
        parts: dict[int, Tensor] = {}
        for call, result in zip(self._calls, of_calls, strict=True):
            if call.pooling == "none":
                parts[call.layers[0]] = result
            else:
                parts |= dict(zip(call.layers, torch.split(result, self._dims[call.group], dim=1), strict=True))
        pooled = [call for call in self._calls if call.pooling != "none"]
        sequences = [parts[number] for number, layer in enumerate(self._layers) if layer.pooling == "none"]
        if len(pooled) == 1:
            return of_calls[self._calls.index(pooled[0])], sequences
        side_by_side = [parts[number] for number, layer in enumerate(self._layers) if layer.pooling != "none"]
        return torch.cat(side_by_side or [of_calls[0].new_zeros((len(of_calls[0]), 0))], dim=1), sequences

    def _written(
        self, rows: DeviceRows, kept: Sequence[NDArray[np.int32]], batch: int, by: Transfers, threads: int
    ) -> tuple[list[Tensor], _Parts]:
        """Sends the rows that the GPU does not keep, (n, D) by group, and the places of all, by what they belong to."""
        pieces: list[tuple[object, int]] = [(group, len(places)) for group, places in enumerate(kept)]
        for call in self._calls:
            if call.pooling == "none":
                pieces.append(((call, "places"), batch * self._layers[call.layers[0]].length))
            else:
                pieces.append(((call, "places"), rows.ids(call.layers)))
                pieces.append(((call, "offsets"), batch * len(call.layers) + 1))
        weighted = [call for call in self._calls if call.pooling == "weighted"]
        floats: list[tuple[object, int]] = [(group, rows.others(group) * dim) for group, dim in enumerate(self._dims)]
        floats += [((call, "weights"), rows.ids(call.layers)) for call in weighted]
        whole = by.host_tensor((sum(n for _, n in pieces),), torch.int32)
        real = by.host_tensor((sum(n for _, n in floats),))
        integers = dict(zip((of for of, _ in pieces), _cut(whole.numpy(), [n for _, n in pieces]), strict=True))
        numbers = dict(zip((of for of, _ in floats), _cut(real.numpy(), [n for _, n in floats]), strict=True))
        for group, own in enumerate(kept):
            integers[group][:] = own
        for call in self._calls:
            places = integers[call, "places"]
            if call.pooling == "none":
                layer = call.layers[0]
                rows.write_sequence(layer, places.reshape(batch, self._layers[layer].length))
            else:
                weights = numbers[call, "weights"] if call.pooling == "weighted" else None
                rows.write_bags(call.layers, places, integers[call, "offsets"], weights, threads)
        rows.write([numbers[group].reshape(-1, dim) for group, dim in enumerate(self._dims)], threads)
        on_device, real = by.to_device([whole, real])
        there = dict(zip((of for of, _ in pieces), torch.split(on_device, [n for _, n in pieces]), strict=True))
        parts = dict(zip((of for of, _ in floats), torch.split(real, [n for _, n in floats]), strict=True))
        there |= {of: part for of, part in parts.items() if not isinstance(of, int)}
        return [parts[group].view(-1, dim) for group, dim in enumerate(self._dims)], there

    def _matrices(
        self, kept_of: Sequence[NDArray[np.int32]], values: Sequence[Tensor], whole: _Parts, *, train: bool
    ) -> list[_Matrix]:
        made = []
        for group, (dim, kept, others) in enumerate(zip(self._dims, kept_of, values, strict=True)):
            parts = [others, others.new_zeros((1, dim))]
            places, store = whole[group], self._store(group)
            if store is not None:
                parts.insert(0, store.values[:, :dim].index_select(0, places))
                if train:
                    store.count(len(kept), len(kept) + len(others))
            held = None if store is None else store.held()
            made.append(_Matrix(torch.cat(parts), kept, places, store, held))
        return made

    def _store(self, group: int) -> HbmGroup | None:
        """Returns what the GPU keeps of the tables of a group."""
        for table, own in zip(self._tables, self._groups, strict=True):
            if own == group and table.hbm is not None:
                return table.hbm.group
        return None

    def _pooled(self, call: _Call, matrix: _Matrix, whole: _Parts, batch: int) -> Tensor:
        places = whole[call, "places"]
        if call.pooling == "none":
            length = self._layers[call.layers[0]].length
            zeros = len(matrix.rows) - 1
            return functional.embedding(places.view(batch, length), matrix.rows, padding_idx=zeros)
        bags = functional.embedding_bag(
            places,
            matrix.rows,
            whole[call, "offsets"],
            mode="mean" if call.pooling == "mean" else "sum",
            per_sample_weights=whole.get((call, "weights")),
            include_last_offset=True,
        )
        return bags.view(batch, len(call.layers) * self._dims[call.group])

    def expect_gradients(self, run: DeviceRun, gradients: Sequence[Tensor | None], by: Transfers) -> None:
        """Takes the gradients of the results of a run, pooled ones first; None: there are none.

        Those of kept rows stay on the GPU. The others are brought, and tables get them when they are asked for theirs.
        """
        used, threads = self._used(gradients), torch.get_num_threads()
        whole = self._of_rows(run, gradients, used, by, threads)
        arriving = by.to_host([each[len(matrix.kept) :] for matrix, each in zip(run.matrices, whole, strict=True)])
        for group, (matrix, each) in enumerate(zip(run.matrices, whole, strict=True)):
            self._keep_on_device(run, group, matrix, each, used)

        def keep() -> None:
            arrived = [each.numpy() for each in arriving.wait()]
            run.rows.take_gradients(arrived, used, torch.get_num_threads())
            for place, table in enumerate(self._tables):
                table.keep_gradients(run.native.gradients(place))

        expect_gradients(self._tables, keep)

    def _of_rows(
        self, run: DeviceRun, gradients: Sequence[Tensor | None], used: Sequence[bool], by: Transfers, threads: int
    ) -> list[Tensor]:
        """Returns the gradients of the rows of each matrix, (n, D), without that of zeros."""
        of_calls = self._by_call(gradients)
        sums = []
        for group, dim in enumerate(self._dims):
            places, first = [(0, 0, False)] * len(self._layers), 0
            for call, given in zip(self._calls, of_calls, strict=True):
                if call.group != group or given is None:
                    continue
                length = self._layers[call.layers[0]].length if call.pooling == "none" else len(call.layers)
                for side, layer in enumerate(call.layers):
                    places[layer] = (first + side, length, used[layer])
                first += given.numel() // dim
            sums.append(run.rows.sums(group, places, threads))
        placed = iter(_sent([part for rows, factors, levels in sums for part in (rows, factors, *levels)], by))
        found = []
        for group, (dim, (_, _, levels)) in enumerate(zip(self._dims, sums, strict=True)):
            parts = [
                each.to(torch.float32).reshape(-1, dim)
                for call, each in zip(self._calls, of_calls, strict=True)
                if call.group == group and each is not None
            ]
            rows, factors = next(placed), next(placed)
            assert rows is not None
            starts = [next(placed) for _ in levels]
            if not len(rows):
                found.append(run.matrices[group].rows.new_zeros((len(levels[-1]) - 1, dim)))
                continue
            terms = (parts[0] if len(parts) == 1 else torch.cat(parts)).index_select(0, rows)
            terms = terms if factors is None else terms * factors.view(-1, 1)
            for level in starts:
                # unsafe: offsets that are not looked at, which would wait for the GPU
                terms = torch.segment_reduce(terms, "sum", offsets=level, axis=0, unsafe=True, initial=0.0)
            found.append(terms)
        return found

    def _by_call(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the gradients of each call, of those of the results."""
        pooled, *sequences = gradients
        of_sequences = iter(sequences)
        of_layers: dict[int, Tensor | None] = {
            number: next(of_sequences) for number, layer in enumerate(self._layers) if layer.pooling == "none"
        }
        calls = [call for call in self._calls if call.pooling != "none"]
        if len(calls) == 1:
            return [pooled if call.pooling != "none" else of_layers[call.layers[0]] for call in self._calls]
        if pooled is not None:
            numbers = [number for number, layer in enumerate(self._layers) if layer.pooling != "none"]
            dims = [self._layers[number].table.dim for number in numbers]
            of_layers |= dict(zip(numbers, torch.split(pooled, dims, dim=1), strict=True))
        found: list[Tensor | None] = []
        for call in self._calls:
            parts = [part for part in (of_layers.get(number) for number in call.layers) if part is not None]
            found.append((parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)) if parts else None)
        return found

    def _used(self, gradients: Sequence[Tensor | None]) -> list[bool]:
        """Returns for each layer whether it has gradients."""
        pooled, *sequences = (each is not None for each in gradients)
        rest = iter(sequences)
        return [next(rest) if layer.pooling == "none" else pooled for layer in self._layers]

    def _keep_on_device(
        self, run: DeviceRun, group: int, matrix: _Matrix, gradient: Tensor, used: Sequence[bool]
    ) -> None:
        if matrix.store is None or matrix.held is None or not len(matrix.kept):
            return
        kept, places, own_gradients = matrix.kept, matrix.places, gradient[: len(matrix.kept)]
        if not all(used):
            has = run.rows.is_used(group, list(used))[: len(kept)].astype(bool)
            at = torch.as_tensor(np.flatnonzero(has), device=places.device)
            kept, places, own_gradients = kept[has], places.index_select(0, at), own_gradients.index_select(0, at)
        matrix.store.keep_gradients(kept, places, own_gradients, matrix.held, counted=run.train)


def _sent(parts: Sequence[NDArray[Any] | None], by: Transfers) -> list[Tensor | None]:
    """Returns int32 and float32 arrays on the GPU."""
    kinds = (torch.int32, np.int32), (torch.float32, np.float32)
    hosts = []
    for dtype, kind in kinds:
        arrays = [part for part in parts if part is not None and part.dtype == kind]
        host = by.host_tensor((sum(map(len, arrays)),), dtype)
        if arrays:
            np.concatenate(arrays, out=host.numpy())
        hosts.append(host)
    lengths = [[len(part) for part in parts if part is not None and part.dtype == kind] for _, kind in kinds]
    cut = [iter(torch.split(each, sizes)) for each, sizes in zip(by.to_device(hosts), lengths, strict=True)]
    return [None if part is None else next(cut[int(part.dtype == np.float32)]) for part in parts]


def _cut(array: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    return np.split(array, np.cumsum(sizes)[:-1])
