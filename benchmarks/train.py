"""Claims: training beside what trains the same model elsewhere: tables alone, a whole step; growth, SSD, admission.

Embeddings are trained beside FBGEMM's fused table-batched embeddings, on one core each, and a whole DLRM beside torch's
sparse gradients and beside TorchRec, on two. Peers are given dense row numbers, we get 63-bit ids. Before anything is
timed, every peer trains the same batches from the same rows, and its rows must be ours.

    python -m benchmarks.train                         # about half an hour, up to 18 GB of memory
    python -m benchmarks.train --quick                 # at most about two minutes
    python -m benchmarks.train --only step,growth
    python -m benchmarks.train --only memory --rows 1000000000   # distinct ids, about seven minutes
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.train_embedding import embedding
from benchmarks.train_growth import growth
from benchmarks.train_memory import memory
from benchmarks.train_step import step
from benchmarks.train_tiers import tiers

# The shortest first, so that a run that is short of time leaves out little.
_PARTS: dict[str, Callable[[Run], None]] = {
    "memory": memory,
    "growth": growth,
    "tiers": tiers,
    "step": step,
    "embedding": embedding,
}
PARTS = tuple(_PARTS)
#: Seconds after which a quick run begins nothing new.
QUICK_S = 120.0


def measure(run: Run) -> None:
    """Measures every part."""
    for name, part in _PARTS.items():
        if run.wants(name) and not run.is_late(name):
            part(run)


if __name__ == "__main__":
    script("train")
