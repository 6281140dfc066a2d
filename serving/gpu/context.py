"""Defines the execution context of one session on one GPU: a stream, staging, fixed tensors, and graphs.

There is a graph for each batch size and weight slot. A batch is three calls: the copy of its packed inputs, the launch
of a graph (unpack, compute, copy the results back), an event. The thread waits for that event alone; other sessions'
copies and kernels continue meanwhile. Where rows are on the GPU, `lookup` drives the same stream and buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from serving.gpu.context_graphs import ContextGraphs
from serving.gpu.device_model import DeviceModel
from serving.gpu.driver import Assembly
from serving.gpu.staging import HEAD_BYTES, InputLayout, PackedInputs
from serving.gpu.weight_slots import WeightSlot
from storage.checkpoint import DenseGraph
from storage.errors import DeviceError, DeviceLost

# Number of runs before a capture: libraries take their workspaces and load their kernels then.
_WARM_RUNS = 2
# Number of forms of batches (rows and users) whose views are kept.
MAX_FORMS = 256


@dataclass(frozen=True)
class _Batch:
    """A form of a batch."""

    rows: int
    inputs: PackedInputs
    #: Its bytes on the host.
    host: torch.Tensor
    #: Its bytes on the device.
    staging: torch.Tensor


class ExecutionContext:
    """Execution context of one session on one GPU. Not thread-safe; allocates everything in the constructor."""

    def __init__(self, model: DeviceModel) -> None:
        """Allocates stream and buffers. Raises DeviceError.

        Graphs are captured when first needed, or by `capture_all`.
        """
        self.model = model
        driver = self._driver = model.driver
        driver.enter_thread()
        #: The stream of all its work.
        self.stream = driver.new_stream(model.name)
        self._done = driver.new_event(busy_wait=model.busy_wait)
        self._host_inputs = driver.pinned(model.inputs.packed_bytes)
        self._host_bytes = self._host_inputs.numpy()
        self._staging = driver.device(model.inputs.packed_bytes)
        #: The graph's inputs.
        self.target = driver.device(model.inputs.target_bytes)
        results = model.outputs.bytes_for(model.inputs.max_rows)
        #: Head and outputs on the device.
        self.results = driver.device(results)
        #: Head and outputs on the host.
        self.host_results = driver.pinned(results)
        self._assembly = self.assembly(model.inputs, self._staging)
        #: The graphs that were captured on this stream.
        self.graphs = ContextGraphs(model, self.stream, self._warm)
        self._stamp = 0
        self._host_words = self._host_bytes[: self._host_bytes.nbytes // 8 * 8].view(np.int64)
        self._host_stamp = self.host_results.numpy()[:8].view(np.int64)
        self._batches: dict[tuple[int, int], _Batch] = {}
        self._results_of: dict[int, list[np.ndarray]] = {}
        self._now = self._batch(1, 0)

    def assembly(self, layout: InputLayout, staging: torch.Tensor) -> Assembly:
        """Describes how some inputs of the graph, packed as a layout says, come to the target."""
        driver = self._driver
        table = layout.table()
        host_table = driver.pinned(max(table.nbytes, 8))
        host_table.numpy()[: table.nbytes] = table.view(np.uint8).reshape(-1)
        on_gpu = driver.device(max(table.nbytes, 8))
        driver.copy(on_gpu, host_table, self.stream)
        self.wait()
        places = on_gpu[: table.nbytes].view(torch.int64).view(-1, 4)
        return Assembly(staging, places, self.target, self.results[:8], layout.widest)

    def begin(self, rows: int, users: np.ndarray | None = None, count: int = 0) -> list[np.ndarray]:
        """Returns arrays for the inputs of a batch, in the graph's order; they belong to the batch until `finish`.

        users: (rows,) the user of each row, where the user's side has a row for each of `count` users.
        """
        batch = self._batch(rows, count if users is not None else 0)
        stamp = self.next_stamp()
        self._host_words[: len(batch.inputs.header)] = batch.inputs.header
        self._host_words[0] = stamp
        if users is not None and batch.inputs.user_of_row is not None:
            batch.inputs.user_of_row[:] = users
        self._now = batch
        return batch.inputs.views

    def finish(self, weight_slot: WeightSlot) -> list[np.ndarray]:
        """Computes the batch that was written; returns its outputs in memory of their own.

        Afterwards the weight slot is not read any more, whatever happened. Raises DeviceError.
        """
        model, driver, stream, batch = self.model, self._driver, self.stream, self._now
        rows = batch.rows
        bucket = model.buckets.of(rows)
        try:
            driver.wait(stream, weight_slot.ready)
            if bucket is not None and not self._has_graph(bucket, weight_slot):
                bucket = None
            driver.copy(batch.staging, batch.host, stream)
            size = rows if bucket is None else bucket
            if bucket is None or model.looks_up:
                driver.assemble(self._assembly, size, stream)
            if bucket is None:
                self.put_dense(rows, weight_slot)
            else:
                self.graphs.launch("dense" if model.looks_up else "full", bucket, weight_slot)
            self.wait(self._stamp)
        except BaseException:
            self.drain()
            raise
        model.counters.ran(rows, bucket, batch.inputs.size)
        return self.answers(rows, size)

    def next_stamp(self) -> int:
        """Returns the number of the next batch."""
        self._stamp += 1
        return self._stamp

    def wait(self, stamp: int | None = None) -> None:
        """Waits until the stream is empty. Raises DeviceError.

        stamp: number of the batch that must have been answered.
        """
        self._driver.record(self._done, self.stream)
        self._driver.synchronize(self._done)
        if stamp is not None and int(self._host_stamp[0]) != stamp:
            # This was never observed: it would mean that what follows are the scores of another batch.
            raise DeviceLost(f"{self._driver.info} answered batch {int(self._host_stamp[0])}, not {stamp}")

    def answers(self, rows: int, size: int) -> list[np.ndarray]:
        """Returns the outputs of a batch that ran at this size, in memory of their own."""
        found = self._results_of.get(size)
        if found is None:
            found = [tensor.numpy() for tensor in self.model.outputs.tensors(self.host_results, size)]
            if len(self._results_of) < MAX_FORMS:
                self._results_of[size] = found
        return [values[:rows].copy() for values in found]

    def capture_all(self, graph: DenseGraph) -> None:
        """Captures a graph for every bucket and weight slot. graph: has weights to warm up with. Raises DeviceError."""
        self.for_all(graph, self._has_graph)

    def for_all(self, graph: DenseGraph, capture: Callable[[int, WeightSlot], bool]) -> None:
        """Calls `capture` for every bucket and weight slot, until it returns False."""
        self._driver.enter_thread()
        for bucket in reversed(self.model.buckets.all):  # the largest first: its memory is enough for the others
            with self.model.weight_slots.pinned(graph) as weight_slot:
                self._driver.wait(self.stream, weight_slot.ready)
                if not capture(bucket.size, weight_slot):
                    return
            for other in self.model.weight_slots.all:
                if not capture(bucket.size, other):
                    return

    def forget_graphs(self) -> None:
        """Drops the graphs; they are captured anew when they are needed."""
        self.drain()
        self.graphs.clear()

    def close(self) -> None:
        """Waits for the stream, and frees graphs and buffers."""
        self.drain()
        self.graphs.close()
        self._batches.clear()
        self._results_of.clear()

    def put_dense(self, rows: int, weight_slot: WeightSlot) -> None:
        """Puts the graph's operators and the copy of results onto the stream or into a graph."""
        model, driver, stream = self.model, self._driver, self.stream
        size = model.outputs.bytes_for(rows)
        outputs = model.outputs.tensors(self.results, rows)
        arguments = list(weight_slot.tensors.items())
        arguments += zip(model.slots, model.inputs.tensors(self.target, rows), strict=True)
        values = [value for _, value in sorted(arguments, key=lambda pair: pair[0])]

        def compute() -> None:
            with torch.inference_mode(), model.precision():
                for place, value in zip(outputs, model.forward(*values), strict=True):
                    place.copy_(value)

        driver.compute(compute, stream, reads=[self.target, weight_slot.buffer], writes=[self.results[HEAD_BYTES:size]])
        driver.copy(self.host_results[:size], self.results[:size], stream)

    def drain(self) -> None:
        """Waits until the stream is empty; a lost GPU has nothing to wait for."""
        with contextlib.suppress(DeviceError):
            self._driver.enter_thread()
            self.wait()

    def _batch(self, rows: int, users: int) -> _Batch:
        """Returns the views of a batch of this form. They are kept: making them takes longer than a launch."""
        batch = self._batches.pop((rows, users), None)
        if batch is None:
            inputs = self.model.inputs.packed(self._host_bytes, rows, users)
            batch = _Batch(rows, inputs, self._host_inputs[: inputs.size], self._staging[: inputs.size])
            if len(self._batches) >= MAX_FORMS:
                del self._batches[next(iter(self._batches))]  # the least recently used one
        self._batches[rows, users] = batch
        return batch

    def _has_graph(self, rows: int, weight_slot: WeightSlot) -> bool:
        """Returns whether the graph that `finish` launches is there; see ContextGraphs.has."""
        if self.model.looks_up:
            return self.graphs.has("dense", rows, weight_slot, lambda: self.put_dense(rows, weight_slot))
        return self.graphs.has("full", rows, weight_slot, lambda: self._put_full(rows, weight_slot))

    def _put_full(self, rows: int, weight_slot: WeightSlot) -> None:
        self._driver.assemble(self._assembly, rows, self.stream)
        self.put_dense(rows, weight_slot)

    def _warm(self, rows: int, weight_slot: WeightSlot) -> None:
        """Runs what will be captured, on whatever lies in the buffers."""
        for _ in range(_WARM_RUNS):
            self._put_full(rows, weight_slot)
        self.wait()
