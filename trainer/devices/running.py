"""Sets torch up for a training on a device, and reports the device and its memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.deterministic
from torch import nn

from storage.errors import DeviceOutOfMemory

# Sizes of cuBLAS's workspaces with which its products are the same each time whatever streams there are; torch warns of
# any other. cuBLAS takes them from the environment alone.
_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
_GIB = 2**30


@dataclass(frozen=True)
class DeviceReport:
    """The device of a training, and the memory that torch took of it."""

    #: Such as cuda:0.
    device: str
    #: Such as NVIDIA H100 80GB HBM3.
    name: str
    memory_bytes: int
    #: Bytes of tensors, and with what torch keeps for later ones.
    used_bytes: int
    reserved_bytes: int
    #: The largest `used_bytes` so far.
    peak_bytes: int

    def short(self) -> str:
        """The text that a progress bar shows."""
        return f"{self.reserved_bytes / _GIB:.1f} of {self.memory_bytes / _GIB:.0f} GiB of {self.device}"

    def line(self) -> str:
        """The figures on one line."""
        return (
            f"{self.device}, {self.name}: {self.peak_bytes / _GIB:.2f} GiB of tensors at most, "
            f"{self.reserved_bytes / _GIB:.2f} of {self.memory_bytes / _GIB:.1f} GiB taken"
        )


def device_report(device: torch.device) -> DeviceReport | None:
    """Returns what a GPU is and what of its memory is in use; None for the processor."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_properties(device)
    return DeviceReport(
        str(device),
        found.name,
        found.total_memory,
        torch.cuda.memory_allocated(device),
        torch.cuda.memory_reserved(device),
        torch.cuda.max_memory_allocated(device),
    )


def described_device(device: torch.device, precision: str, *, compiled: bool) -> str:
    """Returns the line that a training begins with, "" on a processor without settings."""
    how = f"in {precision}" + (", compiled" if compiled else "")
    if device.type != "cuda":
        return "" if how == "in fp32" else f"trains on the processor {how}"
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_properties(device).name
    return f"trains on {device}, {name} ({free / _GIB:.1f} of {total / _GIB:.1f} GiB free), {how}"


@contextmanager
def running_on(device: torch.device, precision: str) -> Iterator[None]:
    """Sets torch to train on a device for the block, and back afterwards, its random numbers among them.

    On a GPU, operators compute the same bits each time; torch warns of one that does not. Products of float32 are
    rounded to TF32 for the precision tf32 alone.
    """
    if device.type != "cuda":
        # No argument for the GPUs: this must not start CUDA.
        with torch.random.fork_rng(devices=[]):
            yield
        return
    os.putenv(*_WORKSPACE)
    products = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # Every tensor that is made would be written twice, to make mistakes show.
    filled: Any = torch.utils.deterministic
    fills = filled.fill_uninitialized_memory
    with torch.random.fork_rng(devices=[device.index], device_type="cuda"), torch.cuda.device(device):
        # Unlike fp32_precision of torch.backends, it also sets what older readers in torch look at.
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.use_deterministic_algorithms(True, warn_only=True)
        filled.fill_uninitialized_memory = False
        torch.cuda.reset_peak_memory_stats(device)
        try:
            yield
        finally:
            torch.cuda.synchronize(device)
            filled.fill_uninitialized_memory = fills
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
            torch.set_float32_matmul_precision(products)


@contextmanager
def on_host(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Has the weights of a model in host memory for the block: what is published is computed there, in float32.

    They come back as the same bits and the same parameters, so optimizers go on with them.
    """
    if device.type == "cpu":
        yield
        return
    products = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # "high" is also for products on a processor that has TF32
    model.to("cpu")
    try:
        yield
    finally:
        model.to(device)
        torch.set_float32_matmul_precision(products)


@contextmanager
def out_of_memory(device: torch.device, doing: str, advice: str) -> Iterator[None]:
    """Raises DeviceOutOfMemory that says what to lower, where the block finds no memory on a GPU.

    doing: such as "step 3". advice: what to do about it.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        report = device_report(device)
        used = "" if report is None else f" ({report.short()} are taken by this process)"
        said = str(error).strip().splitlines()[0].partition(". ")[0][:200]
        raise DeviceOutOfMemory(f"{doing}: no memory left on {device}{used}; {advice} [{said}]") from error
