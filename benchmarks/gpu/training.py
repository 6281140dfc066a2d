"""Claims: training on a GPU: samples a second of a DLRM with 26 tables of dim 128 in host memory, beside the same on
the processor, in three precisions; the parts of a step; the dense part compiled by torch.

Every contestant is the trainer's own step: lookup, forward and backward pass, and both optimizers.

    python -m benchmarks.gpu.training                  # on the first GPU: below five minutes
    python -m benchmarks.gpu.training --quick
    python -m benchmarks.gpu.training --simulated      # no GPU: every line, and no figure of any meaning
"""

from __future__ import annotations

import sys

from benchmarks.gpu.suite import Suite
from benchmarks.isolated_parts import Part

FULL_S, QUICK_S = 280.0, 90.0

_MODULE = "benchmarks.gpu.training_parts"
# The compiler starts threads of its own.
PARTS = {
    "rates": Part(_MODULE, "rates", 150.0, "main", "samples a second, beside the processor, in three precisions"),
    "parts": Part(_MODULE, "parts", 60.0, "main", "where the time of a step goes: host, copies, GPU"),
    "compile": Part(_MODULE, "compiled", 150.0, "compile", "the dense part compiled, beside operators one by one"),
}
SUITE = Suite(
    "gpu_training",
    __doc__ or "",
    PARTS,
    FULL_S,
    QUICK_S,
    "of each of the 26 tables (default 200,000; quick 50,000)",
)
measure = SUITE.measure
main = SUITE.main


if __name__ == "__main__":
    sys.exit(main())
