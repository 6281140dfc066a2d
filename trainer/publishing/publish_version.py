"""Writes a prepared module as a version: both halves, rows, golden requests, and the checks between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from storage.checkpoint import DenseGraph, PublishedVersion, write_version
from storage.checkpoint.fingerprint import weights_fingerprint
from storage.checkpoint.program import PackedProgram, pack_program
from storage.errors import InvalidInput
from storage.features import Column
from trainer.progress import Display
from trainer.publishing.delta_content import live_weights
from trainer.publishing.export import export_half
from trainer.publishing.golden import golden_columns
from trainer.publishing.parity import ParityChecker
from trainer.publishing.prepared_module import PreparedModule
from trainer.publishing.row_types import RowTypes, rounding_metadata

GOLDEN_REQUESTS_AT_LEAST = 256
# Steps by which write_prepared advances a display.
STEPS = 4


def write_prepared(
    prepared: PreparedModule,
    model_dir: Path,
    *,
    golden_requests: int,
    tolerance: float,
    display: Display,
    metadata: Mapping[str, Any],
    row_types: RowTypes,
    before: PublishedVersion | None = None,
    pools: Sequence[Mapping[str, Column]] = (),
    **described: Any,
) -> Path:
    """Writes a prepared module as a version. Call it inside eval() and no_grad().

    described: the other arguments of write_version. before: a version whose row types are kept where `row_types` asks
    for none. pools: raw rows that were trained on lately, for golden requests where the sample reaches too little.
    """
    plan = prepared.plan
    names = [source.name for source in plan.tables]
    row_types.check_names(names)
    stored_as = row_types.resolved(names, before)
    tables = [source.data(stored_as[source.name]) for source in plan.tables]
    display.advance()
    codecs = {table.name: table.codec for table in tables}
    checker = ParityChecker(prepared, {table.name: table for table in tables}, codecs, tolerance)
    tensors = checker.sample_tensors()
    checker.check_sample(tensors)
    program = export_half(prepared.half, tensors)
    inputs = plan.graph_inputs()
    # Once, for the check and for the file: nothing else of a publication takes as long.
    packed = pack_program(program, inputs, prepared.outputs)
    graph = loaded_graph(packed)
    checker.check_graph(graph, tensors)
    display.advance()
    columns, rows = golden_columns(plan.columns, plan.spec, tables, golden_requests, pools)
    golden = checker.golden(columns, rows)
    display.advance()
    folder = write_version(
        model_dir,
        spec=plan.spec,
        tables=tables,
        graph=packed,
        graph_inputs=inputs,
        graph_outputs=prepared.outputs,
        golden=golden,
        fingerprints={source.name: source.fingerprint(stored_as[source.name]) for source in plan.tables},
        dense_fingerprint=weights_fingerprint(live_weights(prepared.half, graph)),
        metadata={**metadata, **rounding_metadata(tables)},
        **described,
    )
    display.advance()
    return folder


def check_golden_requests(golden_requests: int) -> None:
    """Raises InvalidInput when there are fewer golden requests than a server requires."""
    if golden_requests < GOLDEN_REQUESTS_AT_LEAST:
        raise InvalidInput(
            f"golden_requests is {golden_requests}, expected {GOLDEN_REQUESTS_AT_LEAST} or more",
            field="golden_requests",
        )


def loaded_graph(packed: PackedProgram) -> DenseGraph:
    """Returns the graph as a server will have it: checked, rebuilt."""
    from storage.checkpoint.archive import MAX_GRAPH_BYTES
    from storage.checkpoint.document import parse_document
    from storage.checkpoint.graph import build_graph
    from storage.checkpoint.manifest import GraphEntry

    weights = {
        key: torch.from_numpy(value.copy()).view(torch.bfloat16)
        if packed.weight_dtypes.get(key) == "BF16"
        else torch.from_numpy(value.copy())
        for key, value in packed.weights.items()
    }
    entry = GraphEntry(inputs=packed.inputs, outputs=packed.outputs, torch_version=packed.torch_version)
    return build_graph(parse_document(packed.document, max_bytes=MAX_GRAPH_BYTES), weights, entry)
