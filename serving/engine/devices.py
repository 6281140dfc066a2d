"""The GPUs that one version is on: brought up when it is loaded, checked at the gate, left when they fail."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from serving.engine.instance_groups import Place
from serving.engine.pipeline import Pipeline
from serving.engine.precision import warn_if_slow
from serving.engine.runners import largest_difference
from serving.engine.snapshot import Snapshot
from serving.engine.user_side import take_rows
from serving.gpu.card_tables import CardTables, open_card_tables, prepare_cards
from serving.gpu.device_model import DeviceModel
from serving.gpu.driver import Driver, Gpus
from serving.gpu.pipeline import GpuPipeline
from storage.checkpoint import Golden
from storage.errors import ConfigError, DeviceError, DeviceLost, DeviceOutOfMemory, ParityError, Unsupported
from storage.features import FeatureBatch
from storage.hbm.cards import cards_of

if TYPE_CHECKING:
    from serving.engine.model_config import ModelConfig
    from serving.engine.replay import ModelParts

logger = logging.getLogger("emberline.serving")

# By output.
Tolerances = dict[str, float]
# What scores requests beside live traffic.
ReplayPipeline = Pipeline | GpuPipeline
# A GPU adds in another order than the trainer's processor: fp32 scores differ by this much, times the largest output
# if that is above 1, where a version asks for less.
FP32_TOLERANCE = 1e-5
# Larger batches are compared with the scores of their first rows, which come again.
_WHOLE_ROWS = 1024


class Devices:
    """Empty for a version on the processor alone. `open` once; then any thread, one replay at a time."""

    def __init__(self, parts: ModelParts) -> None:
        self.models: dict[int, DeviceModel] = {}
        # Whether the processor answers: sessions of its own, or what a GPU cannot.
        self.uses_processor = True
        self.falls_back = False
        self._parts = parts
        self._replays: dict[int, GpuPipeline] = {}

    def open(
        self, config: ModelConfig, gpus: Gpus | None, snapshot: Snapshot, max_batch_size: int
    ) -> tuple[Place, ...]:
        """Brings the weights to the GPUs of `config.places`, and returns the places of the sessions.

        A GPU that cannot be used is an error, or its sessions are on the processor, as configured. Raises DeviceError,
        Unsupported.
        """
        places = list(config.places)
        wanted = list(dict.fromkeys(place for place in places if place is not None))
        self.falls_back = config.may_use_processor
        self.uses_processor = self.falls_back or None in places
        try:
            across = self._share_rows(config, gpus, wanted)
        except BaseException:
            self.close()
            raise
        for index in wanted:
            try:
                assert gpus is not None
                self._open_one(index, config, gpus, snapshot, max_batch_size, across)
            except (DeviceError, Unsupported) as error:
                self._drop(index)
                if not self.falls_back:
                    self.close()
                    raise
                logger.warning("%s: the sessions of GPU %d are on the processor: %s", self._parts.name, index, error)
                places = [None if place == index else place for place in places]
            except BaseException:
                self.close()
                raise
        if None in places:
            warn_if_slow(self._parts.name, config.options.precision)
        return tuple(places)

    def pipeline(self, lookup_timeout_s: float | None, place: int, snapshot: Snapshot) -> ReplayPipeline:
        """For a session on a GPU; `prepare` captures its graphs. Raises DeviceError where only a GPU will do."""
        parts = self._parts
        model = self.models[place]
        if not self.falls_back:
            model.check_usable()
            return self._make(lookup_timeout_s, model, None, snapshot)
        try:
            model.check_usable()
            return self._make(lookup_timeout_s, model, lambda: parts.processor_pipeline(lookup_timeout_s), snapshot)
        except DeviceError as error:
            logger.warning("%s: a session of GPU %d is on the processor: %s", parts.name, place, error)
            return parts.processor_pipeline(lookup_timeout_s)

    def is_usable(self, place: Place) -> bool:
        """Whether sessions can be there."""
        return place is None or not self.models[place].given_up

    @property
    def max_rows(self) -> int:
        """The largest batch that everything here takes."""
        return min((model.inputs.max_rows for model in self.models.values()), default=2**31)

    @property
    def trouble(self) -> str:
        """Why nothing can be scored any more: every GPU is given up, and nothing else may answer. "" otherwise."""
        models = list(self.models.values())
        if self.uses_processor or not models or not all(each.given_up for each in models):
            return ""
        return f"{models[0].driver.info}: {models[0].given_up}"

    def first(self) -> GpuPipeline | None:
        """A pipeline for replays on a GPU that is in use."""
        return next((each for each in self._replays.values() if not each.model.given_up), None)

    def check(
        self,
        replay: Callable[[Golden, GpuPipeline, Tolerances], float],
        snapshot: Snapshot,
        golden: Golden,
        precision: str,
    ) -> float:
        """Replays golden requests on every GPU in use; the first time, batches of every size too.

        replay: gives the largest difference to golden requests. Returns the largest of all. Raises ParityError, or
        gives a GPU up for this version where the processor may answer.
        """
        worst = 0.0
        allowed = tolerances(golden, precision)
        for each in self._replays.values():
            if each.model.given_up:
                continue
            try:
                if not each.model.is_checked and golden.batch:
                    # First: it says whether batches may be filled up, which the replay's are.
                    self._check_sizes(each, snapshot, golden, allowed)
                    each.model.is_checked = True
                worst = max(worst, replay(golden, each, allowed))
            except DeviceOutOfMemory as error:
                if not self.falls_back:
                    raise
                logger.warning("%s: %s was not asked: %s", self._parts.name, each.model.driver.info, error)
            except (DeviceError, ParityError) as error:
                if isinstance(error, DeviceLost):
                    each.model.give_up(str(error))
                    if self.first() is not None:
                        continue  # another card passes or refuses it
                if not self.falls_back:
                    raise
                each.model.give_up(str(error))
        return worst

    def close(self) -> None:
        """Gives the memory back. No session is left."""
        for index in list(self.models):
            self._drop(index)
        cards_of(self._parts.store).leave(self)

    def _share_rows(self, config: ModelConfig, gpus: Gpus | None, wanted: Sequence[int]) -> bool:
        """Whether the version's cards share rows from now on. Raises DeviceError where they cannot, under `refuse`."""
        parts, options = self._parts, config.options
        if gpus is None or not wanted or options.hbm_bytes == 0:
            return False
        drivers: list[Driver] = []
        if options.hbm_placement == "shard":
            for index in wanted:
                with suppress(DeviceError):  # opening it says so, too
                    driver = gpus.driver(index)
                    driver.enter_thread()
                    drivers.append(driver)
        try:
            cards_of(parts.store).share_rows(drivers, self)
        except (DeviceError, ConfigError) as error:
            if options.on_gpu_failure == "refuse":
                raise
            logger.warning("%s: each GPU has rows of its own, none are shared: %s", parts.name, error)
        return cards_of(parts.store).placement is not None

    def _open_one(
        self, index: int, config: ModelConfig, gpus: Gpus, snapshot: Snapshot, max_batch_size: int, across: bool
    ) -> None:
        parts = self._parts
        busy_wait = config.graphs.busy_wait
        if busy_wait is None:
            # Who waits for an event that way keeps a core.
            busy_wait = 2 * config.sessions <= len(os.sched_getaffinity(0))
        model = self.models[index] = DeviceModel(
            parts.name,
            gpus.driver(index),
            snapshot.graph,
            parts.graph,
            self._user_places,
            max_batch_size,
            config.graphs,
            tf32=config.options.precision == "tf32",
            busy_wait=busy_wait,
            eager_allowed=config.options.on_gpu_failure != "refuse",
        )
        model.card = self._open_card(config, model, snapshot, across)
        replay = self._replays[index] = self._make(None, model, None)
        options = config.options
        tolerance = FP32_TOLERANCE if options.precision == "fp32" else options.precision_tolerance
        replay.choose_runner(snapshot, options.gpu_runners, tolerance)
        memory = model.memory()
        logger.info(
            "%s: on %s: graphs for batches of %s; %.0f MiB of weights, %.0f MiB of %.0f MiB are free",
            parts.name,
            model.driver.info,
            ", ".join(str(bucket.size) for bucket in model.buckets.all) or "no size",
            model.banks.layout.bytes / 2**20,
            memory.free / 2**20,
            memory.total / 2**20,
        )

    def _open_card(
        self, config: ModelConfig, model: DeviceModel, snapshot: Snapshot, across: bool
    ) -> CardTables | None:
        """A cache of rows on the card. Without one the host looks up; that is an error only where `refuse` says so of
        one that was asked for.
        """
        parts, hbm_bytes = self._parts, config.options.hbm_bytes
        is_asked = bool(hbm_bytes) and config.options.on_gpu_failure == "refuse"
        try:
            card = open_card_tables(
                parts.name,
                model.driver,
                parts.spec,
                parts.store,
                parts.graph,
                self._user_places,
                model.inputs,
                hbm_bytes,
                across=across,
            )
            if card is not None:
                prepare_cards(parts.store, snapshot.mask)
            return card
        except DeviceLost:
            raise
        except (DeviceError, ConfigError) as error:
            if is_asked:
                raise
            logger.warning("%s: rows are looked up on the host, not on %s: %s", parts.name, model.driver.info, error)
            return None

    def _make(
        self,
        lookup_timeout_s: float | None,
        model: DeviceModel,
        processor: Callable[[], Pipeline] | None,
        first: Snapshot | None = None,
    ) -> GpuPipeline:
        parts = self._parts
        return GpuPipeline(
            parts.spec,
            parts.requests,
            parts.store,
            parts.graph,
            self._user_places,
            lookup_timeout_s,
            model,
            processor,
            first,
        )

    @property
    def _user_places(self) -> list[int]:
        side = self._parts.user_side
        return [] if side is None else side.places(self._parts.graph)

    def _drop(self, index: int) -> None:
        replay = self._replays.pop(index, None)
        if replay is not None:
            replay.close()
        model = self.models.pop(index, None)
        if model is not None:
            model.close()

    def _check_sizes(self, pipeline: GpuPipeline, snapshot: Snapshot, golden: Golden, allowed: Tolerances) -> None:
        """Compares batches of every size, those that are filled up with zeros, and the user's side once a user, with
        the processor's scores.

        Where a row's scores depend on the rows beside it, nothing is filled up. Raises ParityError.
        """
        from serving.engine.replay import user_side_difference

        model, parts = pipeline.model, self._parts
        features = parts.features(golden.columns, golden.batch)
        mixes = parts.mixes_rows(features, snapshot)
        if mixes:
            model.no_padding(mixes)
        elif parts.user_side is not None and parts.user_side.is_on:
            differs, output = user_side_difference(parts, snapshot, golden, pipeline)
            if not differs <= allowed[output]:
                raise _unlike(model, f"output {output!r} with the user's side once a user", differs, allowed[output])
        for bucket in model.buckets.all:
            # Where rows do not depend on each other, a large batch is the same rows again.
            period = bucket.size if mixes or bucket.size <= _WHOLE_ROWS else golden.batch
            full = take_rows(features, np.arange(bucket.size) % golden.batch)
            self._compare(pipeline, snapshot, full, min(period, bucket.size), allowed)
            if bucket.low < bucket.size:
                part = take_rows(full, np.arange(bucket.low))
                self._compare(pipeline, snapshot, part, min(period, bucket.low), allowed)

    def _compare(
        self, pipeline: GpuPipeline, snapshot: Snapshot, batch: FeatureBatch, period: int, allowed: Tolerances
    ) -> None:
        """period: after so many rows they come again."""
        parts = self._parts
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


def tolerances(golden: Golden, precision: str) -> Tolerances:
    """How far each output of a GPU may be from the trainer's: what the version says, and for fp32 at least
    FP32_TOLERANCE times that output's own largest value, if that is above 1. Whole numbers must be the same.
    """
    found: Tolerances = {}
    for name, values in golden.outputs.items():
        found[name] = golden.tolerance
        if values.dtype.kind != "f":
            found[name] = 0.0
        elif precision == "fp32":
            largest = float(np.abs(values).max(initial=0.0))
            found[name] = max(golden.tolerance, FP32_TOLERANCE * max(1.0, largest))
    return found
