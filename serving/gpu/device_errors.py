"""Translates CUDA's failures into our own errors, and remembers a GPU that failed."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from serving.gpu.driver import GpuInfo
from storage.errors import CaptureError, DeviceError, DeviceLost, DeviceOutOfMemory, EmberlineError

Fault = Literal["memory", "lost", "capture"]

# Codes are those of the runtime (cudaError_t); the driver's (CUresult) are the same ones. After most of these,
# according to CUDA's documentation, every further call of the process fails; the rest mean that there is no GPU to ask.
_ENDED = {
    3: "InitializationError",
    4: "CudartUnloading",
    46: "DevicesUnavailable",
    214: "ECCUncorrectable",
    220: "NvlinkUncorrectable",
    227: "Contained",
    700: "IllegalAddress",
    702: "LaunchTimeout",
    709: "ContextIsDestroyed",
    710: "Assert",
    714: "HardwareStackError",
    715: "IllegalInstruction",
    716: "MisalignedAddress",
    717: "InvalidAddressSpace",
    718: "InvalidPc",
    719: "LaunchFailure",
    721: "TensorMemoryLeak",
    802: "SystemNotReady",
    803: "SystemDriverMismatch",
    806: "MpsRpcFailure",
    810: "MpsClientTerminated",
    911: "ExternalDevice",
    999: "Unknown",
}
_NO_MEMORY = 2
_CAPTURE = range(900, 909)

# Names stand for codes where there is no code: libraries, CUDA's driver, and TorchScript, which passes on the text
# alone. The driver has other names for some.
_ENDED_NAMES = {name.lower() for name in _ENDED.values()} | {"launchfailed", "deinitialized", "deviceunavailable"}
_MEMORY_NAMES = {"memoryallocation", "outofmemory"}
_ENDED_PHRASES = (
    "an illegal memory access was encountered",
    "unspecified launch failure",
    "uncorrectable ecc error encountered",
    "uncorrectable nvlink error",
    "hardware stack error",
    "an illegal instruction was encountered",
    "misaligned address",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "device-side assert triggered",
    "the launch timed out and was terminated",
    "busy or unavailable",
    "context is destroyed",
    "unknown error",
)
_CAPTURE_PHRASES = ("when stream is capturing", "previous error during capture")
_NAME = re.compile(r"\bcudaError([A-Z]\w+)|\bCUDA_ERROR_([A-Z_]+)")
_ALLOCATION_FAILED = re.compile(r"\b(CUBLAS|CUDNN|CUSPARSE|CUSOLVER|CUFFT)\w*_ALLOC_FAILED")
_FROM_CUDA = re.compile(r"CUDA (driver )?error|cuda(Error|_runtime)|CUDA_ERROR_|CUDA out of memory", re.IGNORECASE)
_ASKED = re.compile(r"Tried to allocate ([\d.]+ \w+)")


def fault_of(error: BaseException, *, capturing: bool = False) -> Fault | None:
    """Returns the kind of GPU failure that an exception of torch or CuPy means; None: another matter.

    capturing: it came out of a capture, where torch refuses some operators itself.
    """
    kind = type(error).__name__
    if kind == "OutOfMemoryError":  # torch's and CuPy's
        return "memory"
    code = getattr(error, "error_code", getattr(error, "status", None))
    if isinstance(code, int) and kind in ("AcceleratorError", "CUDARuntimeError", "CUDADriverError"):
        return _of_code(code)
    if not isinstance(error, RuntimeError):
        return None
    text = str(error)
    found = _of_text(text)
    if found is None and capturing and "captur" in text.lower():
        return "capture"
    return found


def _of_code(code: int) -> Fault | None:
    if code == _NO_MEMORY:
        return "memory"
    if code in _CAPTURE:
        return "capture"
    return "lost" if code in _ENDED else None


def _of_text(text: str) -> Fault | None:
    if _ALLOCATION_FAILED.search(text):
        return "memory"
    if not _FROM_CUDA.search(text):
        return None
    for runtime, driver in _NAME.findall(text):
        name = (runtime or driver.replace("_", "")).lower()
        if name in _MEMORY_NAMES:
            return "memory"
        if name.startswith("streamcapture") or name == "capturedevent":
            return "capture"
        if name in _ENDED_NAMES:
            return "lost"
    lower = text.lower()
    if any(phrase in lower for phrase in _CAPTURE_PHRASES):
        return "capture"
    if any(phrase in lower for phrase in _ENDED_PHRASES):
        return "lost"
    return "memory" if "out of memory" in lower else None


def first_line(error: BaseException) -> str:
    """Returns the informative line of a message; TorchScript's has it at its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if _FROM_CUDA.search(line)), lines[0] if lines else "")
    return said or type(error).__name__


