"""Batch sizes that CUDA graphs are captured for. A batch runs in the smallest that holds it, padded with zeros."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.model_config.queue_settings import check_range, config_error, refuse_others

MAX_SPECS = 64
_CUDA_FIELDS = ("graphs", "busy_wait_events", "graph_spec")
_SPEC_FIELDS = ("batch_size", "graph_lower_bound")


@dataclass(frozen=True)
class Bucket:
    """Batches of `low` to `size` rows."""

    low: int
    size: int


@dataclass(frozen=True)
class GraphSettings:
    """The settings of `optimization.cuda`."""

    graphs: bool = True
    #: Sizes of graphs; None for powers of two.
    specs: tuple[Bucket, ...] | None = None
    #: True if waiting threads spin; None to decide by the number of cores.
    busy_wait: bool | None = None

    def buckets(self, max_batch_size: int) -> Buckets:
        """Returns the buckets of a model. Raises ConfigError for a size that it has no batches of."""
        if not self.graphs:
            return Buckets(())
        if self.specs is not None:
            largest = max(spec.size for spec in self.specs)
            if largest > max_batch_size:
                raise config_error(
                    "optimization.cuda.graph_spec", f"batch_size {largest} is over the model's {max_batch_size}"
                )
            return Buckets(self.specs)
        sizes = [1 << power for power in range((max_batch_size - 1).bit_length())]
        return Buckets([Bucket(size // 2 + 1, size) for size in sizes] + [Bucket(sum(sizes[-1:]) + 1, max_batch_size)])


class Buckets:
    """The buckets of a model, looked up by rows."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.all = tuple(sorted(buckets, key=lambda bucket: bucket.size))
        self._sizes = [bucket.size for bucket in self.all]

    def of(self, rows: int) -> int | None:
        """Returns the size to run a batch of this many rows at; None where no graph is for it."""
        place = bisect.bisect_left(self._sizes, rows)
        # A later one may begin lower: bounds are the user's.
        for bucket in self.all[place:]:
            if bucket.low <= rows:
                return bucket.size
        return None

    def exact(self) -> Buckets:
        """Returns buckets without padding, each for batches of exactly its size."""
        return Buckets([Bucket(bucket.size, bucket.size) for bucket in self.all])


def read_graph_settings(proto: Any) -> GraphSettings:
    """Reads the settings of a ModelConfig. Raises ConfigError naming the field.

    As in Triton, a graph_spec is for its own batch size, and with graph_lower_bound for smaller batches too.
    """
    if not proto.HasField("optimization"):
        return GraphSettings()
    refuse_others(proto.optimization, ("cuda",), "optimization.")
    if not proto.optimization.HasField("cuda"):
        return GraphSettings()
    cuda = proto.optimization.cuda
    where = "optimization.cuda"
    refuse_others(cuda, _CUDA_FIELDS, f"{where}.")
    if cuda.graph_spec and not cuda.graphs:
        raise config_error(f"{where}.graph_spec", "is given, but graphs is not true; add graphs: true, or remove it")
    check_range(f"{where}.graph_spec", len(cuda.graph_spec), 0, MAX_SPECS)
    specs: list[Bucket] = []
    for index, spec in enumerate(cuda.graph_spec):
        field = f"{where}.graph_spec[{index}]"
        refuse_others(spec, _SPEC_FIELDS, f"{field}.")
        check_range(f"{field}.batch_size", spec.batch_size, 1, proto.max_batch_size or 2**31 - 1)
        low = spec.batch_size
        if spec.HasField("graph_lower_bound"):
            refuse_others(spec.graph_lower_bound, ("batch_size",), f"{field}.graph_lower_bound.")
            low = spec.graph_lower_bound.batch_size
            check_range(f"{field}.graph_lower_bound.batch_size", low, 1, spec.batch_size)
        if any(other.size == spec.batch_size for other in specs):
            raise config_error(f"{field}.batch_size", f"{spec.batch_size} stands twice")
        specs.append(Bucket(low, spec.batch_size))
    # A field set to false cannot be told from one that is not set.
    return GraphSettings(cuda.graphs, tuple(specs) or None, cuda.busy_wait_events or None)
