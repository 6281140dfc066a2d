"""publish(): turns a module into a version in a model repository.

The embedding layers are taken out and become tables; the rest is exported. Both halves together must give the module's
own outputs, on the sample, on every golden request, and at batch 1, or nothing is published.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from storage.checkpoint import DenseGraph, PublishedVersion, write_version
from storage.checkpoint.fingerprint import weights_fingerprint
from storage.checkpoint.program import PackedProgram, pack_program
from storage.errors import InvalidInput
from storage.features import Column, FeatureSpec
from storage.specs import check_model_name
from trainer.embedding.whole_table import at_first
from trainer.evaluate import evaluation_mode
from trainer.progress import Display
from trainer.publishing.delta_content import live_weights
from trainer.publishing.embedding_layers import tables_of
from trainer.publishing.export import export_half
from trainer.publishing.golden import golden_columns
from trainer.publishing.lineage import Lineage
from trainer.publishing.parity import ParityChecker
from trainer.publishing.prepared_module import PreparedModule, unwrapped
from trainer.publishing.row_types import RowTypes, rounding_metadata
from trainer.publishing.target import Target
from trainer.ranks import Ranks

GOLDEN_REQUESTS_AT_LEAST = 256
# Steps by which write_prepared advances a display.
STEPS = 4


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
    row_types: str | Mapping[str, str] | None = None,
    progress: bool = False,
) -> Path:
    """Publishes a module with embedding layers as repository/name/VERSION and returns that folder.

    repository: a folder, or a URL such as s3://bucket/models; then the folder returned is a copy on this machine.

    module: any nn.Module whose embedding layers are ours, nn.Embedding or nn.EmbeddingBag. It is published as in eval()
    and left in its mode. sample_batch: two rows or more. Without a spec: the argument of forward() (a tensor, a tuple
    of arguments, a mapping of names), ids as int64 or int32, dense features as float32; names of inputs come from it.
    With a spec: raw columns by input (storage.features.Column); the module is called with what the feature engine makes
    of them. version: None takes the next number. golden_requests: rows drawn from the sample, 256 or more. tolerance:
    how far a served output may be from the module's own, times the largest output if that is above 1; what rounding
    alone changes is always accepted. row_types: how rows are stored: fp32, fp16, bf16 or int8, for all tables or by
    table ("default" for the rest). Raises Unsupported for a module that cannot be cut, ParityError when the halves do
    not give the module's outputs. Several ranks that have the module's tables call it together.
    """
    check_golden_requests(golden_requests)
    check_model_name(name)
    target = Target.of(repository, name)
    module = unwrapped(module)

    def published() -> Path:
        target.bring(Lineage())
        with evaluation_mode(module), Display(visible=progress) as display, torch.no_grad():
            display.begin(f"publishing {name}: sample", STEPS + 1)
            prepared = PreparedModule.of(module, sample_batch, spec)
            display.advance()
            snapshot = secrets.token_hex(16)
            folder = write_prepared(
                prepared,
                target.model_dir,
                golden_requests=golden_requests,
                tolerance=tolerance,
                display=display,
                version=target.claim_version(snapshot, version),
                snapshot=snapshot,
                max_batch_size=max_batch_size,
                metadata=dict(metadata or {}),
                row_types=RowTypes.of(row_types),
            )
            target.publish(folder)
            display.say(f"published {target.shown(folder)}")
        return folder

    tables = tables_of(module)
    return at_first(tables[0].ranks if tables else Ranks(), tables, published, target.model_dir)


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
    graph = _loaded(packed)
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


def _loaded(packed: PackedProgram) -> DenseGraph:
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
