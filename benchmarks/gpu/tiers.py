"""Claims: a store with a GPU over it: a tenth of the rows on the GPU and the rest in DRAM; a delta of a million rows
while four streams look up.

Tables are made in DRAM, as large as the host's memory and the GPU's allow; the tier itself fills the GPU.
Lookups are those of sessions without anything dense: ids in, sums out, missed rows from DRAM added on the GPU.

    python -m benchmarks.gpu.tiers                  # on the first GPU: below eight minutes
    python -m benchmarks.gpu.tiers --quick
    python -m benchmarks.gpu.tiers --simulated      # no GPU: every line, and no figure of any meaning
"""

from __future__ import annotations

import sys

from benchmarks.gpu.suite import Suite
from benchmarks.isolated_parts import Part

FULL_S, QUICK_S = 450.0, 115.0

_MODULE = "benchmarks.gpu.tier_parts"
PARTS = {
    "misses": Part(_MODULE, "misses", 400.0, "misses", "a tenth of the rows on the GPU, bags of 1,024 ids, Zipf"),
    "delta": Part(_MODULE, "delta", 250.0, "delta", "a delta that becomes visible while four streams look up"),
}
SUITE = Suite(
    "gpu_tiers",
    __doc__ or "",
    PARTS,
    FULL_S,
    QUICK_S,
    "of the table (default what the memory allows; quick 4,000,000)",
)
measure = SUITE.measure
main = SUITE.main


if __name__ == "__main__":
    sys.exit(main())
