"""Holds what the GPU sessions of one version share on one GPU: weights in slots, the program, batch sizes."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from serving.gpu.device_program import on_device
from serving.gpu.driver import DeviceMemory, Driver
from serving.gpu.matmul_precision import matmul_precision
from serving.gpu.staging import InputLayout, OutputLayout
from serving.gpu.tables import GpuTables
from serving.gpu.weight_slots import WeightSlots
from serving.model_config.buckets import Buckets, GraphSettings
from storage.checkpoint import DenseGraph
from storage.checkpoint.graph_program import Candidate, Forward, eager
from storage.checkpoint.manifest import GraphEntry
from storage.errors import DeviceError, DeviceLost

REPLAY_ROWS = 64

logger = logging.getLogger("emberline.serving")


class DeviceCounters:
    """Counters of the sessions of one version on one GPU. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Batches by the size that they ran at, "eager" for those without a CUDA graph.
        self.batches: Counter[str] = Counter()
        #: Rows of zeros that were computed beside them.
        self.padded_rows = 0
        #: Batches that the processor answered instead.
        self.on_processor = 0
        #: Bytes copied to the GPU.
        self.copied_bytes = 0

    def ran(self, rows: int, bucket: int | None, copied_bytes: int) -> None:
        """Counts a batch."""
        with self._lock:
            self.batches["eager" if bucket is None else str(bucket)] += 1
            self.padded_rows += 0 if bucket is None else bucket - rows
            self.copied_bytes += copied_bytes

    def fell_back(self) -> None:
        """Counts a batch that the processor answered."""
        with self._lock:
            self.on_processor += 1


class DeviceModel:
    """One version's model on one GPU. Thread-safe."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        graph: DenseGraph,
        entry: GraphEntry,
        user_places: Sequence[int],
        max_batch_size: int,
        settings: GraphSettings,
        *,
        tf32: bool = False,
        busy_wait: bool = False,
        eager_allowed: bool = True,
    ) -> None:
        """Loads a version onto a GPU.

        name: that of model and version, for messages. graph: with any weights of the version. entry: its interface.
        eager_allowed: a batch that no graph can hold runs without one. Raises DeviceError, Unsupported.
        """
        self.name = name
        self.driver = driver
        self.counters = DeviceCounters()
        #: True if products may round their inputs to TF32.
        self.tf32 = tf32
        self.busy_wait = busy_wait
        self.eager_allowed = eager_allowed
        #: Why the GPU is not used for this version any more; "" as long as it is used.
        self.given_up = ""
        self.not_captured = ""
        self.is_checked = False
        #: Sizes that there are graphs for now.
        self.buckets = self._all_buckets = settings.buckets(max_batch_size)
        # Replays come in slices of this many rows, whatever requests may have.
        self.inputs = InputLayout(entry.inputs, frozenset(user_places), max(max_batch_size, REPLAY_ROWS))
        self.outputs = OutputLayout(entry.outputs)
        self.slots = graph.slots
        driver.enter_thread()
        self.weight_slots = WeightSlots(driver, graph)
        self._program = graph.program
        self.device = self.weight_slots.all[0].buffer.device
        self.module = on_device(graph.program.module, self.device)
        #: Looks up rows on the GPU; None where the host does. Settled before there are sessions.
        self.gpu: GpuTables | None = None
        #: How the graph is computed.
        self.runner = "eager"
        self.forward: Forward = eager(self.module)
        #: The runners that it was compared with.
        self.candidates: Sequence[Candidate] = ()

    @property
    def looks_up(self) -> bool:
        """True if sessions look up on the GPU, so that finding rows and computing are two graphs."""
        return self.gpu is not None

    def use(self, name: str, forward: Forward) -> None:
        """Captures later graphs of this, if possible; graphs captured before remain as they are."""
        self.runner, self.forward = name, forward
        self.buckets, self.not_captured = self._all_buckets, ""

    def precision(self) -> AbstractContextManager[None]:
        """A context for the dispatch of the graph. Its setting is the process's: another device needs none of it."""
        return matmul_precision(self.tf32) if self.device.type == "cuda" else nullcontext()

    def close(self) -> None:
        """Frees the GPU's memory; no session and no replay uses it any more."""
        if self.gpu is not None:
            self.gpu.close()
            self.gpu = None
        self.weight_slots.close()

    def memory(self) -> DeviceMemory:
        """The memory of the GPU."""
        return self.driver.memory()

    def check_program(self, graph: DenseGraph) -> None:
        """Checks that the graph has the same program.

        Snapshots of one version share it, as graphs were captured from it.
        """
        assert graph.program is self._program, f"{self.name}: another program"

    def give_up(self, reason: str) -> None:
        """Stops using the GPU for this version; sessions that may use the processor continue there."""
        if not self.given_up:
            self.given_up = reason
            logger.error("%s: %s is given up: %s", self.name, self.driver.info, reason)

    def check_usable(self) -> None:
        """Raises DeviceLost when it was given up."""
        if self.given_up:
            raise DeviceLost(f"{self.driver.info} is not used any more for {self.name}: {self.given_up}")

    def no_padding(self, why: str) -> None:
        """Restricts graphs to batches of exactly their size from now on."""
        self.buckets = self.buckets.exact()
        logger.warning("%s: batches are not filled up with zeros: %s", self.name, why)

    def cannot_capture(self, error: DeviceError) -> None:
        """Runs without graphs from now on, or raises the error where that is not wanted."""
        if not self.eager_allowed:
            raise error
        if not self.not_captured:
            self.not_captured = str(error)
            self.buckets = Buckets(())
            logger.warning("%s: runs operator by operator on %s: %s", self.name, self.driver.info, error)
