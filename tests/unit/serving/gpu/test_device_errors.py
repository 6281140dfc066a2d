"""Tests failures of a GPU by the texts and codes with which torch, its libraries and CuPy raise them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from serving.gpu.device_errors import Asking, Fault, GpuState, fault_of, first_line
from serving.gpu.driver import GpuInfo
from storage.errors import CaptureError, DeviceError, DeviceLost, DeviceOutOfMemory, NotFound

INFO = GpuInfo(1, "NVIDIA H100", (9, 0), 80 * 2**30, "GPU-1")

_AFTER = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nDevice-side assertion tracking was not enabled "
    "by user."
)


def coded(code: int, text: str) -> RuntimeError:
    """Makes an error as torch 2.9 and later raise it for a code that CUDA's runtime returned."""
    error: RuntimeError = torch.AcceleratorError(f"CUDA error: {text}{_AFTER}")
    error.error_code = code  # type: ignore[attr-defined]
    return error


class CUDARuntimeError(RuntimeError):
    """Stands in for CuPy's error of the same name, without CuPy."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class CUDADriverError(CUDARuntimeError):
    """Stands in for CuPy's error of the same name, which only a machine with a driver can make."""


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
                "1.25 GiB is free. Including non-PyTorch memory, this process has 77.84 GiB memory in use."
            ),
            "memory",
        ),
        (coded(2, "out of memory"), "memory"),
        (coded(700, "an illegal memory access was encountered"), "lost"),
        (coded(710, "device-side assert triggered"), "lost"),
        (coded(719, "unspecified launch failure"), "lost"),
        (coded(214, "uncorrectable ECC error encountered"), "lost"),
        (coded(715, "an illegal instruction was encountered"), "lost"),
        (coded(714, "hardware stack error"), "lost"),
        (coded(999, "unknown error"), "lost"),
        (coded(900, "operation not permitted when stream is capturing"), "capture"),
        (coded(901, "operation failed due to a previous error during capture"), "capture"),
        (coded(906, "operation would make the legacy stream depend on a capturing blocking stream"), "capture"),
        # Errors of the caller, or of a thread that was never set up for the GPU: the GPU continues.
        (coded(1, "invalid argument"), None),
        (coded(201, "invalid device context"), None),
        (coded(209, "no kernel image is available for execution on the device"), None),
        (coded(720, "too many blocks in cooperative launch"), None),
        (CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory"), "memory"),
        (CUDARuntimeError(700, "cudaErrorIllegalAddress: an illegal memory access was encountered"), "lost"),
        (CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated: operation failed due to"), "capture"),
        (CUDARuntimeError(35, "cudaErrorInsufficientDriver: CUDA driver version is insufficient"), None),
        (CUDADriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"), "lost"),
        (CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE: invalid argument"), None),
        # These have no code.
        (RuntimeError(f"CUDA error: an illegal memory access was encountered{_AFTER}"), "lost"),
        (
            RuntimeError(
                "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda"
            ),
            "lost",
        ),
        (RuntimeError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"), "lost"),
        (RuntimeError("cudaErrorHardwareStackError: hardware stack error"), "lost"),
        (RuntimeError("CUDA driver error: out of memory"), "memory"),
        (RuntimeError("CUDA driver error: unknown error"), "lost"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), None),
        (
            RuntimeError(
                "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent "
                "call last):\nRuntimeError: CUDA error: an illegal memory access was encountered"
            ),
            "lost",
        ),
        (
            RuntimeError(
                "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent "
                "call last):\nRuntimeError: CUDA error: operation not permitted when stream is capturing"
            ),
            "capture",
        ),
        (
            RuntimeError("The following operation failed.\nRuntimeError: CUDA out of memory. Tried to allocate"),
            "memory",
        ),
        # These are not of a GPU, whatever their text.
        (RuntimeError("unknown error"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"), None),
        (ValueError("CUDA error: an illegal memory access was encountered"), None),
        (MemoryError(), None),
    ],
)
def test_faults_by_their_texts_and_codes(error: BaseException, fault: Fault | None) -> None:
    assert fault_of(error) == fault


def test_cupys_own_errors_look_like_that() -> None:
    runtime = pytest.importorskip("cupy.cuda.runtime", reason="CuPy is not installed")
    error: Any = runtime.CUDARuntimeError(700)
    assert issubclass(runtime.CUDARuntimeError, RuntimeError)
    assert (type(error).__name__, error.status, fault_of(error)) == ("CUDARuntimeError", 700, "lost")


@pytest.mark.parametrize(
    "text",
    [
        "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.",
        "Attempt to increase offset for a CUDA generator not in capture mode.",
        "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture",
    ],
)
def test_what_torch_itself_refuses_in_a_capture(text: str) -> None:
    assert fault_of(RuntimeError(text), capturing=True) == "capture"
    assert fault_of(RuntimeError(text)) is None
    assert fault_of(RuntimeError("shapes differ"), capturing=True) is None


def run(state: GpuState, error: Exception | None, asked: int = 0, *, pinned: bool = False, capturing: str = "") -> None:
    """Makes a call to a GPU, which raises the error unless it is None."""
    with Asking(state, asked, pinned=pinned, capturing=capturing):
        if error is not None:
            raise error


def test_a_gpu_that_failed_is_asked_nothing_more() -> None:
    state = GpuState(INFO, lambda: (1, 2))
    illegal = coded(700, "an illegal memory access was encountered")
    with pytest.raises(DeviceLost, match=r"GPU 1 \(NVIDIA H100\) failed: CUDA error: an illegal memory") as first:
        run(state, illegal)
    assert first.value.__cause__ is illegal
    with pytest.raises(DeviceLost, match="start the server anew"):
        run(state, None)


def test_a_message_says_what_was_asked_for_and_what_is_left() -> None:
    state = GpuState(INFO, lambda: (3 * 2**20, 80 * 2**30))
    full = coded(2, "out of memory")
    with pytest.raises(DeviceOutOfMemory, match=r"GPU 1 .*64\.0 MiB asked for, 3\.0 MiB of 81920\.0 MiB are free"):
        run(state, full, 64 * 2**20)
    with pytest.raises(DeviceOutOfMemory, match=r"20\.00 GiB asked for"):
        run(state, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"))
    with pytest.raises(DeviceOutOfMemory, match=r"2\.0 MiB of the host's memory could not be pinned"):
        run(state, full, 2**21, pinned=True)
    run(state, None)  # The GPU continues.

    def unknown() -> tuple[int, int]:
        raise full

    with pytest.raises(DeviceOutOfMemory, match="how much is free is not known"):
        run(GpuState(INFO, unknown), full)


def test_a_capture_is_named_and_the_gpu_goes_on() -> None:
    state = GpuState(INFO, lambda: (1, 2))
    with pytest.raises(CaptureError, match=r"dlrm/64: GPU 1 .*operation not permitted when stream is capturing$"):
        run(state, coded(900, "operation not permitted when stream is capturing"), capturing="dlrm/64")
    assert not state.lost


def test_an_error_of_a_kernel_is_judged_by_its_cause() -> None:
    state = GpuState(INFO, lambda: (1, 2))
    ours = DeviceError("GPU 1 did not start kernel assemble")
    ours.__cause__ = CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
    with pytest.raises(DeviceError) as passed:
        run(state, ours)
    assert passed.value is ours
    ours.__cause__ = CUDADriverError(719, "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure")
    with pytest.raises(DeviceLost):
        run(state, ours)


def test_other_errors_pass_as_they_are() -> None:
    state = GpuState(INFO, lambda: (1, 2))
    for error in (ValueError("a bug"), NotFound("of ours"), RuntimeError("shapes"), CaptureError("named already")):
        with pytest.raises(type(error)) as passed:
            run(state, error)
        assert passed.value is error


def test_the_line_that_says_something() -> None:
    script = (
        "The following operation failed in the TorchScript interpreter.\n\nRuntimeError: CUDA error: unknown error\n"
    )
    assert first_line(RuntimeError(script)) == "RuntimeError: CUDA error: unknown error"
    assert first_line(RuntimeError("\n  shapes differ\nmore")) == "shapes differ"
    assert first_line(KeyError()) == "KeyError"
