"""Checks in thirty seconds that a GPU does everything that the rest needs, each once, and prints a line for each.

    build/gpu-venv/bin/python -m tests.gpu.probe
    build/gpu-venv/bin/python -m tests.gpu.probe --simulated

Driver behaviour that no simulation has shown comes first: captures that begin, end, fail and leave the stream
usable; kernels that were compiled elsewhere; lookups whose first launch is in a graph.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.gpu.device import Gpu, find_gpu, measure_limits
from benchmarks.gpu.limits import PlainKernels
from benchmarks.gpu.lookup_parts import NARROW, WIDE
from benchmarks.gpu.replica import GpuRows, Lookups
from serving.gpu.driver import Stream
from storage.errors import CaptureError, DeviceLost
from storage.hbm.kernel_sources import SOURCES
from storage.hbm.kernels import DEFAULT_CACHE, OPTIONS, is_kept
from tests.support.hbm.world import GpuWorld

_SECONDS = 30.0
_ROWS, _IDS = 100_000, 4096
_TOY_ROWS, _TOY_IDS = 700, 64


class Probe:
    """The checks, and the objects that they share."""

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self.gpu, self.driver, self.folder = gpu, gpu.driver, folder
        self.rows = _TOY_ROWS if gpu.is_simulated else _ROWS
        self.ids = _TOY_IDS if gpu.is_simulated else _IDS

    def kernels_are_carried(self) -> str:
        """Reports whether a start compiles, which only costs half a minute."""
        capability = (9, 0) if self.gpu.is_simulated else self.driver.info.capability
        wanted: list[tuple[str, tuple[str, ...]]] = [("assemble", OPTIONS), *[(name, OPTIONS) for name in SOURCES]]
        kept = sum(is_kept(name, capability, DEFAULT_CACHE, options) for name, options in wanted)
        return f"{kept} of {len(wanted)} kernels are compiled already"

    def bytes_go_there_and_back(self) -> str:
        stream = self.driver.new_stream("probe")
        host, back, there = self.driver.pinned(4096), self.driver.pinned(4096), self.driver.device(4096)
        host.numpy()[:] = np.arange(4096, dtype=np.uint8)
        self.driver.copy(there, host, stream)
        self.driver.copy(back, there, stream)
        self._wait(stream)
        assert np.array_equal(back.numpy(), host.numpy())
        return ""

    def a_graph_is_captured_and_launched(self) -> str:
        stream, pool, buffer = self.driver.new_stream("probe"), self.driver.new_pool(), self.driver.device(64)
        graph = self.driver.capture(lambda: self._add(buffer, stream), pool, stream, name="probe")
        for _ in range(3):
            self.driver.launch(graph, stream)
        assert self._fetch(buffer, stream).tolist() == [3] * 64
        return ""

    def a_capture_that_fails_leaves_the_stream_usable(self) -> str:
        if self.gpu.is_simulated:
            return "left out, a simulation holds everything"
        stream, pool, buffer = self.driver.new_stream("probe"), self.driver.new_pool(), self.driver.device(64)
        good = self.driver.capture(lambda: self._add(buffer, stream), pool, stream, name="probe")

        def forbidden() -> None:
            self.driver.compute(lambda: cast(Any, buffer.sum().item()), stream, reads=[buffer], writes=[])

        for _ in range(2):
            try:
                self.driver.capture(forbidden, pool, stream, name="probe")
            except CaptureError:
                continue
            raise AssertionError("a capture took what waits for the host")
        self.driver.launch(good, stream)
        assert self._fetch(buffer, stream).tolist() == [1] * 64
        return ""

    def lookups_find_their_rows(self) -> str:
        for shape in (WIDE, NARROW):
            rows = GpuRows.make(self.gpu, shape, self.rows)
            for length in (None, 8):
                Lookups(rows, 2, self.ids, skew="zipf", length=length).check()
        return f"{self.ids} ids of {self.rows} rows, written out and summed, fp32 and fp16"

    def lookups_lie_in_a_graph(self) -> str:
        self.driver.load_kernels()
        rows = GpuRows.make(self.gpu, WIDE, self.rows)
        lookups = Lookups(rows, 3, self.ids, skew="uniform", length=8)

        def work() -> None:
            for number in range(3):
                lookups.launch_counted(number)

        graph = self.driver.capture(work, self.driver.new_pool(), lookups.stream, name="lookups")
        self.driver.launch(graph, lookups.stream)
        self._wait(lookups.stream)
        lookups.check()
        return "its first launch lies in the graph"

    def plain_kernels_load(self) -> str:
        rows = GpuRows.make(self.gpu, WIDE, self.rows)
        lookups = Lookups(rows, 1, self.ids, skew="uniform", length=8)
        PlainKernels(self.gpu).launch(lookups)(0)
        self._wait(lookups.stream)
        return ""

    def a_cache_is_filled_looked_up_and_changed(self) -> str:
        self.driver.enter_thread()
        world = GpuWorld(self.folder, self.driver)
        try:
            world.look()
            rows = world.tier.stats().rows
        finally:
            world.close()
        return f"{rows} rows"

    def the_gpu_copies_and_multiplies(self) -> str:
        return str(measure_limits(self.gpu))

    def _add(self, buffer: torch.Tensor, stream: Stream) -> None:
        def add() -> None:
            buffer.add_(1)

        self.driver.compute(add, stream, reads=[buffer], writes=[buffer])

    def _fetch(self, buffer: torch.Tensor, stream: Stream) -> np.ndarray:
        host = self.driver.pinned(buffer.nbytes)
        self.driver.copy(host, buffer, stream)
        self._wait(stream)
        found: np.ndarray = host.numpy().copy()
        return found

    def _wait(self, stream: Stream) -> None:
        event = self.driver.new_event()
        self.driver.record(event, stream)
        self.driver.synchronize(event)


CHECKS: tuple[Callable[[Probe], str], ...] = (
    Probe.kernels_are_carried,
    Probe.bytes_go_there_and_back,
    Probe.a_graph_is_captured_and_launched,
    Probe.a_capture_that_fails_leaves_the_stream_usable,
    Probe.lookups_lie_in_a_graph,
    Probe.lookups_find_their_rows,
    Probe.plain_kernels_load,
    Probe.a_cache_is_filled_looked_up_and_changed,
    Probe.the_gpu_copies_and_multiplies,
)


def run(probe: Probe) -> int:
    """Runs every check; returns how many failed. After a lost GPU the others are skipped."""
    failed = 0
    for number, check in enumerate(CHECKS, 1):
        name, began = check.__name__.replace("_", " "), time.monotonic()
        try:
            said = check(probe)
        except Exception as error:
            failed += 1
            why = (str(error).strip() or "no message").splitlines()[0]
            print(f"! FAILED {name}: {type(error).__name__}: {why}", flush=True)
            if isinstance(error, DeviceLost) or "CUDA error" in str(error):
                print(f"! the GPU is lost: {len(CHECKS) - number} checks are left out", flush=True)
                break
        else:
            print(f"{(time.monotonic() - began) * 1e3:7.0f} ms  {name}{said and ': '}{said}", flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="the simulated GPU, for rehearsals")
    options = parser.parse_args()
    # A hang prints its stack. The simulated GPU computes on a processor that others may use.
    faulthandler.dump_traceback_later(_SECONDS if not options.simulated else 4 * _SECONDS, exit=True)
    began = time.monotonic()
    gpu = find_gpu(simulated=options.simulated)
    print(f"{(time.monotonic() - began) * 1e3:7.0f} ms  the driver opens: {gpu}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        failed = run(Probe(gpu, Path(folder)))
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks passed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
