"""publish(): a module becomes a version in a model repository.

The embedding layers are taken out and become tables; the rest is exported. Both halves together must give the module's
own outputs, on the sample, on every golden request, and at batch 1, or nothing is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.checkpoint import DenseGraph, Golden, GraphInput, GraphOutput, TableData, write_version
from storage.errors import InvalidInput, ParityError, Unsupported
from storage.features import Column, FeatureEngine, FeatureSpec
from storage.specs import check_model_name
from trainer.data import to_inputs
from trainer.evaluate import evaluation_mode
from trainer.progress import Display
from trainer.publishing.cut import DenseHalf, export_half, graph_outputs, named_outputs, output_arrays
from trainer.publishing.derive import plan_from_sample
from trainer.publishing.golden import golden_columns
from trainer.publishing.lookup import first_rows, graph_tensors
from trainer.publishing.plan import CutPlan, plan_with_spec
from trainer.publishing.record import Recording, record
from trainer.publishing.sample import Sample

GOLDEN_REQUESTS_AT_LEAST = 256


def publish(
    module: nn.Module,
    sample_batch: object,
    repository: Path | str,
    *,
    name: str,
    spec: FeatureSpec | None = None,
    version: int | None = None,
    max_batch_size: int = 1024,
    golden_requests: int = GOLDEN_REQUESTS_AT_LEAST,
    tolerance: float = 1e-6,
    metadata: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Path:
    """Publishes a module with embedding layers as repository/name/VERSION and returns that folder.

    module: any nn.Module whose embedding layers are ours, nn.Embedding or nn.EmbeddingBag. It is published as in eval()
    and left in the mode in which it was.
    sample_batch: two rows or more. Without a spec: what forward() takes (a tensor, a tuple of arguments, a mapping of
    names), ids as int64 or int32, dense features as float32; names of inputs come from it. With a spec: raw columns by
    input (storage.features.Column); the module is called with what the feature engine makes of them.
    version: None takes the next number. golden_requests: rows drawn from the sample, 256 or more.
    tolerance: how far a served output may be from the module's own, times the largest output if that is above 1.
    Raises Unsupported for a module that cannot be cut, ParityError when the halves do not give the module's outputs.
    """
    if golden_requests < GOLDEN_REQUESTS_AT_LEAST:
        raise InvalidInput(
            f"golden_requests is {golden_requests}, expected {GOLDEN_REQUESTS_AT_LEAST} or more",
            field="golden_requests",
        )
    check_model_name(name)
    module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
    container = nn.Module()
    container.add_module("module", module)
    with evaluation_mode(container), Display(visible=progress) as display, torch.no_grad():
        display.begin(f"publishing {name}: sample", 5)
        sample, plan, recording = _planned(module, container, sample_batch, spec)
        wanted = named_outputs(recording.outputs)
        outputs = graph_outputs(wanted)
        display.advance()
        tables = [source.data() for source in plan.tables]
        display.advance()
        half = DenseHalf(container, sample, plan, list(wanted))
        checker = _Checker(half, plan, {table.name: table for table in tables}, tolerance)
        checker.check_sample(wanted)
        program = export_half(half, checker.sample_tensors)
        inputs = plan.graph_inputs()
        checker.check_graph(_loaded(program, inputs, outputs))
        display.advance()
        columns, rows = golden_columns(plan.columns, plan.spec, tables, golden_requests)
        golden = checker.golden(columns, rows)
        display.advance()
        folder = write_version(
            Path(repository) / name,
            version=version,
            spec=plan.spec,
            tables=tables,
            graph=program,
            graph_inputs=inputs,
            graph_outputs=outputs,
            golden=golden,
            max_batch_size=max_batch_size,
            metadata=dict(metadata or {}),
        )
        display.advance()
        display.say(f"published {folder}")
    return folder


def _planned(
    module: nn.Module, container: nn.Module, sample_batch: object, spec: FeatureSpec | None
) -> tuple[Sample, CutPlan, Recording]:
    if spec is None:
        sample = Sample.of(module, sample_batch)
        recording = record(
            container, sample.leaves, lambda: sample.call(container.get_submodule("module"), sample.leaves)
        )
        rows = _batch_rows(recording)
        return sample, plan_from_sample(recording, sample.leaves, rows), recording
    columns = _columns_of(sample_batch, spec)
    rows = max(column.rows for column in columns.values())
    sample = Sample.of(module, to_inputs(FeatureEngine(spec).run(columns, rows)))
    recording = record(container, sample.leaves, lambda: sample.call(container.get_submodule("module"), sample.leaves))
    if _batch_rows(recording) != rows:
        raise Unsupported(f"the module gives {_batch_rows(recording)} rows for {rows} rows of the sample")
    return sample, plan_with_spec(spec, columns, rows, recording, sample.leaves), recording


def _columns_of(sample_batch: object, spec: FeatureSpec) -> dict[str, Column]:
    wrong = "with a spec, sample_batch is a mapping of input names to storage.features.Column"
    if not isinstance(sample_batch, Mapping):
        raise InvalidInput(f"{wrong}; got {type(sample_batch).__name__}")
    columns: dict[str, Column] = {}
    for entry in spec.inputs:
        column = sample_batch.get(entry.name)
        if not isinstance(column, Column):
            raise InvalidInput(f"{wrong}; {entry.name!r} is {type(column).__name__}", field=entry.name)
        columns[entry.name] = column
    return columns


def _batch_rows(recording: Recording) -> int:
    first = next(iter(named_outputs(recording.outputs).values()))
    rows = first.shape[0] if first.dim() else 0
    if rows < 2:
        raise InvalidInput(
            f"the module's first output has {rows} rows; give a sample of two rows or more, so that the batch shows"
        )
    return int(rows)


def _loaded(program: torch.export.ExportedProgram, inputs: list[GraphInput], outputs: list[GraphOutput]) -> DenseGraph:
    """The graph as a server will have it: packed, checked, rebuilt."""
    from storage.checkpoint.archive import MAX_GRAPH_BYTES
    from storage.checkpoint.document import parse_document
    from storage.checkpoint.graph import build_graph
    from storage.checkpoint.manifest import GraphEntry
    from storage.checkpoint.program import pack_program

    packed = pack_program(program, inputs, outputs)
    weights = {
        key: torch.from_numpy(value.copy()).view(torch.bfloat16)
        if packed.weight_dtypes.get(key) == "BF16"
        else torch.from_numpy(value.copy())
        for key, value in packed.weights.items()
    }
    entry = GraphEntry(inputs=packed.inputs, outputs=packed.outputs, torch_version=packed.torch_version)
    return build_graph(parse_document(packed.document, max_bytes=MAX_GRAPH_BYTES), weights, entry)


class _Checker:
    """Compares the halves with the module, and scores the golden requests with the module itself."""

    def __init__(self, half: DenseHalf, plan: CutPlan, tables: Mapping[str, TableData], tolerance: float) -> None:
        self._half = half
        self._plan = plan
        self._tables = tables
        self._tolerance = tolerance
        self._engine = FeatureEngine(plan.spec)
        self._names = half.output_names
        self._graph: DenseGraph | None = None
        self.sample_tensors = self._tensors(plan.columns, plan.rows)

    def check_sample(self, wanted: Mapping[str, Tensor]) -> None:
        """The module's own outputs against its cut self, fed by the lookup half."""
        got = self._module_outputs(self.sample_tensors)
        shaped = {name: value.reshape(got[name].shape).numpy() for name, value in wanted.items()}
        self._compare(shaped, got, "the two halves do not give the module's own outputs")

    def check_graph(self, graph: DenseGraph) -> None:
        """The exported half against the module, on the sample and at batch 1 and 2; a row must not see the others."""
        self._graph = graph
        whole = self._module_outputs(self.sample_tensors)
        self._compare(whole, self._graph_outputs(self.sample_tensors), "the exported graph, on the sample")
        for rows in (1, 2):
            tensors = first_rows(self.sample_tensors, rows)
            alone = self._module_outputs(tensors)
            self._compare(alone, self._graph_outputs(tensors), f"the exported graph, at batch {rows}")
            # Rounding differs with the batch's size, so a little more is accepted here.
            within = {name: values[:rows] for name, values in whole.items()}
            self._compare(within, alone, f"the first rows alone (batch {rows})", factor=10.0)

    def golden(self, columns: Mapping[str, Column], rows: int) -> Golden:
        """The golden requests with the module's outputs; the exported half must reproduce them."""
        tensors = self._tensors(columns, rows)
        outputs = self._module_outputs(tensors)
        for name, values in outputs.items():
            if not np.all(np.isfinite(values)):
                raise ParityError(f"output {name!r}: the module gives values that are not finite for golden requests")
        self._compare(outputs, self._graph_outputs(tensors), "the exported graph, on the golden requests")
        scale = max((float(np.abs(values).max(initial=0.0)) for values in outputs.values()), default=1.0)
        return Golden(columns, rows, outputs, min(self._tolerance * max(1.0, scale), 0.5))

    def _tensors(self, columns: Mapping[str, Column], rows: int) -> list[Tensor]:
        return graph_tensors(self._engine.run(columns, rows), self._plan, self._tables)

    def _module_outputs(self, tensors: list[Tensor]) -> dict[str, np.ndarray]:
        with self._half.cut() as half:
            return output_arrays(self._names, half(*tensors))

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
            accepted = factor * self._tolerance * max(1.0, float(np.abs(values).max(initial=0.0)))
            difference = float(np.abs(values - other).max(initial=0.0))
            if not difference <= accepted:
                raise ParityError(
                    f"{what}: output {name!r} differs by {difference:.3g}, at most {accepted:.3g} is "
                    "accepted; a module that draws random numbers, or depends on other rows of its batch, cannot be cut"
                )
