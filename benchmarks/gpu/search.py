"""The lookups with the first version of the search in a bucket (cuda/cache_bucket.cuh), for one comparison on a GPU."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.gpu.device import Gpu
from benchmarks.gpu.replica import Lookups
from storage.hbm.kernel_sources import SOURCES
from storage.hbm.kernels import OPTIONS, Kernels

IN_TURN = (*OPTIONS, "-DEMBERLINE_PROBE_IN_TURN")
COMPARED = ("lookup_gather", "lookup_pool")


class InTurn:
    """Kernels of one GPU that search the four ways of a bucket one after the other."""

    def __init__(self, gpu: Gpu) -> None:
        """Loads them. Raises ConfigError without CuPy or NVRTC, DeviceError."""
        info = gpu.driver.info
        self._kernels = Kernels(info.index, info.capability)
        self._functions: dict[str, int] = {}
        for source in COMPARED:
            self._functions |= self._kernels.functions(source, SOURCES[source], IN_TURN)

    def launch(self, lookups: Lookups) -> Callable[[int], None]:
        """Returns the same launches as `lookups.launch`."""

        def launch(number: int) -> None:
            call = lookups.call(number)
            values = [value if isinstance(value, int) else value.data_ptr() for value in call.values]
            self._kernels.launch(call.name, self._functions[call.name], call.blocks, values, lookups.stream.raw)

        return launch