class GpuState:
    """The state of one GPU. Thread-safe."""

    def __init__(self, info: GpuInfo, memory: Callable[[], tuple[int, int]]) -> None:
        """Starts with a working GPU. memory: returns its free and total bytes; called for messages only."""
        self.info = info
        #: Why the GPU failed; "" as long as it works.
        self.lost = ""
        self._memory = memory

    def check(self) -> None:
        """Raises DeviceLost when the GPU failed before."""
        if self.lost:
            raise DeviceLost(self.lost)

    def translated(self, error: BaseException, asked: int = 0, *, pinned: bool = False, capturing: str = "") -> None:
        """Raises what an exception of torch or CuPy means; returns when it is no failure of the GPU, or ours already.

        asked: bytes that the call wanted, 0 where that is not known. capturing: what was captured.
        """
        if type(error) is DeviceError and error.__cause__ is not None:
            error = error.__cause__
        if isinstance(error, EmberlineError):
            return
        fault = fault_of(error, capturing=bool(capturing))
        if fault == "lost":
            self.lost = (
                f"{self.info} failed: {first_line(error)}. Nothing more can be asked of it: start the server anew; "
                f"`nvidia-smi -q` and `dmesg` say more"
            )
            raise DeviceLost(self.lost) from error
        if fault == "capture":
            what = f"{capturing}: " if capturing else ""
            raise CaptureError(f"{what}{self.info}: no CUDA graph holds this: {first_line(error)}") from error
        if fault == "memory":
            raise DeviceOutOfMemory(self._too_much(error, asked, pinned)) from error

    def _too_much(self, error: BaseException, asked: int, pinned: bool) -> str:
        said = _ASKED.search(str(error))
        wanted = mebibytes(asked) if asked else said[1] if said else "memory"
        if pinned:
            return (
                f"{self.info}: {wanted} of the host's memory could not be pinned: {first_line(error)}; "
                f"give the machine or the container more, or serve fewer models"
            )
        try:
            free, total = self._memory()
            left = f"{mebibytes(free)} of {mebibytes(total)} are free"
        except Exception:
            left = "how much is free is not known"
        return (
            f"{self.info} has no memory for this: {wanted} asked for, {left}; "
            f"serve fewer models or sessions on it, or smaller batches"
        )


class Asking:
    """A context for a call to a GPU.

    It raises DeviceLost at once when the GPU failed before, and our errors instead of torch's and CuPy's.
    """

    __slots__ = ("_asked", "_capturing", "_pinned", "_state")

    def __init__(self, state: GpuState, asked: int = 0, *, pinned: bool = False, capturing: str = "") -> None:
        """See GpuState.translated. The object keeps nothing between calls, and serves any number at a time."""
        self._state = state
        self._asked = asked
        self._pinned = pinned
        self._capturing = capturing

    def __enter__(self) -> None:
        self._state.check()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is not None:
            self._state.translated(error, self._asked, pinned=self._pinned, capturing=self._capturing)


def mebibytes(count: int) -> str:
    """Formats bytes, such as 1.5 MiB."""
    return f"{count / 2**20:.1f} MiB"
