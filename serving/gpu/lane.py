"""One session's way through a GPU: a stream, staging, fixed tensors, a graph for each batch size and weight bank.

A batch is three calls: the copy of its packed inputs, the launch of a graph (unpack, compute, copy the results back),
an event. The thread waits for that event alone; other sessions' copies and kernels go on meanwhile.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import torch

from serving.gpu.device_model import DeviceModel
from serving.gpu.driver import Assembly, Graph
from serving.gpu.matmul_precision import matmul_precision
from serving.gpu.staging import STAMP_BYTES, PackedInputs
from serving.gpu.weight_banks import Bank
from storage.checkpoint import DenseGraph
from storage.errors import CaptureError, DeviceError, DeviceLost

# Runs before a capture: libraries take their workspaces and load their kernels then.
_WARM_RUNS = 2


# Forms of batches (rows and users) whose views are kept.
_MAX_FORMS = 256


@dataclass(frozen=True)
class _Batch:
    """A form of a batch. host, staging: its bytes on both sides."""

    rows: int
    inputs: PackedInputs
    host: torch.Tensor
    staging: torch.Tensor


class GpuLane:
    """One thread at a time. Its memory is all there from the start."""

    def __init__(self, model: DeviceModel) -> None:
        """Graphs are captured when they are first needed, or by `capture_all`. Raises DeviceError."""
        self._model = model
        driver = self._driver = model.driver
        driver.enter_thread()
        self._stream = driver.new_stream(model.name)
        self._done = driver.new_event(busy_wait=model.busy_wait)
        self._host_inputs = driver.pinned(model.inputs.packed_bytes)
        self._host_bytes = self._host_inputs.numpy()
        self._staging = driver.device(model.inputs.packed_bytes)
        self._target = driver.device(model.inputs.target_bytes)
        table = model.inputs.table()
        host_table = driver.pinned(max(table.nbytes, 8))
        host_table.numpy()[: table.nbytes] = table.view(np.uint8).reshape(-1)
        self._table = driver.device(max(table.nbytes, 8))
        results = model.outputs.bytes_for(model.inputs.max_rows)
        self._results = driver.device(results)
        self._host_results = driver.pinned(results)
        driver.copy(self._table, host_table, self._stream)
        driver.record(self._done, self._stream)
        driver.synchronize(self._done)
        self._assembly = Assembly(
            self._staging,
            self._table[: table.nbytes].view(torch.int64).view(-1, 4),
            self._target,
            self._results[:8],
            model.inputs.widest,
        )
        self._pool = driver.new_pool()
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._warmed: set[int] = set()
        self._stamp = 0
        self._host_words = self._host_bytes[: self._host_bytes.nbytes // 8 * 8].view(np.int64)
        self._host_stamp = self._host_results.numpy()[:8].view(np.int64)
        self._batches: dict[tuple[int, int], _Batch] = {}
        self._results_of: dict[int, list[np.ndarray]] = {}
        self._now = self._batch(1, 0)

    def begin(self, rows: int, users: np.ndarray | None = None, count: int = 0) -> list[np.ndarray]:
        """Where the inputs of a batch are to be written, in the graph's order; they are the batch's until `finish`.

        users: (rows,) the user of each row, where the user's side has a row for each of `count` users.
        """
        batch = self._batch(rows, count if users is not None else 0)
        self._stamp += 1
        self._host_words[: len(batch.inputs.header)] = batch.inputs.header
        self._host_words[0] = self._stamp
        if users is not None and batch.inputs.user_of_row is not None:
            batch.inputs.user_of_row[:] = users
        self._now = batch
        return batch.inputs.views

    def finish(self, bank: Bank) -> list[np.ndarray]:
        """Computes the batch that was written; returns its outputs in memory of their own.

        The bank is not read any more then, whatever happened. Raises DeviceError.
        """
        model, driver, stream, batch = self._model, self._driver, self._stream, self._now
        rows = batch.rows
        bucket = model.buckets.of(rows)
        try:
            driver.wait(stream, bank.ready)
            if bucket is not None and (bucket, bank.number) not in self._graphs:
                bucket = self._capture(bucket, bank)
            driver.copy(batch.staging, batch.host, stream)
            if bucket is None:
                self._put(rows, bank)
            else:
                driver.launch(self._graphs[bucket, bank.number], stream)
            driver.record(self._done, stream)
            driver.synchronize(self._done)
        except BaseException:
            self._drain()
            raise
        stamp = int(self._host_stamp[0])
        if stamp != self._stamp:
            # Never seen: then what follows would be the scores of somebody else.
            raise DeviceLost(f"{driver.info} answered batch {stamp}, not {self._stamp}")
        model.counters.ran(rows, bucket, batch.inputs.size)
        return [values[:rows].copy() for values in self._outputs(rows if bucket is None else bucket)]

    def _batch(self, rows: int, users: int) -> _Batch:
        """The views of a batch of this form; forms come again, and making them takes longer than a launch."""
        batch = self._batches.pop((rows, users), None)
        if batch is None:
            inputs = self._model.inputs.packed(self._host_bytes, rows, users)
            batch = _Batch(rows, inputs, self._host_inputs[: inputs.size], self._staging[: inputs.size])
            if len(self._batches) >= _MAX_FORMS:
                del self._batches[next(iter(self._batches))]  # the one that was not used for longest
        self._batches[rows, users] = batch
        return batch

    def _outputs(self, size: int) -> list[np.ndarray]:
        """Where the results of a batch that ran at this size arrive."""
        found = self._results_of.get(size)
        if found is None:
            found = [tensor.numpy() for tensor in self._model.outputs.tensors(self._host_results, size)]
            if len(self._results_of) < _MAX_FORMS:
                self._results_of[size] = found
        return found

    def capture_all(self, graph: DenseGraph) -> None:
        """Captures a graph for every bucket and bank. graph: with weights to warm up with. Raises DeviceError."""
        self._driver.enter_thread()
        for bucket in reversed(self._model.buckets.all):  # the largest first: its memory will do for the others
            with self._model.banks.pinned(graph) as bank:
                self._driver.wait(self._stream, bank.ready)
                if self._capture(bucket.size, bank) is None:
                    return
            for other in self._model.banks.all:
                if (bucket.size, other.number) not in self._graphs:
                    self._capture(bucket.size, other)

    def forget_graphs(self) -> None:
        """They are captured anew when they are needed."""
        self._drain()
        self._graphs.clear()
        self._warmed.clear()

    def close(self) -> None:
        """Waits for the stream, and lets graphs and buffers go."""
        self._drain()
        self._graphs.clear()
        self._pool = None
        self._batches.clear()
        self._results_of.clear()

    def _put(self, rows: int, bank: Bank) -> None:
        """The work of a batch, as it goes onto the stream or into a graph."""
        model, driver, stream = self._model, self._driver, self._stream
        driver.assemble(self._assembly, rows, stream)
        size = model.outputs.bytes_for(rows)
        outputs = model.outputs.tensors(self._results, rows)
        arguments = list(bank.tensors.items())
        arguments += zip(model.slots, model.inputs.tensors(self._target, rows), strict=True)
        values = [value for _, value in sorted(arguments, key=lambda pair: pair[0])]

        def compute() -> None:
            with torch.inference_mode(), matmul_precision(model.tf32):
                for place, value in zip(outputs, model.forward(*values), strict=True):
                    place.copy_(value)

        driver.compute(compute, stream, reads=[self._target, bank.buffer], writes=[self._results[STAMP_BYTES:size]])
        driver.copy(self._host_results[:size], self._results[:size], stream)

    def _capture(self, rows: int, bank: Bank) -> int | None:
        """A graph for so many rows; None where there cannot be one, and none is used from now on.

        The first for a size reads the bank: it is pinned, and the stream has waited for it.
        """
        try:
            if rows not in self._warmed:
                self._warm(rows, bank)
            self._graphs[rows, bank.number] = self._driver.capture(
                lambda: self._put(rows, bank), self._pool, self._stream, name=f"{self._model.name}/{rows}"
            )
        except CaptureError as error:
            self._graphs.clear()
            self._model.cannot_capture(error)
            return None
        return rows

    def _warm(self, rows: int, bank: Bank) -> None:
        """Runs what will be captured, on whatever lies in the buffers."""
        for _ in range(_WARM_RUNS):
            self._put(rows, bank)
        self._driver.record(self._done, self._stream)
        self._driver.synchronize(self._done)
        self._warmed.add(rows)

    def _drain(self) -> None:
        """Waits until the stream is empty; a card that is lost has nothing to wait for."""
        with contextlib.suppress(DeviceError):
            self._driver.enter_thread()
            self._driver.record(self._done, self._stream)
            self._driver.synchronize(self._done)
