"""Claims: lookups on a GPU in which every id hits, beside the best it reaches with rows whose numbers are known,
beside torch's nn.EmbeddingBag and FBGEMM given row numbers, and a small lookup in a CUDA graph.

100 million rows, or as many as fit into the GPU's memory, are made on the GPU itself, under an index that is filled
like the cache's; none of them crosses the bus. The best that a GPU reaches without an index is measured in the same
run, by plain kernels (limits.cu) over the same rows, in the order of the same batches.

    python -m benchmarks.gpu.lookup                  # on the first GPU: about three minutes
    python -m benchmarks.gpu.lookup --quick
    python -m benchmarks.gpu.lookup --simulated      # no GPU: every line, and no figure of any meaning
"""

from __future__ import annotations

import sys

from benchmarks.gpu.suite import Suite
from benchmarks.isolated_parts import Part

FULL_S, QUICK_S = 310.0, 110.0

_MODULE = "benchmarks.gpu.lookup_parts"
PARTS = {
    "gather": Part(_MODULE, "gather", 90.0, "main", "rows written out, uniform ids, beside a gather by row numbers"),
    "pool": Part(_MODULE, "pool", 120.0, "main", "sums of bags, uniform and Zipf ids, beside torch and FBGEMM"),
    "across": Part(_MODULE, "across", 40.0, "main", "rows looked for as another GPU's"),
    "small": Part(_MODULE, "small", 60.0, "main", "4,096 ids in a CUDA graph"),
}
SUITE = Suite(
    "gpu_lookup",
    __doc__ or "",
    PARTS,
    FULL_S,
    QUICK_S,
    "of the table on the GPU (default 100,000,000, or what fits; quick 10,000,000)",
)
measure = SUITE.measure
main = SUITE.main


if __name__ == "__main__":
    sys.exit(main())
