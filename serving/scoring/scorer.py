"""Scores the rows of files as of a snapshot, with the engine that serves: same features, lookups, graph."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from serving.engine.replay import ModelParts
from serving.engine.validation import Claims, validate
from serving.model_config.options import ModelOptions
from serving.pipeline.host import Pipeline
from serving.pipeline.snapshot import Snapshot
from storage.checkpoint import GraphOutput
from storage.checkpoint.as_of import AsOf
from storage.checkpoint.manifest import GraphInput
from storage.data import Data, DataOptions, DataRows, Wanted
from storage.errors import ConfigError, InvalidInput
from storage.features import Column, FeatureBatch, FeatureSpec, column_from_arrow
from storage.features.dtypes import NUMPY_DTYPES
from storage.paths import local_path
from storage.tiers.tiered import LoadProgress, TieredStore

# Called after each batch that is written: rows so far, rows in all.
Progress = Callable[[int, int], None]
_AHEAD = 2  # batches that wait or are worked on, for each thread


class Scorer:
    """A snapshot that is loaded and has passed the validation, ready to score; a context manager.

    folder: where its store goes; it may be deleted afterwards or given again. dram_bytes: what rows may take in memory;
    None: all. Raises CheckpointError, StoreError, and ParityError when golden requests get other scores.
    """

    def __init__(
        self, as_of: AsOf, folder: Path, *, dram_bytes: int | None = None, progress: LoadProgress | None = None
    ) -> None:
        self.as_of = as_of
        version = as_of.version
        self._store = TieredStore.open(folder, version.tables, dram_bytes=dram_bytes)
        try:
            self._store.load(version, progress)
            self._parts = ModelParts(version, self._store)
            self._snapshot = self._raise_to(as_of)
            self._own = threading.local()
        except BaseException:
            self._store.close()
            raise

    @property
    def spec(self) -> FeatureSpec:
        """The spec of the inputs that the rows must have."""
        return self._parts.spec

    @property
    def outputs(self) -> tuple[GraphOutput, ...]:
        """The outputs that `score` returns, in this order."""
        return tuple(self._parts.graph.outputs)

    def score(self, columns: Mapping[str, Column], rows: int) -> list[np.ndarray]:
        """Scores some rows. Thread-safe. Raises InvalidInput naming the input at fault."""
        pipeline: Pipeline | None = getattr(self._own, "pipeline", None)
        if pipeline is None:
            torch.set_num_threads(1)
            pipeline = self._own.pipeline = self._parts.processor_pipeline(None)
        made = pipeline.features([(columns, rows)])
        return pipeline.score([features for features, _ in made], self._snapshot).outputs

    @property
    def graph_inputs(self) -> tuple[GraphInput, ...]:
        """The inputs of the dense graph, in the order of `tensors`."""
        return self._parts.graph.inputs

    def features(self, columns: Mapping[str, Column], rows: int) -> FeatureBatch:
        """Makes the features of some rows. Thread-safe. Raises InvalidInput naming the input at fault."""
        return self._parts.features(columns, rows)

    def tensors(self, features: FeatureBatch) -> list[torch.Tensor]:
        """Looks features up, and returns the inputs of the dense graph that they make."""
        return self._parts.graph_inputs(features, self._snapshot)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
        """Runs the dense graph over inputs that `tensors` made, of this snapshot or of one with the same inputs."""
        return [output.numpy().copy() for output in self._snapshot.graph.run(list(tensors))]

    def close(self) -> None:
        """Closes the store."""
        self._store.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _raise_to(self, as_of: AsOf) -> Snapshot:
        """Brings the store to the snapshot: stages, judges as a server would, and merges one delta after the other."""
        version = as_of.version
        snapshot = Snapshot.of_version(version, version.graph())
        options = ModelOptions(live_guard=False)
        golden = version.golden()
        steps = [version.snapshot, *(delta.snapshot for delta in as_of.deltas)]
        if self._store.at not in steps:
            raise ConfigError(
                f"the store {self._store.ssd.path} is at the snapshot {self._store.at}, which {as_of} does not come "
                "from; give another folder",
                field="store",
            )
        first = snapshot.graph
        start = steps.index(self._store.at)  # more than 0 for one that is given again
        if start == 0:
            validate(
                self._parts, None, snapshot, golden, None, options=options, claims=Claims.of_version(version.manifest)
            )
        for number, delta in enumerate(as_of.deltas):
            manifest = delta.manifest
            overlay = None if number < start else self._store.stage(delta)
            snapshot = Snapshot(
                delta.snapshot,
                manifest.version,
                manifest.sequence,
                snapshot.mask | (0 if overlay is None else 1 << overlay),
                first.with_weights(
                    delta.weights((snapshot.graph if delta.dense_against == snapshot.id else first).weights())
                ),
                manifest.created_unix_ms,
                delta.path,
            )
            if overlay is not None or number == len(as_of.deltas) - 1:
                golden = delta.golden(self._parts.spec, self._parts.graph)
                claims = Claims(manifest.dense_fingerprint) if overlay is None else Claims.of_delta(manifest, overlay)
                validate(self._parts, None, snapshot, golden, None, options=options, claims=claims)
            if overlay is not None:
                self._store.merge(overlay, at=delta.snapshot, hurry=lambda: True)
        return snapshot


def open_source(
    spec: FeatureSpec, source: Data, keep: Sequence[str] = (), options: DataOptions | None = None
) -> DataRows:
    """Opens files of rows, or folders of them, that a version with this spec can score.

    keep: columns that are copied into the result. options: how the files are laid out. Raises ConfigError naming the
    file and the column that is missing, or of another type than in training: before a model is loaded for it.
    """
    return DataRows.open(source, Wanted(spec.inputs, keep=keep), options)


def score_parquet(
    scorer: Scorer,
    source: DataRows,
    target: Path,
    *,
    keep: Sequence[str] = (),
    batch_rows: int = 4096,
    threads: int = 1,
    progress: Progress | None = None,
) -> int:
    """Scores every row of `open_source` into a Parquet file; returns the number of rows.

    The result has the columns `keep` of the source (those that it was opened with), then one column an output: a
    number, or a list where an output is wider; its metadata names the snapshot. Rows keep their order. The file appears
    under its name when it is complete. Raises InvalidInput naming the column or input at fault, and the rows that it is
    in.
    """
    target = local_path(target, "target")
    total = source.rows
    schema = pa.schema(
        [source.schema.field(name) for name in keep] + [_output_field(entry) for entry in scorer.outputs],
        metadata=_metadata(scorer.as_of),
    )
    unfinished = target.with_name(target.name + ".part")
    done = 0
    try:
        with pq.ParquetWriter(unfinished, schema) as writer:
            for batch, outputs in _scored(scorer, source, batch_rows, threads):
                arrays = [batch.column(name) for name in keep] + [_output_array(values) for values in outputs]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                done += batch.num_rows
                if progress is not None:
                    progress(done, total)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return done


def _scored(
    scorer: Scorer, source: DataRows, batch_rows: int, threads: int
) -> Iterator[tuple[pa.RecordBatch, list[np.ndarray]]]:
    """Yields batches with their scores, in order; at most _AHEAD batches a thread are under way."""

    def work(batch: pa.RecordBatch, first: int) -> list[np.ndarray]:
        try:
            columns = {entry.name: column_from_arrow(batch.column(entry.source), entry) for entry in scorer.spec.inputs}
            return scorer.score(columns, batch.num_rows)
        except InvalidInput as error:
            raise InvalidInput(
                f"rows {first} to {first + batch.num_rows - 1}: {error} (row 0 of these is {source.place_of(first)})",
                field=error.field or "source",
            ) from None

    waiting: deque[tuple[pa.RecordBatch, Future[list[np.ndarray]]]] = deque()
    first = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="emberline-score") as pool:
        try:
            for batch in source.batches(batch_rows):
                waiting.append((batch, pool.submit(work, batch, first)))
                first += batch.num_rows
                if len(waiting) >= _AHEAD * threads:
                    batch, future = waiting.popleft()
                    yield batch, future.result()
            while waiting:
                batch, future = waiting.popleft()
                yield batch, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _output_field(entry: GraphOutput) -> pa.Field:
    kind = pa.from_numpy_dtype(NUMPY_DTYPES[entry.dtype])
    width = math.prod(entry.shape[1:])
    return pa.field(entry.name, kind if width == 1 else pa.list_(kind, width))


def _output_array(values: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    width = math.prod(values.shape[1:])
    return flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def _metadata(as_of: AsOf) -> dict[bytes, bytes]:
    return {
        b"emberline.snapshot": as_of.id.encode(),
        b"emberline.version": str(as_of.version.version).encode(),
        b"emberline.sequence": str(as_of.sequence).encode(),
    }
