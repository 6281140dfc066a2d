"""Writes a pending delta: what changed, golden requests scored by the module, one folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from storage.checkpoint import DenseGraph, PublishedDelta, PublishedVersion, next_sequence, open_delta, write_delta
from storage.checkpoint.deltas import DELTAS, sequence_name
from storage.checkpoint.fingerprint import weights_fingerprint
from storage.checkpoint.program import document_of
from storage.errors import CheckpointError, LineageError
from storage.features import Column
from trainer.event_times import event_times
from trainer.progress import Display
from trainer.publishing.delta_content import Changes, live_weights, weight_arrays
from trainer.publishing.delta_golden import delta_requests
from trainer.publishing.earlier_weights import WeightsOfLine
from trainer.publishing.export import export_half
from trainer.publishing.lineage import Pending
from trainer.publishing.parity import ParityChecker
from trainer.publishing.prepared_module import PreparedModule
from trainer.publishing.row_types import codecs_of, rounding_metadata

_ATTEMPTS = 100


class DeltaWriter:
    """Writes deltas of one version, whose graph it keeps loaded. Used inside eval() and no_grad()."""

    def __init__(self, prepared: PreparedModule, version: PublishedVersion, full_weights_every: int) -> None:
        self.prepared = prepared
        self.version = version
        self._line = WeightsOfLine(full_weights_every)

    @cached_property
    def graph(self) -> DenseGraph:
        """The version's dense graph, with the weights that it was published with."""
        return self.version.graph()

    @cached_property
    def _reaching_all(self) -> Mapping[str, Column]:
        return self.version.golden().columns

    def is_current(self, tolerance: float) -> bool:
        """Returns whether the version's graph, with the module's weights, computes what the module computes now.

        A delta changes weights, not the graph, so after a change in the module's code or in a number that the graph
        holds another version is needed. Scores of the sample do not show every change, such as another limit that none
        of them reaches, so the module is exported and its graph compared too. Raises Unsupported when it cannot be.
        """
        if self.version.manifest.graph.outputs != self.prepared.outputs:
            return False
        try:
            graph = self.graph.with_weights(live_weights(self.prepared.half, self.graph))
        except CheckpointError:
            return False
        checker = ParityChecker(self.prepared, self.prepared.rows, {}, tolerance, graph)
        if not checker.is_graph_of_module():
            return False
        if self.version.manifest.graph.torch_version != str(torch.__version__):
            return True  # another release of torch writes the same computation in another way
        program = export_half(self.prepared.half, checker.sample_tensors())
        return document_of(program)[1].computation() == self.version.computation()

    def write(
        self,
        pending: Pending,
        changes: Changes,
        *,
        pools: Sequence[Mapping[str, Column]],
        golden_requests: int,
        tolerance: float,
        metadata: Mapping[str, Any],
        display: Display,
        exactly: bool = False,
    ) -> PublishedDelta:
        """Writes the delta under the sequence that was drawn for it, or the next free one.

        pools: raw rows that were trained on lately, to draw golden requests from beside the sample. exactly: under that
        sequence or not at all; then LineageError is raised when another publisher took it.
        """
        prepared, tables, changed = self.prepared, self.prepared.rows, changes.tables
        weights = live_weights(prepared.half, self.graph)
        requests = delta_requests(
            prepared.engine,
            [*pools, prepared.plan.columns],
            changed,
            tables,
            golden_requests,
            lambda: self._reaching_all,
        )
        rows = sum(len(table.ids) for table in changed)
        if rows and 2 * requests.reaching < requests.rows:
            display.say(
                f"{pending.snapshot}: {requests.reaching} of {requests.rows} golden requests reach a changed row; "
                "offer the publisher rows that were trained on"
            )
        codecs = codecs_of(self.version)
        checker = ParityChecker(prepared, tables, codecs, tolerance, self.graph.with_weights(weights))
        golden = checker.golden(requests.columns, requests.rows)
        arrays, dtypes = weight_arrays(weights)
        delta = self._install(
            pending,
            exactly,
            snapshot=pending.snapshot,
            base=self.version.snapshot,
            parent=pending.parent,
            applies_to=pending.applies_to,
            from_sequence=pending.from_sequence,
            tables=changed,
            weights=arrays,
            weight_dtypes=dtypes,
            weights_before=self._line.before(self.version, self.graph, pending),
            golden=golden,
            outputs=self.version.manifest.graph.outputs,
            fingerprints=changes.fingerprints,
            dense_fingerprint=weights_fingerprint(live_weights(prepared.half, self.graph)),
            created_unix_ms=pending.created_unix_ms,
            events=event_times(pending.events),
            metadata={
                **metadata,
                **rounding_metadata(changed),
                "golden": {
                    "requests": requests.rows,
                    "reaching_changed": requests.reaching,
                    "changed_ids_reached": requests.ids_reached,
                },
            },
        )
        dense = delta.manifest.dense
        self._line.published(delta.snapshot, 0 if dense is None else dense.depth, arrays)
        return delta

    def _install(self, pending: Pending, exactly: bool, **parts: Any) -> PublishedDelta:
        folder = self.version.path
        sequence = pending.sequence
        for _ in range(_ATTEMPTS):
            try:
                return open_delta(write_delta(folder, sequence=sequence, **parts), verify=False)
            except CheckpointError:
                # Another publisher of this version may have drawn the same number.
                if not os.path.lexists(folder / DELTAS / sequence_name(sequence)):
                    raise
                if exactly:
                    raise LineageError(f"{folder}: another publisher was first with the delta {sequence}") from None
            sequence = max(sequence + 1, next_sequence(folder))
        raise CheckpointError(f"{folder}: no free sequence in {_ATTEMPTS} attempts; other publishers keep winning")
