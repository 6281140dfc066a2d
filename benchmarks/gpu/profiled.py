"""Runs a launch of each lookup for a profiler: wide and narrow rows, written out and summed.

ncu --clock-control none --kernel-name regex:lookup_.* python -m benchmarks.gpu.profiled
python -m benchmarks.gpu.profiled --simulated
"""

from __future__ import annotations

import argparse

from benchmarks.gpu.device import Gpu, find_gpu
from benchmarks.gpu.lookup_parts import BAG, NARROW, WIDE
from benchmarks.gpu.replica import GpuRows, Lookups, fitting_rows

ROWS, TOY_ROWS = 10_000_000, 700
IDS, TOY_IDS = 1 << 20, 64


def launches(gpu: Gpu) -> int:
    """Puts each kernel, gather and pool, on its stream and waits. Returns how many there were."""
    driver = gpu.driver
    done = 0
    for shape in (WIDE, NARROW):
        count = TOY_ROWS if gpu.is_simulated else fitting_rows(ROWS, driver.memory().free, shape.row_bytes)
        rows = GpuRows.make(gpu, shape, count)
        for length in (None, BAG):
            lookups = Lookups(rows, 1, TOY_IDS if gpu.is_simulated else IDS, skew="uniform", length=length)
            lookups.launch(0)
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
