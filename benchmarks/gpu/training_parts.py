"""Measures steps of the trainer whose dense part is on a GPU, for `gpu_training`. B batch, T tables."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.dlrm_towers import DENSE, SPARSE
from benchmarks.gpu.bench import Bench
from benchmarks.measure import Contestant, median
from benchmarks.traffic import Array, Traffic, random_ids
from loadtest.popularity import zipf
from trainer.config import TrainConfig, parse_content
from trainer.data import Batch
from trainer.devices import Arriving, CudaTransfers, Sent, Transfers, replaced_transfers, running_on
from trainer.embedding import EmbeddingTable
from trainer.models import build_model
from trainer.step import TrainingStep
from trainer.step_profile import StepProfile, time_lookups

BATCHES, TOY_BATCHES = (2048, 16_384), (16, 64)
PRECISIONS = ("fp32", "tf32", "bf16")
IN_HBM = "bf16, every row in HBM"
# More than all rows take.
_HBM_BYTES = 1 << 40
_FULL_ROWS = 200_000
# Batches of the largest size; smaller ones are cut from them.
_DRAWN = 6
_PROCESSOR = torch.device("cpu")
HOST, SPANS = ("lookup", "update"), ("rows to the GPU", "forward and backward", "gradients to the host")


def rates(bench: Bench) -> None:
    """Compares steps on the GPU, in each precision, with steps on the processor."""
    world = _world(bench)
    for size in world.sizes:
        contestants = {"the processor": world.rate(size, _PROCESSOR, "fp32")}
        contestants |= {precision: world.rate(size, bench.gpu.device, precision) for precision in PRECISIONS}
        contestants[IN_HBM] = world.rate(size, bench.gpu.device, "bf16", in_hbm=True)
        with world.ready():
            samples = bench.interleave(contestants, max_s=bench.seconds(30.0, 10.0))
        for precision in (*PRECISIONS, IN_HBM):
            what = f"training a DLRM, d{bench.sizes.dim}, batch {size:,}, {precision}"
            bench.compare(what, samples, "the processor", ours=precision, unit="samples/s")
        bench.run.settle(samples)


def parts(bench: Bench) -> None:
    """Measures the parts of a step: those of the host by its clock, copies and the dense part by the GPU's."""
    world, steps = _world(bench), bench.times(30, 10, 2)
    for size in world.sizes:
        for name, precision in (("fp32", "fp32"), ("bf16", "bf16"), (IN_HBM, "bf16")):
            timed = TimedTransfers(world.transfers())
            with world.ready(), replaced_transfers(bench.gpu.device, timed):
                training = Training(world, size, bench.gpu.device, precision, in_hbm=name == IN_HBM)
                training.choose()
                with running_on(bench.gpu.device, precision):
                    for _ in range(3):
                        training.step()
                    world.wait()
                    timed.spans.clear()
                    before, began = training.host_ms(), time.perf_counter()
                    for _ in range(steps):
                        training.step()
                    world.wait()
                    whole = (time.perf_counter() - began) / steps * 1e3
                    host = [(after - early) / steps for after, early in zip(training.host_ms(), before, strict=True)]
            found = dict(zip(HOST, host, strict=True)) | timed.medians()
            for part, took in found.items():
                what = f"training step, batch {size:,}, {name}: {part}"
                bench.pairs(what, [took], [whole], "the whole step", unit="ms", less_is_better=True)
            shares = ", ".join(f"{part} {took:.2f}" for part, took in found.items())
            bench.remark(f"a step, batch {size:,}, {name}: {whole:.2f} ms, of which {shares}")


def compiled(bench: Bench) -> None:
    """Compares the dense part compiled by torch with its operators one by one."""
    world = _world(bench)
    size = world.sizes[0]
    for precision in ("fp32", "bf16"):
        contestants = {
            "one by one": world.rate(size, bench.gpu.device, precision),
            "compiled": world.rate(size, bench.gpu.device, precision, compiled=not bench.is_simulated),
        }
        with world.ready():
            samples = bench.interleave(contestants, max_s=bench.seconds(20.0, 8.0))
        what = f"training a DLRM, d{bench.sizes.dim}, batch {size:,}, {precision}, compiled"
        bench.compare(what, samples, "one by one", ours="compiled", unit="samples/s")
        bench.run.settle(samples)


