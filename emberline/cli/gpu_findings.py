"""Findings of `emberline doctor` about torch, the GPUs, their driver and kernels, and the places of sessions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch

from emberline.cli.finding import Finding
from serving.gpu.device_errors import first_line
from serving.gpu.driver import GpuInfo
from serving.gpu.gpus import Surroundings, driver_version, judge, look_around, version_text
from storage.byte_sizes import human_bytes
from storage.errors import EmberlineError
from storage.hbm.kernels import Kernels, compile_kernel, gpu_arch

# Bytes copied a few times within each GPU, and to it from pinned memory: a third of a second with the memory's pinning.
PROBE_BYTES = 2**28
_PROBE_COPIES = 4
# Capability to compile for where there is no GPU to load the kernels.
_CHECKED_CAPABILITY = (9, 0)

# Bytes a second: within a GPU, each byte read and written; to the GPU from pinned memory.
Rates = tuple[float, float]


def gpu_findings() -> list[Finding]:
    """Returns the findings in the order of the report. Copies a little on each GPU; never raises because of one."""
    return findings_of(look_around(), nvml_driver(), copy_rates)


def findings_of(found: Surroundings, driver_release: str, measure: Callable[[int], Rates]) -> list[Finding]:
    """Turns measurements into findings.

    driver_release: as NVIDIA numbers it, "" when that is not known. measure: returns the rates of a GPU by its number.
    """
    infos, why_none = judge(found)
    gpus = found.infos
    findings = [_torch(found), _driver(found, driver_release)]
    findings += [_gpu(info) for info in gpus] or [Finding("GPU", "none")]
    findings += [_cupy(), _kernels(infos if not why_none else ())]
    if not why_none:
        findings += [_copies(info, measure) for info in infos]
        findings += [_peers(infos)] if len(infos) > 1 else []
    return [*findings, _sessions(infos, why_none)]


def nvml_driver() -> str:
    """Returns the release of NVIDIA's driver, such as 580.95.05; "" without nvidia-ml-py."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return str(nvml.nvmlSystemGetDriverVersion())
    except Exception:
        return ""


def copy_rates(index: int) -> Rates:
    """Measures the rates of a GPU."""
    device = torch.device("cuda", index)
    with torch.cuda.device(device):
        source = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=device)
        target = torch.zeros_like(source)
        host = torch.zeros(PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
        within = _rate(lambda: target.copy_(source, non_blocking=True))
        return within, _rate(lambda: target.copy_(host, non_blocking=True))


def _rate(copy: Callable[[], object]) -> float:
    begin: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    copy()
    begin.record()
    for _ in range(_PROBE_COPIES):
        copy()
    end.record()
    end.synchronize()
    seconds = float(begin.elapsed_time(end)) / 1000
    return _PROBE_COPIES * PROBE_BYTES / seconds


def _torch(found: Surroundings) -> Finding:
    built = f"for CUDA {found.cuda}" if found.cuda else "for ROCm" if found.rocm else "without CUDA"
    return Finding("torch", f"{found.torch}, built {built}, {torch.get_num_threads()} threads")


def _driver(found: Surroundings, release: str) -> Finding:
    driver = found.driver or driver_version()
    if driver is None:
        return Finding("GPU driver", "none")
    value = f"goes up to CUDA {version_text(driver)}"
    return Finding("GPU driver", f"{release}, {value}" if release else value)


def _gpu(info: GpuInfo) -> Finding:
    major, minor = info.capability
    value = f"{info.name}, sm_{major}{minor}, {human_bytes(info.total_bytes)}"
    try:
        value += f", {human_bytes(torch.cuda.mem_get_info(info.index)[0])} free"
    except Exception as error:
        return Finding(f"GPU {info.index}", value, f"it does not answer: {first_line(error)}")
    return Finding(f"GPU {info.index}", value)


def _cupy() -> Finding:
    try:
        return Finding("CuPy", str(importlib.import_module("cupy").__version__))
    except ModuleNotFoundError:
        return Finding("CuPy", "not installed")
    except Exception as error:
        return Finding("CuPy", f"cannot be imported: {first_line(error)}")


def _kernels(infos: Sequence[GpuInfo]) -> Finding:
    loaded: list[str] = []
    try:
        for info in infos:
            kernels = Kernels(info.index, info.capability, cache=None)
            kernels.load()
            kernels.load_lookups()
            loaded.append(f"{gpu_arch(info.capability)} on GPU {info.index}")
        if not loaded:
            arch = gpu_arch(_CHECKED_CAPABILITY)
            compile_kernel("assemble", arch, None)
            return Finding("kernels", f"compile for {arch}; without a GPU nothing is loaded")
    except EmberlineError as error:
        return Finding("kernels", f"none: {first_line(error)}")
    return Finding("kernels", f"compiled and loaded: {', '.join(loaded)}")


def _copies(info: GpuInfo, measure: Callable[[int], Rates]) -> Finding:
    name = f"GPU {info.index} copies"
    try:
        within, to_gpu = measure(info.index)
    except Exception as error:
        return Finding(name, f"not measured: {first_line(error)}")
    return Finding(name, f"{within / 1e9:.0f} GB/s within it, {to_gpu / 1e9:.1f} GB/s to it from pinned memory")


def _peers(infos: Sequence[GpuInfo]) -> Finding:
    """Reports whether GPUs could share rows."""
    name = "GPU peers"
    try:
        apart = [
            f"{one.index} and {other.index}"
            for number, one in enumerate(infos)
            for other in infos[number + 1 :]
            if not (
                torch.cuda.can_device_access_peer(one.index, other.index)
                and torch.cuda.can_device_access_peer(other.index, one.index)
            )
        ]
    except Exception as error:
        return Finding(name, f"not known: {first_line(error)}")
    if apart:
        return Finding(
            name, f"do not read each other's memory: {', '.join(apart)}; hbm_placement: shard is not for them"
        )
    return Finding(name, "all read each other's memory: hbm_placement: shard may be used")


def _sessions(infos: Sequence[GpuInfo], why_none: str) -> Finding:
    where = f"the CPU: {why_none}" if why_none else " and on ".join(f"GPU {info.index}" for info in infos)
    return Finding("sessions", f"KIND_AUTO and no instance_group: sessions on {where}")
