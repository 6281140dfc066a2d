"""Finds the GPUs that this process can use, or says in one sentence why there is none."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import logging
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from serving.gpu.device_errors import first_line
from serving.gpu.driver import Driver, GpuInfo, Gpus
from storage.errors import ConfigError, DeviceError

logger = logging.getLogger("emberline.serving")

# Capability of the oldest GPU, Turing: torch's builds for CUDA 13 and NVRTC 13 begin there.
OLDEST_CAPABILITY = (7, 5)
# Vendor and class on the PCI bus; the class is that of displays and of accelerators without one.
_NVIDIA, _DISPLAY = "0x10de", "0x03"


@dataclass(frozen=True)
class Surroundings:
    """Findings about the process and its machine. Later fields are filled only when the ones before leave hope."""

    #: Version of torch.
    torch: str
    #: Version of CUDA that torch was built for.
    cuda: str | None
    #: Version of ROCm that torch was built for.
    rocm: str | None = None
    #: The newest CUDA of NVIDIA's driver, as 12040 for 12.4, None without a driver.
    driver: int | None = None
    #: Failure of CUDA when it was started.
    failure: str = ""
    #: The GPUs.
    infos: tuple[GpuInfo, ...] = ()
    #: Architectures that torch has kernels for, such as sm_90.
    built_for: tuple[str, ...] = ()
    #: The reason that CuPy cannot be used, "" when it can.
    cupy: str = ""
    #: True if the machine shows an NVIDIA GPU, whether or not torch can use it.
    has_gpu: bool = True


def look_around() -> Surroundings:
    """Examines the process.

    Never raises. It takes no time without a build for CUDA or without a driver; otherwise it starts CUDA.
    """
    build = Surroundings(str(torch.__version__), torch.version.cuda, torch.version.hip)
    driver = driver_version()
    if build.cuda is None or driver is None:
        return replace(build, has_gpu=driver is not None or shows_gpu())
    failure, infos, built_for = "", (), ()  # type: tuple[str, tuple[GpuInfo, ...], tuple[str, ...]]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            if torch.cuda.is_available():
                infos = tuple(_info(index) for index in range(torch.cuda.device_count()))
                built_for = tuple(torch.cuda.get_arch_list())
        except Exception as error:
            failure = first_line(error)
    if not infos and not failure and said:
        failure = first_line(Exception(said[-1].message))
    cupy = cupy_trouble() if infos else ""
    return Surroundings(build.torch, build.cuda, None, driver, failure, infos, built_for, cupy)


def judge(found: Surroundings) -> tuple[tuple[GpuInfo, ...], str]:
    """Returns the GPUs that can be used, and ""; otherwise the GPUs that there are, and why they cannot be used."""
    if found.rocm is not None:
        return (), f"torch {found.torch} is built for ROCm; sessions on a GPU need one built for CUDA"
    if found.cuda is None and not found.has_gpu:
        return (), f"this machine shows no NVIDIA GPU (and torch {found.torch} is built without CUDA)"
    if found.cuda is None:
        return (), (
            f"torch {found.torch} is built without CUDA; `pip install --force-reinstall torch` installs the build for "
            f"CUDA, unless pip is advised to take another index"
        )
    if found.driver is None:
        missing = "driver" if found.has_gpu else "GPU and no NVIDIA driver"
        return (), (
            f"there is no NVIDIA {missing} (libcuda.so.1); in a container, start it with `docker run --gpus all` and "
            "the NVIDIA Container Toolkit"
        )
    has, needs = version_text(found.driver), found.cuda.split(".")[0]
    if not found.infos:
        if found.driver // 1000 < int(needs):
            return (), (
                f"NVIDIA's driver goes up to CUDA {has}, torch {found.torch} needs {found.cuda}: install a newer "
                f"driver, or torch built for CUDA {found.driver // 1000}"
            )
        why = f": {found.failure}" if found.failure else ""
        return (), f"CUDA sees no GPU{why}; look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES"
    good, why = [], ""
    for info in found.infos:
        trouble = _trouble(info, found)
        good += [] if trouble else [info]
        why = why or trouble
    if not good:
        return found.infos, why
    if found.cupy:
        extra = "gpu13" if needs == "13" else "gpu"
        return found.infos, f"{found.cupy}; `pip install 'emberline[{extra}]'` is for CUDA {needs}"
    return tuple(good), ""


class CudaGpus:
    """The CUDA GPUs of this process; see Gpus."""

    def __init__(self, infos: Sequence[GpuInfo], why_none: str) -> None:
        self.infos: Sequence[GpuInfo] = tuple(infos)
        self.why_none = why_none
        self._lock = threading.Lock()
        self._drivers: dict[int, Driver] = {}

    def driver(self, index: int) -> Driver:
        """Returns the driver of a GPU; see Gpus.

        Raises DeviceError, too, when it does not start or kernels do not compile.
        """
        info = next((each for each in self.infos if each.index == index), None)
        if info is None or self.why_none:
            why = self.why_none or f"there are {', '.join(str(each.index) for each in self.infos)}"
            raise ConfigError(f"GPU {index} cannot be used: {why}", field="instance_group.gpus")
        with self._lock:
            if index not in self._drivers:
                self._drivers[index] = _start(info)
            return self._drivers[index]


def find_gpus() -> Gpus:
    """Finds the GPUs of this process, once. Starts CUDA where it can: a process that forks does so before."""
    with _LOOKING:
        return _find_gpus()


def known_gpus() -> Gpus | None:
    """Returns the result of find_gpus; None until it was called."""
    return _find_gpus() if _find_gpus.cache_info().currsize else None


_LOOKING = threading.Lock()


@functools.cache
def _find_gpus() -> Gpus:
    gpus: Gpus
    try:
        gpus = CudaGpus(*judge(look_around()))
    except Exception as error:
        logger.exception("looking for GPUs failed")
        gpus = CudaGpus((), f"looking for GPUs failed: {first_line(error)}")
    return gpus


def driver_version() -> int | None:
    """Returns the newest CUDA of NVIDIA's driver, as 12040 for 12.4; None when there is no driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int(0)
        status = library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value if status == 0 else None


