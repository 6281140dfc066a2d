"""Serves a table as a model of its own: it takes ids, and returns rows and whether each id has one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from tritonclient.grpc import model_config_pb2

from serving.engine.core_shares import CoreShares
from serving.engine.endpoint import Endpoint
from serving.model_config.options import ModelOptions
from serving.model_config.queue_settings import QueueSettings
from serving.pipeline.host import MadeFeatures, RawRequest, Scores, run_joined
from serving.pipeline.levels import LevelCounts
from serving.pipeline.snapshot import Snapshot, SnapshotHistory
from serving.pipeline.user_side import SidedFeatures
from serving.protocol.signature import ModelSignature, OutputSignature
from storage.features import FeatureBatch, FeatureEngine, FeatureSpec, can_join, concat_batches
from storage.specs import LookupSpec, TableSpec
from storage.tiers.tiered import COUNTED, TieredStore

MAX_IDS = 65_536
_IDS = "ids"
_SPEC = {
    "inputs": [{"name": _IDS, "dtype": "INT64", "nulls": "error"}],
    "features": [{"name": _IDS, "inputs": [_IDS], "output": "ids", "table": _IDS, "pooling": "none", "length": 1}],
}


class TablePipeline:
    """Looks up the rows of one table. Not thread-safe: it owns a lookup plan."""

    output_names: tuple[str, ...] = ("rows", "found")

    def __init__(self, store: TieredStore, table: str, lookup_timeout_s: float | None) -> None:
        #: Lookups for requests so far, as in Pipeline.counted.
        self.counted = np.zeros((len(store.tables), len(COUNTED)), np.uint64)
        self.levels = LevelCounts(())
        self._timeout_s = lookup_timeout_s
        self._engine = FeatureEngine(FeatureSpec.model_validate(_SPEC))
        self._plan = store.plan([LookupSpec(_IDS, table, "none", 1)])

    def prepare(self) -> None:
        """Does nothing."""

    def begin_requests(self) -> None:
        """Resets the counts of lookups to zero."""
        self.counted[:] = 0

    def features(self, requests: Sequence[RawRequest]) -> list[MadeFeatures]:
        """Returns the ids of requests."""
        if all(can_join(requests[0][0], columns) for columns, _ in requests[1:]):
            return run_joined(self._engine, requests)
        return [(self._engine.run(columns, batch), 1) for columns, batch in requests]

    def score(self, batches: Sequence[FeatureBatch | SidedFeatures], snapshot: Snapshot) -> Scores:
        """Returns the rows of several requests, all from one snapshot."""
        started_ns = time.monotonic_ns()
        whole = concat_batches([batch for batch in batches if isinstance(batch, FeatureBatch)])
        found = self._plan.lookup(whole.batch, [whole.ids[_IDS]], self._timeout_s, snapshot.mask)
        self.counted += found.by_table
        mask = found.masks[0]
        assert mask is not None
        outputs = [found.outputs[0][:, 0], mask[:, 0].astype(np.bool_)]
        return Scores(outputs, found.counts, time.monotonic_ns() - started_ns)

    def close(self) -> None:
        """Does nothing: the plan is closed with the store."""


class TableOwner(Protocol):
    """Is the part of a model version that the endpoint of one of its tables uses."""

    @property
    def name(self) -> str:
        """Returns the model's name."""

    version: str
    history: SnapshotHistory
    queue_settings: QueueSettings

    @property
    def unready(self) -> str:
        """See Endpoint."""

    def answers(self, version: str) -> bool:
        """See Endpoint."""

    @property
    def successor(self) -> TableOwner | None:
        """Returns the version that replaced this one."""

    def takes_canary(self, routing_key: str) -> bool:
        """See Endpoint."""

    def table(self, name: str) -> Endpoint:
        """Returns the endpoint of one of its tables."""


class TableEndpoint(Endpoint):
    """Answers for one table of a version: input `ids`, outputs `rows` and `found`. Its name is MODEL.TABLE.

    It has one session, and the queue settings and the snapshots of its model, including the canary's.
    """

    def __init__(
        self,
        model: TableOwner,
        table: TableSpec,
        store: TieredStore,
        options: ModelOptions,
        cores: CoreShares,
        lookup_timeout_s: float | None,
    ) -> None:
        self._model = model
        self._table = table.name
        outputs = [OutputSignature("rows", "FP32", (table.dim,)), OutputSignature("found", "BOOL", ())]
        spec = FeatureSpec.model_validate(_SPEC)
        signature = ModelSignature(f"{model.name}.{table.name}", spec.inputs, outputs, MAX_IDS)
        super().__init__(
            model.version,
            signature,
            _config(signature),
            model.history,
            replace(model.queue_settings, merge=True),
            options,
            lambda _: TablePipeline(store, table.name, lookup_timeout_s),
            places=(None,),
            cores=cores,
            owner=model.name,
        )

    def takes_canary(self, routing_key: str) -> bool:
        """Returns what the model returns, so that a key gets the rows that its scores are computed from."""
        return self._model.takes_canary(routing_key)

    @property
    def unready(self) -> str:
        """Returns the model's reason, because both use the same store."""
        return self._model.unready

    def answers(self, version: str) -> bool:
        """Returns what the model returns."""
        return self._model.answers(version)

    @property
    def successor(self) -> Endpoint | None:
        """Returns the same table of the version that replaced this one."""
        after = self._model.successor
        return None if after is None else after.table(self._table)


def _config(signature: ModelSignature) -> Any:
    config = model_config_pb2.ModelConfig(
        name=signature.model, backend="emberline", max_batch_size=signature.max_batch_size
    )
    config.input.add(name=_IDS, data_type=model_config_pb2.DataType.TYPE_INT64, dims=[1])
    for output, kind in zip(signature.outputs, ("TYPE_FP32", "TYPE_BOOL"), strict=True):
        config.output.add(name=output.name, data_type=model_config_pb2.DataType.Value(kind), dims=output.dims or (1,))
    return config
