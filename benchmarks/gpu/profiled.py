"""Runs a few launches for a profiler: the lookups, with the search by a mask and with its first version in turn.

ncu --clock-control none --kernel-name regex:lookup_.* python -m benchmarks.gpu.profiled
python -m benchmarks.gpu.profiled --simulated
"""

from __future__ import annotations

import argparse

from benchmarks.gpu.device import Gpu, find_gpu
from benchmarks.gpu.lookup_parts import BAG, WIDE
from benchmarks.gpu.replica import GpuRows, Lookups, fitting_rows
from benchmarks.gpu.search import InTurn

ROWS, TOY_ROWS = 10_000_000, 700
IDS, TOY_IDS = 1 << 20, 64


def launches(gpu: Gpu) -> int:
    """Puts each kernel, gather and pool, on its stream and waits. Returns how many there were."""
    driver = gpu.driver
    count = TOY_ROWS if gpu.is_simulated else fitting_rows(ROWS, driver.memory().free, WIDE.row_bytes)
    rows = GpuRows.make(gpu, WIDE, count)
    in_turn = None if gpu.is_simulated else InTurn(gpu)
    done = 0
    for length in (None, BAG):
        lookups = Lookups(rows, 1, TOY_IDS if gpu.is_simulated else IDS, skew="uniform", length=length)
        for launch in (lookups.launch, *(() if in_turn is None else (in_turn.launch(lookups),))):
            launch(0)
            event = driver.new_event()
            driver.record(event, lookups.stream)
            driver.synchronize(event)
            done += 1
    return done


def main() -> None:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="without a GPU, at toy sizes")
    options = parser.parse_args()
    gpu = find_gpu(simulated=options.simulated)
    print(f"{launches(gpu)} launches on {gpu}")


if __name__ == "__main__":
    main()
