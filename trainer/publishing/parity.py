"""Checks both halves of a module against the module itself, and scores golden requests with it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from storage.checkpoint import DenseGraph, Golden
from storage.errors import ParityError, Unsupported
from storage.features import Column
from storage.rows import RowCodec
from trainer.publishing.dense_half import output_arrays
from trainer.publishing.lookup_half import TableRows, first_rows, graph_tensors
from trainer.publishing.prepared_module import PreparedModule

# Layers after the first one round too, and a server may differ by more than one rounding.
_ROUNDINGS = 4.0


class ParityChecker:
    """Compares the lookup half and the dense half with the module.

    tables: the rows that the lookup half reads. codecs: those with which the tables are published. graph: the dense
    half as a server has it. tolerance: how far outputs may differ, times the largest output if that is above 1.
    """

    def __init__(
        self,
        prepared: PreparedModule,
        tables: Mapping[str, TableRows],
        codecs: Mapping[str, RowCodec],
        tolerance: float,
        graph: DenseGraph | None = None,
    ) -> None:
        self._prepared = prepared
        self._tables = tables
        self._codecs = codecs
        self._tolerance = tolerance
        self._names = prepared.half.output_names
        self._graph = graph

    def sample_tensors(self) -> list[Tensor]:
        """Returns the dense half's inputs for the sample, from the rows as they were trained: the module's own."""
        prepared = self._prepared
        plan = prepared.plan
        return graph_tensors(prepared.engine.run(plan.columns, plan.rows), plan, self._tables)

    def check_sample(self, tensors: list[Tensor]) -> None:
        """Compares the module's own outputs with those of its cut self, fed by the lookup half."""
        got = self._module_outputs(tensors)
        shaped = {}
        for name, value in self._prepared.wanted.items():
            if value.numel() != got[name].size:
                raise Unsupported(
                    f"output {name!r} is {list(value.shape)} for the sample, and {list(got[name].shape)} for the batch "
                    f"of {len(tensors[0])} rows that requests would be: an output needs its batch first, and as many "
                    "values for each row, whatever the batch; if another dimension of the sample is as long as its "
                    "batch, give a sample of another number of rows"
                )
            shaped[name] = value.reshape(got[name].shape).numpy()
        what = "the two halves do not give the module's own outputs (asked for its type, a layer gives another)"
        self._compare(shaped, got, what)

    def check_graph(self, graph: DenseGraph, tensors: list[Tensor]) -> None:
        """Checks the exported half against the module, on the sample and at batch 1 and 2.

        A row's outputs must not depend on the other rows: neither on those behind it, which are missing when the first
        rows are alone, nor on those before it.
        """
        self._graph = graph
        whole = self._module_outputs(tensors)
        self._compare(whole, self._graph_outputs(tensors), "the exported graph, on the sample")
        for rows in (1, 2):
            first = first_rows(tensors, rows)
            alone = self._module_outputs(first)
            self._compare(alone, self._graph_outputs(first), f"the exported graph, at batch {rows}")
            # Rounding differs with the batch's size, so a little more is accepted here.
            within = {name: values[:rows] for name, values in whole.items()}
            self._compare(within, alone, f"the first rows alone (batch {rows})", factor=10.0)
        self._compare(whole, self._reversed_outputs(tensors), "the rows in reverse order", factor=10.0)

    def is_graph_of_module(self) -> bool:
        """Returns whether the dense half gives what the module gives for the sample, with the rows as they are now.

        Values that are not finite say nothing.
        """
        assert self._graph is not None
        taken = [entry.model_copy(update={"placeholder": ""}) for entry in self._graph.inputs]
        if taken != self._prepared.plan.graph_inputs():
            return False
        tensors = self.sample_tensors()
        outputs = self._module_outputs(tensors)
        if not all(np.all(np.isfinite(values)) for values in outputs.values()):
            return True
        try:
            self._compare(outputs, self._graph_outputs(tensors), "")
        except ParityError:
            return False
        return True

    def golden(self, columns: Mapping[str, Column], rows: int) -> Golden:
        """Scores the golden requests with the module over the published rows.

        The exported half must give the same outputs.
        """
        features = self._prepared.engine.run(columns, rows)
        tensors = graph_tensors(features, self._prepared.plan, self._tables, self._codecs)
        outputs = self._module_outputs(tensors)
        for name, values in outputs.items():
            if not np.all(np.isfinite(values)):
                raise ParityError(
                    f"output {name!r}: the module gives values that are not finite (inf, -inf, nan) for golden "
                    "requests; a server answers with finite ones: use a large number in their place, such as -1e9"
                )
        self._compare(outputs, self._graph_outputs(tensors), "the exported graph, on the golden requests")
        self._compare(outputs, self._reversed_outputs(tensors), "the golden requests in reverse order", factor=10.0)
        roundings = self._roundings(tensors, outputs)
        # Whole numbers have to be equal, however large they are.
        scales = {
            name: max(1.0, float(np.abs(values).max(initial=0.0))) if values.dtype.kind == "f" else 1.0
            for name, values in outputs.items()
        }
        tolerances = {
            name: min(max(self._tolerance * scale, _ROUNDINGS * roundings[name]), 0.5 * scale)
            for name, scale in scales.items()
        }
        return Golden(columns, rows, outputs, min(max(tolerances.values()), 0.5), tolerances)

    def _roundings(self, tensors: list[Tensor], outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the largest change of each output when the last bit of each input changes, up or down at random.

        A server sums in another order, which changes as much: nobody can ask for scores closer than that.
        """
        random = torch.Generator().manual_seed(0)
        nudged = []
        for tensor in tensors:
            if tensor.is_floating_point():
                signs = torch.randint(0, 2, tensor.shape, generator=random).to(tensor.dtype) * 2 - 1
                tensor = tensor * (1 + torch.finfo(tensor.dtype).eps * signs)
            nudged.append(tensor)
        changed = self._module_outputs(nudged)
        found = dict.fromkeys(outputs, 0.0)
        for name, values in outputs.items():
            if values.dtype.kind == "f":
                largest = float(np.abs(values - changed[name]).max(initial=0.0))
                found[name] = largest if np.isfinite(largest) else 0.0
        return found

    def _module_outputs(self, tensors: list[Tensor]) -> dict[str, np.ndarray]:
        try:
            with self._prepared.half.cut() as half:
                return output_arrays(self._names, half(*tensors))
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise Unsupported(
                f"the module takes the sample, but not a batch of {len(tensors[0])} rows: {first}; write sizes of the "
                "batch as x.shape[0]"
            ) from error

    def _reversed_outputs(self, tensors: list[Tensor]) -> dict[str, np.ndarray]:
        """Returns the module's outputs, in the order of the rows, when the rows come in reverse order."""
        outputs = self._module_outputs([tensor.flip(0) for tensor in tensors])
        return {name: values[::-1] for name, values in outputs.items()}

    def _graph_outputs(self, tensors: list[Tensor]) -> dict[str, np.ndarray]:
        assert self._graph is not None
        return output_arrays(self._names, self._graph.run(tensors))

    def _compare(
        self, wanted: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], what: str, *, factor: float = 1.0
    ) -> None:
        for name, values in wanted.items():
            other = got[name]
            if values.shape != other.shape:
                raise ParityError(f"{what}: output {name!r} is {list(other.shape)}, expected {list(values.shape)}")
            if values.dtype.kind != "f":
                if not np.array_equal(values, other):
                    raise ParityError(f"{what}: output {name!r} differs")
                continue
            # What is not finite has to be the same in both: logits of -inf mean "never".
            finite = np.isfinite(values)
            if not np.array_equal(values[~finite], other[~finite], equal_nan=True):
                raise ParityError(f"{what}: output {name!r} has other values that are not finite (inf, -inf, nan)")
            values, other = values[finite], other[finite]
            accepted = factor * self._tolerance * max(1.0, float(np.abs(values).max(initial=0.0)))
            difference = float(np.abs(values - other).max(initial=0.0))
            if not difference <= accepted:
                raise ParityError(
                    f"{what}: output {name!r} differs by {difference:.3g}, at most {accepted:.3g} is "
                    "accepted; a module that draws random numbers, or depends on other rows of its batch, cannot be cut"
                )
