"""Manages the GPUs that one version is on: sets them up when it is loaded, and gives them up when they fail."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from serving.engine.version_parts import VersionParts
from serving.gpu.device_model import DeviceModel
from serving.gpu.driver import Driver, Gpus
from serving.gpu.pipeline import GpuPipeline
from serving.gpu.tables import GpuTables, open_gpu_tables, prepare_gpus
from serving.model_config.instance_groups import Place
from serving.model_config.pbtxt import ModelConfig
from serving.pipeline.host import Pipeline
from serving.pipeline.precision import warn_if_slow
from serving.pipeline.snapshot import Snapshot
from storage.errors import ConfigError, DeviceError, DeviceLost, Unsupported
from storage.hbm.sharing import sharing_of

logger = logging.getLogger("emberline.serving")

# A pipeline that scores requests beside live traffic.
ReplayPipeline = Pipeline | GpuPipeline
# A GPU adds in another order than the trainer's processor, so fp32 scores may differ by this much, times the largest
# output if that is above 1, even where a version's tolerance is smaller.
FP32_TOLERANCE = 1e-5


class Devices:
    """Holds the GPUs of one version; empty for a version on the processor alone.

    `open` is called once; then it is thread-safe, but one replay runs at a time.
    """

    def __init__(self, parts: VersionParts) -> None:
        self.models: dict[int, DeviceModel] = {}
        # True where the processor has sessions of its own, or answers when a GPU cannot.
        self.uses_processor = True
        self.falls_back = False
        self._parts = parts
        self._replays: dict[int, GpuPipeline] = {}

    def open(
        self, config: ModelConfig, gpus: Gpus | None, snapshot: Snapshot, max_batch_size: int
    ) -> tuple[Place, ...]:
        """Copies the weights to the GPUs of `config.places`, and returns the places of the sessions.

        If a GPU cannot be used, that is an error, or its sessions run on the processor, as configured. Raises
        DeviceError, Unsupported.
        """
        places = list(config.places)
        wanted = list(dict.fromkeys(place for place in places if place is not None))
        self.falls_back = config.may_use_processor
        self.uses_processor = self.falls_back or None in places
        try:
            shares_rows = self._share_rows(config, gpus, wanted)
        except BaseException:
            self.close()
            raise
        for index in wanted:
            try:
                assert gpus is not None
                self._open_one(index, config, gpus, snapshot, max_batch_size, shares_rows)
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
        """Creates the pipeline of a session on a GPU; its `prepare` captures the graphs.

        If the GPU is not usable, it is a pipeline on the processor; raises DeviceError where only a GPU may answer.
        """
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

    @property
    def max_rows(self) -> int:
        """Returns the largest batch that every GPU here takes."""
        return min((model.inputs.max_rows for model in self.models.values()), default=2**31)

    @property
    def trouble(self) -> str:
        """Returns why nothing can be scored any more; "" otherwise.

        That is so when every GPU is given up and the processor may not answer.
        """
        models = list(self.models.values())
        if self.uses_processor or not models or not all(each.given_up for each in models):
            return ""
        return f"{models[0].driver.info}: {models[0].given_up}"

    def first(self) -> GpuPipeline | None:
        """Returns a pipeline for replays on a GPU that is in use; None where there is none."""
        return next(iter(self.in_use()), None)

    def in_use(self) -> list[GpuPipeline]:
        """Returns the pipelines for replays, one for each GPU that is not given up."""
        return [each for each in self._replays.values() if not each.model.given_up]

    def close(self) -> None:
        """Frees the memory on the GPUs. All sessions must have ended."""
        for index in list(self.models):
            self._drop(index)
        sharing_of(self._parts.store).leave(self)

    def _share_rows(self, config: ModelConfig, gpus: Gpus | None, wanted: Sequence[int]) -> bool:
        """Sets up the sharing of rows among the version's GPUs, and returns whether they share rows from now on.

        Raises DeviceError or ConfigError where they cannot and `on_gpu_failure` is `refuse`.
        """
        parts, options = self._parts, config.options
        if gpus is None or not wanted or options.hbm_bytes == 0:
            return False
        drivers: list[Driver] = []
        if options.hbm_placement == "shard":
            for index in wanted:
                with suppress(DeviceError):  # `_open_one` meets the same error and reports it
                    driver = gpus.driver(index)
                    driver.enter_thread()
                    drivers.append(driver)
        try:
            sharing_of(parts.store).share_rows(drivers, self)
        except (DeviceError, ConfigError) as error:
            if options.on_gpu_failure == "refuse":
                raise
            logger.warning("%s: each GPU has rows of its own, none are shared: %s", parts.name, error)
        return sharing_of(parts.store).placement is not None

    def _open_one(
        self, index: int, config: ModelConfig, gpus: Gpus, snapshot: Snapshot, max_batch_size: int, shares_rows: bool
    ) -> None:
        parts = self._parts
        busy_wait = config.graphs.busy_wait
        if busy_wait is None:
            # A thread that waits for an event busily keeps a core.
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
        model.gpu = self._open_gpu(config, model, snapshot, shares_rows)
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
            model.weight_slots.layout.bytes / 2**20,
            memory.free / 2**20,
            memory.total / 2**20,
        )

    def _open_gpu(
        self, config: ModelConfig, model: DeviceModel, snapshot: Snapshot, shares_rows: bool
    ) -> GpuTables | None:
        """Opens a cache of rows on the GPU; returns None where the host looks rows up instead.

        A cache that cannot be opened is an error only if it was asked for and `on_gpu_failure` is `refuse`.
        """
        parts, hbm_bytes = self._parts, config.options.hbm_bytes
        is_asked = bool(hbm_bytes) and config.options.on_gpu_failure == "refuse"
        try:
            gpu = open_gpu_tables(
                parts.name,
                model.driver,
                parts.spec,
                parts.store,
                parts.graph,
                self._user_places,
                model.inputs,
                hbm_bytes,
                shares_rows=shares_rows,
            )
            if gpu is not None:
                prepare_gpus(parts.store, snapshot.mask)
            return gpu
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
