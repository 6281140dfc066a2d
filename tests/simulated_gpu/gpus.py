"""The simulated GPUs of a process."""

from __future__ import annotations

from collections.abc import Sequence

from serving.gpu.driver import GpuInfo, Gpus
from storage.errors import ConfigError
from tests.simulated_gpu.driver import SimulatedDriver

_TOTAL_BYTES = 1 << 30


class SimulatedGpus:
    """The simulated GPUs of a process.

    count: number of GPUs. why_none: why there are none, or why none of `count` can be used. The other arguments are
    those of each SimulatedDriver; `seed` rises by one with each GPU.
    """

    def __init__(
        self,
        count: int | None = None,
        *,
        why_none: str = "",
        total_bytes: int = _TOTAL_BYTES,
        schedule: str = "lazy",
        seed: int = 0,
        threads: str = "together",
        strict: bool = False,
    ) -> None:
        if count is None:
            count = 0 if why_none else 1
        self.why_none = why_none if count or why_none else "no GPU is simulated"
        self.infos: Sequence[GpuInfo] = tuple(
            GpuInfo(index, "Simulated", (9, 0), total_bytes, f"GPU-simulated-{index}") for index in range(count)
        )
        self.drivers = tuple(
            SimulatedDriver(info, schedule=schedule, seed=seed + info.index, threads=threads, strict=strict)
            for info in self.infos
        )

    def driver(self, index: int) -> SimulatedDriver:
        """Returns the driver of a GPU, the same one each time. Raises ConfigError."""
        if self.why_none:
            raise ConfigError(f"GPU {index} cannot be used: {self.why_none}")
        if not 0 <= index < len(self.drivers):
            raise ConfigError(f"there is no GPU {index}: there are {len(self.drivers)}")
        return self.drivers[index]


def _conforms(gpus: SimulatedGpus) -> Gpus:
    return gpus