def shows_gpu(root: Path = Path("/")) -> bool:
    """Returns whether the machine shows an NVIDIA GPU: a device of the driver, or one on the PCI bus without a
    driver.
    """
    if next((root / "dev").glob("nvidia[0-9]*"), None) is not None:
        return True
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text(encoding="ascii") for name in ("vendor", "class"))
        except (OSError, UnicodeDecodeError):
            continue
        if vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY):
            return True
    return False


def version_text(version: int) -> str:
    """Formats a version, such as 12.4 for 12040."""
    return f"{version // 1000}.{version % 1000 // 10}"


def cupy_trouble() -> str:
    """Returns why CuPy cannot be used with the GPUs that torch sees, "" when it can. Imports it: half a second."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    try:
        seen = importlib.import_module("cupy.cuda.runtime").getDeviceCount()
    except Exception as error:
        return f"CuPy cannot be used: {first_line(error)}"
    return "" if seen else "CuPy sees no GPU"


def _info(index: int) -> GpuInfo:
    gpu = torch.cuda.get_device_properties(index)
    uuid = str(getattr(gpu, "uuid", ""))
    if uuid and not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    return GpuInfo(index, gpu.name, (gpu.major, gpu.minor), gpu.total_memory, uuid)


def _trouble(info: GpuInfo, found: Surroundings) -> str:
    major, minor = info.capability
    if info.capability < OLDEST_CAPABILITY:
        return f"{info} has compute capability {major}.{minor}; 7.5 (Turing) is the oldest"
    if not covers(found.built_for, info.capability):
        return f"torch {found.torch} has no kernels for {info}, sm_{major}{minor}: {', '.join(found.built_for)}"
    return ""


def covers(built_for: Sequence[str], capability: tuple[int, int]) -> bool:
    """Returns whether code for any of these, such as sm_90 or compute_80, runs on a GPU; True for an empty list."""
    major, minor = capability
    for each in built_for:
        kind, _, number = each.partition("_")
        digits = "".join(filter(str.isdigit, number))
        if not digits:
            return True
        code = (int(digits[:-1] or 0), int(digits[-1]))
        # Machine code runs on later GPUs of the same generation, PTX on all later ones.
        if (code[0] == major and code[1] <= minor) or (kind == "compute" and code <= (major, minor)):
            return True
    return not built_for


def _start(info: GpuInfo) -> Driver:
    try:
        from serving.gpu.torch_driver import TorchDriver

        return TorchDriver(info)
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(f"{info} cannot be used: {first_line(error)}") from error