class World:
    """Tables in host memory, and batches that look them up; all contestants train the same tables."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.sizes = TOY_BATCHES if bench.is_simulated else BATCHES
        rows, most = min(bench.sizes.table_rows, _FULL_ROWS), max(self.sizes)
        self.config = parse_content(_content(bench))
        self.tables = {f"t{number}": EmbeddingTable(f"t{number}", bench.sizes.dim) for number in range(SPARSE)}
        rng = np.random.default_rng(7)
        drawn = []
        for number, table in enumerate(self.tables.values()):
            ids = random_ids(rows, seed=number + 1)
            _fill(table, ids, rng)
            drawn.append(ids[Traffic(zipf(rows), seed=100 + number).batches(_DRAWN, most)])
        self._batches = {size: list(self._cut(np.stack(drawn), size, rng)) for size in self.sizes}
        found = np.mean([len(np.unique(batch)) for ids in drawn for batch in ids]) * SPARSE
        bench.remark(f"training: {SPARSE} tables of {rows:,} rows, {found:,.0f} rows a batch of {most:,}")

    def _cut(self, drawn: Array, size: int, rng: np.random.Generator) -> Iterator[Batch]:
        """Cuts batches of a size from ids (T, K, B)."""
        offsets = torch.arange(size + 1)
        for number in range(drawn.shape[1]):
            for first in range(0, drawn.shape[2], size):
                inputs: dict[str, Tensor] = {f"c{table}.offsets": offsets for table in range(SPARSE)}
                for table in range(SPARSE):
                    inputs[f"c{table}.values"] = torch.from_numpy(drawn[table, number, first : first + size])
                inputs["dense"] = torch.from_numpy(rng.standard_normal((size, DENSE), np.float32))
                labels = torch.from_numpy((rng.random((size, 1)) < 0.25).astype(np.float32))
                yield Batch(inputs, labels, size, {})

    def batches(self, size: int) -> Sequence[Batch]:
        """Returns the batches of a size."""
        return self._batches[size]

    def wait(self) -> None:
        """Waits for the GPU."""
        if self._bench.gpu.device.type == "cuda":
            torch.cuda.synchronize(self._bench.gpu.device)

    def transfers(self) -> Transfers:
        """Returns transfers of the GPU; in a simulation, those of a processor that stands for it."""
        if self._bench.is_simulated:
            # Only works in a checkout: tests are not part of the packages.
            made: Transfers = importlib.import_module("tests.support.late_transfers").LateTransfers()
            return made
        return CudaTransfers(self._bench.gpu.device)

    def rate(
        self, size: int, device: torch.device, precision: str, *, compiled: bool = False, in_hbm: bool = False
    ) -> Contestant:
        """Measures samples a second of steps."""
        made: list[Training] = []
        piece_s = self._bench.seconds(0.5, 0.2)

        def measured(turn: int) -> float:
            if not made:  # here, so that no more models are there than are measured
                made.append(Training(self, size, device, precision, compiled=compiled, in_hbm=in_hbm))
            training = made[0]
            training.choose()  # others have trained the tables since
            with running_on(device, precision):
                if turn == 0:
                    for _ in range(3):  # compiles, and fills the allocators
                        training.step()
                    self.wait()
                began, steps = time.perf_counter(), 0
                while steps == 0 or time.perf_counter() - began < piece_s:
                    training.step()
                    steps += 1
                self.wait()
                return size * steps / (time.perf_counter() - began)

        return measured

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Has torch use all cores but one for the block, as a training does."""
        before = torch.get_num_threads()
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Training:
    """Takes the trainer's steps, with each batch sent ahead of its step."""

    def __init__(
        self,
        world: World,
        size: int,
        device: torch.device,
        precision: str,
        *,
        compiled: bool = False,
        in_hbm: bool = False,
    ) -> None:
        options: dict[str, Any] = {"precision": precision, "compile": compiled, "batch_size": size}
        options["hbm_bytes"] = _HBM_BYTES if in_hbm else None
        training = world.config.training.model_copy(update=options)
        config: TrainConfig = world.config.model_copy(update={"training": training})
        self._profile = StepProfile()
        torch.manual_seed(1)
        model = build_model(config, world.tables).to(device)
        time_lookups(model, self._profile)
        model.train()
        self._step = TrainingStep(config, model, world.tables, self._profile, device=device)
        self._batches, self._number = world.batches(size), 0
        self._next = self._step.batches.sent(self._batches[0])

    def choose(self) -> None:
        """Chooses the rows that the GPU keeps."""
        if self._step.hbm is not None:
            self._step.hbm.choose()

    def step(self) -> None:
        """Trains the next batch."""
        batch, self._number = self._next, self._number + 1
        self._next = self._step.batches.sent(self._batches[self._number % len(self._batches)])
        self._step.take(batch, self._number, None, whole_rows=batch.rows)

    def host_ms(self) -> list[float]:
        """Returns the milliseconds so far in lookups and in updates."""
        return [self._profile.seconds(name) * 1e3 for name in HOST]


