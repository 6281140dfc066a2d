"""Checks that a version's GPUs give the scores of the trainer and of the processor, before a snapshot is served."""

from __future__ import annotations

import logging

import numpy as np

from serving.engine.devices import FP32_TOLERANCE
from serving.engine.replay import ModelParts, Tolerances, replay_golden, user_side_difference
from serving.gpu.device_model import DeviceModel
from serving.gpu.pipeline import GpuPipeline
from serving.pipeline.runners import largest_difference
from serving.pipeline.snapshot import Snapshot
from serving.pipeline.user_side import take_rows
from storage.checkpoint import Golden
from storage.errors import DeviceError, DeviceLost, DeviceOutOfMemory, ParityError
from storage.features import FeatureBatch

logger = logging.getLogger("emberline.serving")

# Larger batches are compared with the scores of their first rows, which repeat.
_WHOLE_ROWS = 1024


def check_devices(parts: ModelParts, snapshot: Snapshot, golden: Golden, precision: str) -> float:
    """Replays golden requests on every GPU in use; the first time, it also compares batches of every size.

    Returns the largest difference to the golden scores. Raises ParityError, or gives a GPU up for this version where
    the processor may answer.
    """
    worst = 0.0
    devices = parts.devices
    allowed = tolerances(golden, precision)
    for each in devices.in_use():
        try:
            if not each.model.is_checked and golden.batch:
                # Comes first: it finds out whether batches may be padded, as those of the replay are.
                _check_sizes(parts, each, snapshot, golden, allowed)
                each.model.is_checked = True
            worst = max(worst, replay_golden(parts, snapshot, golden, each, allowed))
        except DeviceOutOfMemory as error:
            if not devices.falls_back:
                raise
            logger.warning("%s: %s was not asked: %s", parts.name, each.model.driver.info, error)
        except (DeviceError, ParityError) as error:
            if isinstance(error, DeviceLost):
                each.model.give_up(str(error))
                if devices.first() is not None:
                    continue  # another GPU decides whether the snapshot passes
            if not devices.falls_back:
                raise
            each.model.give_up(str(error))
    return worst


def tolerances(golden: Golden, precision: str) -> Tolerances:
    """Returns the largest allowed difference of each output of a GPU to the trainer's.

    That is the version's tolerance of it, and for fp32 at least FP32_TOLERANCE times the larger of 1 and the output's
    own largest value. Integer outputs must be equal.
    """
    found: Tolerances = {}
    for name, values in golden.outputs.items():
        found[name] = golden.allowed(name)
        if values.dtype.kind != "f":
            found[name] = 0.0
        elif precision == "fp32":
            largest = float(np.abs(values).max(initial=0.0))
            found[name] = max(golden.allowed(name), FP32_TOLERANCE * max(1.0, largest))
    return found


def _check_sizes(
    parts: ModelParts, pipeline: GpuPipeline, snapshot: Snapshot, golden: Golden, allowed: Tolerances
) -> None:
    """Compares batches of every size with the processor's scores.

    Among them are batches that are padded with zeros, and batches with the user's side computed once for each user.
    Where a row's scores depend on the rows beside it, nothing is padded. Raises ParityError.
    """
    model = pipeline.model
    features = parts.features(golden.columns, golden.batch)
    mixes = parts.mixes_rows(features, snapshot)
    if mixes:
        model.no_padding(mixes)
    elif parts.user_side is not None and parts.user_side.is_on:
        differs, output = user_side_difference(parts, snapshot, golden, pipeline)
        if not differs <= allowed[output]:
            raise _unlike(model, f"output {output!r} with the user's side once a user", differs, allowed[output])
    for bucket in model.buckets.all:
        # Where rows do not depend on each other, a large batch repeats the same rows.
        period = bucket.size if mixes or bucket.size <= _WHOLE_ROWS else golden.batch
        full = take_rows(features, np.arange(bucket.size) % golden.batch)
        _compare(parts, pipeline, snapshot, full, min(period, bucket.size), allowed)
        if bucket.low < bucket.size:
            part = take_rows(full, np.arange(bucket.low))
            _compare(parts, pipeline, snapshot, part, min(period, bucket.low), allowed)


def _compare(
    parts: ModelParts,
    pipeline: GpuPipeline,
    snapshot: Snapshot,
    batch: FeatureBatch,
    period: int,
    allowed: Tolerances,
) -> None:
    """Compares one batch with the processor's scores. period: the number of rows after which the batch repeats."""
    expected = parts.score_once(take_rows(batch, np.arange(period)), snapshot, parts.processor)
    got = parts.score_once(batch, snapshot, pipeline)
    again = np.arange(batch.batch) % period
    for entry, one, other in zip(parts.graph.outputs, got, expected, strict=True):
        differs = largest_difference(one, other[again])
        if not differs <= allowed[entry.name]:
            what = f"output {entry.name!r} of a batch of {batch.batch} row(s)"
            raise _unlike(pipeline.model, what, differs, allowed[entry.name])


def _unlike(model: DeviceModel, what: str, differs: float, allowed: float) -> ParityError:
    return ParityError(
        f"{model.driver.info}: {what} differs by {differs:.3g} from the processor's, at most {allowed:.3g} is allowed"
    )
