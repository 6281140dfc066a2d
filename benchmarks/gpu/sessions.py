"""Claims: sessions on a GPU: CUDA graphs beside eager operators, four sessions beside one, a batch's time, idle
gaps of the GPU, whole requests with 26 tables in DRAM, new weights under load, a soak.

The GPU's own limits are measured in the same run. Every line is printed at once; a part that fails, hangs or
kills its process is reported, and the others continue in a new process.

    python -m benchmarks.gpu.sessions                              # on the first GPU: below eight minutes
    python -m benchmarks.gpu.sessions --quick                      # below two minutes
    python -m benchmarks.gpu.sessions --parts trace --svg t.svg    # one part, and a picture of three milliseconds
    python -m benchmarks.gpu.sessions --soak 600 --parts soak
    python -m benchmarks.gpu.sessions --simulated                  # no GPU: every line, and no figure of any meaning
"""

from __future__ import annotations

import sys

from benchmarks.gpu.suite import Suite
from benchmarks.isolated_parts import Part

FULL_S, QUICK_S = 430.0, 115.0

# The profiler slows down later work, and the compiler starts threads of its own: each gets its own process.
PARTS = {
    "graphs": Part("benchmarks.gpu.dense", "graphs", 120.0, "main", "CUDA graphs beside operators one by one"),
    "sessions": Part(
        "benchmarks.gpu.dense", "sessions", 90.0, "main", "2, 4 and 8 sessions beside one, without lookups"
    ),
    "latency": Part(
        "benchmarks.gpu.dense", "latency", 90.0, "main", "launch to result, p50 and p99, and where the time goes"
    ),
    "end_to_end": Part("benchmarks.gpu.end_to_end", "on_host", 150.0, "main", "a whole request, its rows in DRAM"),
    "in_hbm": Part("benchmarks.gpu.end_to_end", "in_hbm", 120.0, "main", "a whole request, every row in HBM"),
    "tenth": Part("benchmarks.gpu.end_to_end", "tenth_in_hbm", 120.0, "main", "a whole request, a tenth in HBM"),
    "weights": Part("benchmarks.gpu.end_to_end", "new_weights", 120.0, "main", "a delta's weights under load"),
    "trace": Part(
        "benchmarks.gpu.trace", "trace", 120.0, "trace", "idle gaps of the GPU, by the profiler; the picture"
    ),
    "soak": Part(
        "benchmarks.gpu.soak", "soak", 90.0, "soak", "mixed batches, sessions and weights that change: memory, scores"
    ),
    "compile": Part("benchmarks.gpu.dense", "compiler", 200.0, "compile", "the runner `compile` beside the usual one"),
}
SUITE = Suite(
    "gpu_sessions",
    __doc__ or "",
    PARTS,
    FULL_S,
    QUICK_S,
    "of each of the 26 tables (default 1,000,000; quick 50,000)",
    # It compiles for a minute.
    slow=("compile",),
    has_soak=True,
    has_svg=True,
)
measure = SUITE.measure
main = SUITE.main


if __name__ == "__main__":
    sys.exit(main())