class TimedTransfers(Transfers):
    """Times the copies of rows and of their gradients, and what the GPU computes between them."""

    def __init__(self, inner: Transfers) -> None:
        self._inner = inner
        self._arrived: Any = None
        self._is_forward = True
        #: Marks of the beginning and the end, by name.
        self.spans: dict[str, list[tuple[Any, Any]]] = {}

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self._inner.host_tensor(shape, dtype)

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if not self._is_forward:  # what gradients are sums of
            return self._inner.to_device(tensors)
        self._is_forward = False
        began = self._mark()
        found = self._inner.to_device(tensors)
        self._arrived = self._mark()
        self._add(SPANS[0], began, self._arrived)
        return found

    def send(self, tensors: Sequence[Tensor]) -> Sent:
        return self._inner.send(tensors)

    def receive(self, sent: Sent) -> list[Tensor]:
        return self._inner.receive(sent)

    def to_host(self, tensors: Sequence[Tensor]) -> Arriving:
        if tensors[0].dim() == 0:  # the loss
            return self._inner.to_host(tensors)
        self._is_forward = True
        computed = self._mark()
        arriving = self._inner.to_host(tensors)
        self._add(SPANS[1], self._arrived, computed)
        self._add(SPANS[2], computed, self._mark(returned=True))
        return arriving

    def medians(self) -> dict[str, float]:
        """Returns the median milliseconds of each span, whose work is done."""
        return {name: median([_ms(*span) for span in found]) for name, found in self.spans.items()}

    def _add(self, name: str, began: Any, ended: Any) -> None:
        self.spans.setdefault(name, []).append((began, ended))

    def _mark(self, *, returned: bool = False) -> Any:
        if not isinstance(self._inner, CudaTransfers):
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._inner.returning if returned else torch.cuda.current_stream())
        return event


def _ms(began: Any, ended: Any) -> float:
    return (ended - began) * 1e3 if isinstance(began, float) else float(began.elapsed_time(ended))


def _fill(table: EmbeddingTable, ids: Array, rng: np.random.Generator) -> None:
    """Gives a table rows for these ids, as if each was seen once."""
    uses = np.ones(len(ids), np.uint32)
    values = (rng.standard_normal((len(ids), table.dim), np.float32) * np.float32(0.05)).astype(np.float32)
    slots = np.full((len(ids), table.slots), table.initial_accumulator, np.float32)
    table.restore(ids, values, slots, uses, uses * np.uint32(table.stamp), uses * np.uint32(0))


def _world(bench: Bench) -> World:
    if "training" not in bench.kept:
        bench.kept["training"] = World(bench)
    found: World = bench.kept["training"]
    return found


def _content(bench: Bench) -> dict[str, Any]:
    """Returns the configuration of the DLRM: one id of each table, and one group of dense values."""
    sizes = bench.sizes
    features: list[dict[str, Any]] = [
        {
            "name": f"c{table}",
            "inputs": ["ids"],
            "transforms": [{"op": "select", "index": table}],
            "output": "ids",
            "table": f"t{table}",
        }
        for table in range(SPARSE)
    ]
    return {
        "model_name": "dlrm",
        "label": "label",
        "inputs": [
            {"name": "ids", "dtype": "INT64", "width": SPARSE},
            {"name": "dense", "dtype": "FP32", "width": DENSE},
        ],
        "features": [*features, {"name": "dense", "inputs": ["dense"], "output": "dense"}],
        "tables": [{"name": f"t{table}", "dim": sizes.dim} for table in range(SPARSE)],
        "model": {"type": "dlrm", "bottom": list(sizes.bottom), "top": list(sizes.top)},
    }
