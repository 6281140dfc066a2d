"""Replays requests beside live traffic: scores them slice by slice on any snapshot, by the code of live requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from serving.engine.devices import Devices, ReplayPipeline
from serving.engine.recent import RecentRequest
from serving.engine.version_parts import VersionParts
from serving.gpu.device_model import REPLAY_ROWS
from serving.gpu.driver import Gpus
from serving.model_config.instance_groups import Place
from serving.model_config.pbtxt import ModelConfig
from serving.pipeline.host import ScoringPipeline
from serving.pipeline.runners import choose_runner, describe, largest_difference
from serving.pipeline.snapshot import Snapshot
from serving.pipeline.stacked import Inputs, use_stacked
from serving.pipeline.user_side import SidedBatch, take_rows
from storage.checkpoint import Golden, GraphOutput, PublishedVersion
from storage.errors import DeviceError, ParityError
from storage.features import Column, FeatureBatch
from storage.tiers.tiered import TieredStore

# Rows scored at once, and the longest pause after them, in which live sessions get the interpreter and the cores.
SLICE_ROWS = REPLAY_ROWS
MAX_REST_S = 0.005
# Scores of rows that are computed in batches of different sizes differ by the rounding of torch's kernels.
_SIDES_AGREE = 1e-5

# The largest allowed difference to the expected scores, by output.
Tolerances = dict[str, float]

logger = logging.getLogger("emberline.serving")


@dataclass(frozen=True)
class Replayed:
    """Holds the scores of replayed requests."""

    #: One array for each output, in the graph's order.
    outputs: list[np.ndarray]
    #: Ids that were looked up in total.
    ids: int
    #: Ids without a row.
    absent: int


class ModelParts(VersionParts):
    """Holds the parts of a version, the GPUs that it is on, and pipelines for replays.

    Thread-safe; one replay runs at a time.
    """

    def __init__(self, published: PublishedVersion, store: TieredStore, *, torch_threads: int = 1) -> None:
        super().__init__(published, store)
        self.devices = Devices(self)
        self._torch_threads = torch_threads
        self._lock = threading.Lock()
        # One pipeline for the life of the version, because its plan belongs to the store for as long as that is open.
        self.processor = self.processor_pipeline(None)

    def pipeline(
        self, lookup_timeout_s: float | None, place: Place = None, snapshot: Snapshot | None = None
    ) -> ScoringPipeline:
        """Creates a pipeline for a session at `place`; one thread at a time may use it.

        snapshot: the one with which a GPU warms up. Raises DeviceError.
        """
        if place is None:
            return self.processor_pipeline(lookup_timeout_s)
        assert snapshot is not None
        return self.devices.pipeline(lookup_timeout_s, place, snapshot)

    def open_devices(
        self, config: ModelConfig, gpus: Gpus | None, snapshot: Snapshot, max_batch_size: int
    ) -> tuple[Place, ...]:
        """Copies the weights to the GPUs of `config.places`; returns the places that are left. See `Devices.open`."""
        return self.devices.open(config, gpus, snapshot, max_batch_size)

    def close(self) -> None:
        """Frees the memory on the GPUs."""
        self.devices.close()

    def features(self, columns: Mapping[str, Column], batch: int) -> FeatureBatch:
        """Runs the feature engine over one request. Raises InvalidInput naming the input at fault."""
        return self.engine.run(columns, batch)

    def recalled(self, request: RecentRequest) -> FeatureBatch:
        """Returns the features of a recent request; pauses if they had to be made. Raises InvalidInput."""
        started = time.thread_time()
        features = request.features_of(self.engine)
        if request.engine is not self.engine:
            _rest(started)
        return features

    def graph_inputs(self, features: FeatureBatch, snapshot: Snapshot) -> list[torch.Tensor]:
        """Returns copies of the dense graph's inputs for a batch."""
        with self._lock:
            return [tensor.clone() for tensor in self.processor.graph_inputs(features, snapshot)[0]]

    def choose_runner(self, snapshot: Snapshot, golden: Golden, names: Sequence[str]) -> None:
        """Chooses the fastest of the named runners for the snapshot's graph by golden requests; only the first time.

        Its inputs come stacked from then on, if that changes no bit of the outputs.
        """
        program = snapshot.graph.program
        if program.candidates or golden.batch == 0 or not names:
            return
        columns, batch = next(_cut(golden))
        features = self.features(columns, batch)
        parts = [take_rows(features, np.arange(rows)) for rows in sorted({1, batch})]
        batches = [self.graph_inputs(part, snapshot) for part in parts]
        torch.set_num_threads(self._torch_threads)
        program.candidates = choose_runner(snapshot.graph, names, batches, golden.tolerance)
        logger.info("%s: the dense graph is run by %r; %s", snapshot, program.runner, describe(program.candidates))
        with self._lock:
            why_not = use_stacked(snapshot.graph, [self._inputs_of(part, snapshot) for part in parts])
        logger.info(
            "%s: inputs of the dense graph come %s", snapshot, f"one by one: {why_not}" if why_not else "stacked"
        )

    def _inputs_of(self, features: FeatureBatch, snapshot: Snapshot) -> Inputs:
        return lambda graph: self.processor.graph_inputs(features, snapshot, graph)[0]

    def mixes_rows(self, features: FeatureBatch, snapshot: Snapshot) -> str:
        """Returns how a row's outputs depend on the rows beside it; "" when they do not.

        It puts rows of NaN and of huge values beside the others, whose outputs must not change, whatever a tolerance
        allows.
        """
        rows = min(features.batch, SLICE_ROWS // 2)
        batch = take_rows(features, np.arange(2 * rows) % rows)
        plain = self.graph_inputs(batch, snapshot)
        with self._lock:
            torch.set_num_threads(self._torch_threads)
            expected = snapshot.graph.run(plain)
            for strange in (float("nan"), 1e30, -1e30):
                inputs = [tensor.clone() for tensor in plain]
                for tensor in inputs:
                    if tensor.is_floating_point():
                        tensor[rows:] = strange
                for entry, one, other in zip(self.graph.outputs, snapshot.graph.run(inputs), expected, strict=True):
                    differs = largest_difference(one[:rows].numpy(), other[:rows].numpy())
                    if not differs <= _SIDES_AGREE:
                        return f"output {entry.name!r} of a row depends on the rows beside it"
        return ""

    def score_both_ways(
        self, batch: SidedBatch, snapshot: Snapshot, by: ReplayPipeline
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns a batch's outputs computed row by row, and those with the user's side computed once for each user."""
        with self._lock:
            torch.set_num_threads(self._torch_threads)
            whole = [values.copy() for values in by.score([batch.whole()], snapshot).outputs]
            return whole, by.score_sided(batch, snapshot).outputs

    def score_once(self, batch: FeatureBatch, snapshot: Snapshot, by: ReplayPipeline) -> list[np.ndarray]:
        """Returns the outputs of one batch, scored without cutting it."""
        with self._lock:
            torch.set_num_threads(self._torch_threads)
            return [values.copy() for values in by.score([batch], snapshot).outputs]

    def score(self, requests: Iterable[FeatureBatch], snapshot: Snapshot, by: ReplayPipeline | None = None) -> Replayed:
        """Scores requests on a snapshot, however slow the disk; pauses after each slice for as long as it computed.

        The pause is at most MAX_REST_S. by: None for a GPU where sessions run on one, else the processor.
        """
        first = by or self.devices.first() or self.processor
        try:
            return self._score(requests, snapshot, first)
        except DeviceError as error:
            if by is not None or not self.devices.falls_back:
                raise
            logger.warning("%s: requests are replayed on the processor: %s", self.name, error)
            return self._score(requests, snapshot, self.processor)

    def _score(self, requests: Iterable[FeatureBatch], snapshot: Snapshot, by: ReplayPipeline) -> Replayed:
        parts: list[list[np.ndarray]] = []
        ids = absent = 0
        with self._lock:
            # As in a session: the setting applies to this thread, and more threads would take the sessions' cores.
            torch.set_num_threads(self._torch_threads)
            started = time.thread_time()
            for part in _slices(requests):
                scores = by.score(part, snapshot)
                parts.append(scores.outputs)
                counts = scores.counts
                ids += sum(vars(counts).values())
                absent += counts.absent
                _rest(started)
                started = time.thread_time()
        outputs = [np.concatenate(values) for values in zip(*parts, strict=True)]
        return Replayed(outputs, ids, absent)


def replay_golden(
    parts: ModelParts,
    snapshot: Snapshot,
    golden: Golden,
    by: ReplayPipeline | None = None,
    allowed: Tolerances | None = None,
) -> float:
    """Returns the largest difference to the trainer's scores. Raises ParityError when one is over the tolerance.

    by: None for the processor. allowed: tolerances by output, instead of the version's own.
    """
    requests = (parts.features(columns, batch) for columns, batch in _cut(golden))
    outputs = parts.score(requests, snapshot, by or parts.processor).outputs
    return compare_golden(outputs, golden, parts.graph.outputs, allowed)


def check_user_side(parts: ModelParts, snapshot: Snapshot, golden: Golden, by: ReplayPipeline | None = None) -> None:
    """Compares the graph's halves with the whole graph on golden requests, with four rows for each user.

    Where they differ, because the graph mixes rows, the whole graph is computed from then on.
    """
    side = parts.user_side
    if side is None or side.is_checked or golden.batch == 0:
        return
    worst = user_side_difference(parts, snapshot, golden, by or parts.processor)
    side.is_checked, side.is_on = True, worst[0] <= max(golden.tolerance, _SIDES_AGREE)
    if not side.is_on:
        logger.warning(
            "%s: the user's side is computed for every row: once a user, output %r differs by %.3g",
            snapshot,
            worst[1],
            worst[0],
        )


def user_side_difference(
    parts: ModelParts, snapshot: Snapshot, golden: Golden, by: ReplayPipeline
) -> tuple[float, str]:
    """Returns the largest difference between scores with the user's side computed once and row by row, and its output.

    Each user has four rows.
    """
    side = parts.user_side
    if side is None or golden.batch == 0:
        return 0.0, ""
    columns, batch = next(_cut(golden))
    user, item = side.parts(parts.features(columns, batch))
    users = -(-batch // 4)
    sided = SidedBatch(take_rows(user, np.arange(users)), item, np.arange(batch) // 4)
    expected, got = parts.score_both_ways(sided, snapshot, by)
    pairs = zip(parts.graph.outputs, expected, got, strict=True)
    return max((largest_difference(other, one), entry.name) for entry, one, other in pairs)


def compare_golden(
    scores: Sequence[np.ndarray],
    golden: Golden,
    outputs: Sequence[GraphOutput],
    allowed: Tolerances | None = None,
) -> float:
    """Returns the largest difference between scores and the golden ones. Raises ParityError.

    allowed: tolerances by output, instead of the golden requests' own.
    """
    worst = 0.0
    for entry, values in zip(outputs, scores, strict=True):
        expected = golden.outputs[entry.name]
        if values.shape != expected.shape:
            raise ParityError(f"golden requests: output {entry.name!r} is {values.shape}, expected {expected.shape}")
        difference = np.abs(values.astype(np.float64) - expected.astype(np.float64))
        largest = float(difference.max(initial=0.0))
        tolerance = golden.allowed(entry.name) if allowed is None else allowed[entry.name]
        if not largest <= tolerance:
            place = np.unravel_index(int(np.argmax(np.nan_to_num(difference, nan=np.inf))), difference.shape)
            flat = difference.reshape(len(difference), -1)
            differing = int((~(flat <= tolerance)).any(axis=1).sum())
            raise ParityError(
                f"golden requests: output {entry.name!r} differs by {largest:.3g} in row {int(place[0])}, at most "
                f"{tolerance:.3g} is allowed: {float(values[place]):.6g} here, {float(expected[place]):.6g} by the "
                f"trainer; {differing} of {len(difference)} rows differ; it is not served"
            )
        worst = max(worst, largest)
    return worst


def _rest(started: float) -> None:
    time.sleep(min(MAX_REST_S, time.thread_time() - started))


def _cut(golden: Golden) -> Iterator[tuple[Mapping[str, Column], int]]:
    """Yields the golden rows as requests of one slice each; a column of one row stands for all rows."""
    for start in range(0, golden.batch, SLICE_ROWS):
        stop = min(start + SLICE_ROWS, golden.batch)
        columns = {
            name: column.slice(start, stop) if column.rows == golden.batch else column
            for name, column in golden.columns.items()
        }
        yield columns, stop - start


def _slices(requests: Iterable[FeatureBatch]) -> Iterator[list[FeatureBatch]]:
    part: list[FeatureBatch] = []
    rows = 0
    for request in requests:
        if part and rows + request.batch > SLICE_ROWS:
            yield part
            part, rows = [], 0
        part.append(request)
        rows += request.batch
    if part:
        yield part
