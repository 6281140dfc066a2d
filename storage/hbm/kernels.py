"""Compiles the kernels of cuda/ for a GPU, keeps them on disk and launches them.

Nothing else reads that folder at run time. NVRTC compiles them, through CuPy; neither a CUDA toolkit nor a GPU is
needed for that. A compiled kernel is kept under a key over all that it could depend on: the bytes of every source in
cuda/ (of included files as well as of the kernel), the options, the GPU's architecture, and the versions of CuPy and of
NVRTC.

CuPy is imported when it is first needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.errors import ConfigError, DeviceError, NotFound
from storage.hbm.kernel_sources import ACROSS, SOURCES, THREADS

logger = logging.getLogger("emberline.storage")

# The options leave out -ftz, which CuPy's own way to compile would add. --no-source-include: included files come from
# cuda/ only, never from the folder that the process runs in.
OPTIONS = ("--std=c++17", "--no-source-include")
# Units of 16 bytes for each thread of `assemble`, and blocks for each input: a first guess, not measured.
_UNITS_EACH = 4
_BLOCKS_AT_MOST = 1024

_ENTRIES_AT_MOST = 64
_ENTRY = re.compile(r".+-sm_\d+-[0-9a-f]{64}\.cubin|kernel-.+\.part")
_DIGEST_BYTES = 32
_LOG_LINES = 12
_INSTALL = "pip install 'emberline[gpu13]' for drivers of CUDA 13, 'emberline[gpu]' for those of CUDA 12"


def _default_cache() -> Path | None:
    try:
        return Path.home() / ".cache" / "emberline" / "kernels"
    except RuntimeError:
        return None


# The default folder for compiled kernels; None where the user has no home.
DEFAULT_CACHE = _default_cache()


def source_folder() -> Path:
    """Returns the folder of the sources: in the package in a wheel, beside the package in a checkout.

    Raises NotFound.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "cuda", package.parent / "cuda"):
        if next(folder.glob("*.cu"), None) is not None:
            return folder
    raise NotFound(f"no kernel sources in {package / 'cuda'}; this installation is not whole: install emberline anew")


def read_sources(folder: Path) -> dict[str, bytes]:
    """Returns name -> bytes of every .cu and .cuh file of a folder, in order of names."""
    paths = (path for pattern in ("*.cu", "*.cuh") for path in folder.glob(pattern))
    return {path.name: path.read_bytes() for path in sorted(paths)}


def compile_source(
    name: str, arch: str, sources: Mapping[str, bytes], options: Sequence[str] = OPTIONS
) -> tuple[bytes, str]:
    """Compiles NAME.cu and returns the cubin and the compiler's messages. Needs no GPU and keeps nothing.

    arch: such as "sm_90". Raises ConfigError without CuPy or NVRTC, DeviceError when the compiler refuses.
    """
    nvrtc = _compiler()
    if re.fullmatch(r"sm_\d+", arch) is None or int(arch[3:]) not in nvrtc.getSupportedArchs():
        known = ", ".join(f"sm_{number}" for number in nvrtc.getSupportedArchs())
        raise DeviceError(f"the installed NVRTC compiles nothing for {arch!r}, only for {known}; {_INSTALL}")
    headers = [file for file in sources if file.endswith(".cuh")]
    program = nvrtc.createProgram(
        sources[f"{name}.cu"].decode(), f"{name}.cu", [sources[file] for file in headers], [h.encode() for h in headers]
    )
    try:
        nvrtc.compileProgram(program, (*options, f"-arch={arch}"))
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        lines = nvrtc.getProgramLog(program).strip().splitlines()
        shown = "\n".join(lines[:_LOG_LINES] + ["..."] * (len(lines) > _LOG_LINES))
        raise DeviceError(f"cuda/{name}.cu does not compile for {arch}: {error}\n{shown}") from error
    finally:
        nvrtc.destroyProgram(program)


def compile_kernel(
    name: str, arch: str, cache: Path | None, *, folder: Path | None = None, options: Sequence[str] | None = None
) -> bytes:
    """Returns the cubin of a kernel, from the cache when it is there. Needs no GPU.

    cache: a folder, made when it is missing; None to keep nothing. One that cannot be written to costs a compilation at
    each start. folder: that of the sources, options: those of the compiler; None for the defaults. Raises NotFound for
    a name that no source has, else as compile_source does.
    """
    folder = source_folder() if folder is None else folder
    options = OPTIONS if options is None else options
    sources = read_sources(folder)
    if f"{name}.cu" not in sources:
        known = ", ".join(file.removesuffix(".cu") for file in sources if file.endswith(".cu"))
        raise NotFound(f"no kernel is called {name!r} in {folder}; there are: {known}")
    if cache is None:
        return compile_source(name, arch, sources, options)[0]
    key = _cache_key(name, arch, sources, options)
    path = cache / f"{name}-{arch}-{key.hex()}.cubin"
    cubin = _read_entry(path, key)
    if cubin is None:
        cubin = compile_source(name, arch, sources, options)[0]
        _write_entry(path, key, cubin)
    return cubin


def is_kept(name: str, capability: tuple[int, int], cache: Path | None, options: Sequence[str] = OPTIONS) -> bool:
    """Returns whether compile_kernel has nothing to compile. Raises ConfigError, DeviceError, as gpu_arch does."""
    if cache is None:
        return False
    arch = gpu_arch(capability)
    key = _cache_key(name, arch, read_sources(source_folder()), options)
    return _read_entry(cache / f"{name}-{arch}-{key.hex()}.cubin", key) is not None


def gpu_arch(capability: tuple[int, int]) -> str:
    """Returns the architecture to compile for: the GPU's own, or the last before it of the same generation.

    capability: such as (9, 0). Raises ConfigError without CuPy or NVRTC, DeviceError for a GPU that it does not know.
    """
    major, minor = capability
    supported = _compiler().getSupportedArchs()
    fits = [number for number in supported if number // 10 == major and number % 10 <= minor]
    if not fits:
        known = ", ".join(f"{number // 10}.{number % 10}" for number in supported)
        raise DeviceError(
            f"the installed NVRTC compiles nothing for a GPU of compute capability {major}.{minor}, only for {known}"
        )
    return f"sm_{max(fits)}"


class Kernels:
    """Loads and launches the kernels on one GPU. Thread-safe, for threads whose current GPU it is.

    A loaded kernel stays loaded: graphs may hold it. Once a kernel is loaded, work is put on the given stream and
    nothing else happens: no allocation, no waiting, so that a stream may be capturing. Every call may raise
    DeviceError, caused by CuPy's CUDADriverError when the GPU refuses.
    """

    def __init__(self, device: int, capability: tuple[int, int], cache: Path | None = DEFAULT_CACHE) -> None:
        """Prepares the kernels of a GPU.

        device: index among the GPUs that CUDA sees. capability: such as (9, 0). cache: see compile_kernel.
        """
        self.device = device
        self._capability = capability
        self._cache = cache
        self._lock = threading.Lock()
        self._assemble: int | None = None
        # Functions of lookups by name; replaced whole.
        self._others: Mapping[str, int] = {}

    def load(self) -> None:
        """Compiles and loads the kernels that every session needs. Call it before the first capture: a graph cannot
        load them.

        Raises ConfigError without CuPy or NVRTC.
        """
        self._load_assemble()

    def load_lookups(self) -> None:
        """Compiles and loads the kernels of storage.hbm.lookup_kernels."""
        for source in SOURCES:
            if source != ACROSS:
                self._load_source(source)

    def load_across(self) -> None:
        """Compiles and loads the kernels that read the memory of other GPUs."""
        self._load_source(ACROSS)

    def assemble(
        self,
        *,
        staging: int,
        table: int,
        inputs: int,
        target: int,
        stamp: int,
        rows: int,
        widest: int,
        stream: int,
    ) -> None:
        """Unpacks a batch; see cuda/assemble.cuh. Addresses are in device memory, the stream is a cudaStream_t.

        inputs: rows of the table, at most 65535. rows: number of rows of every target tensor. widest: bytes of the
        longest row.
        """
        function = self._assemble
        if function is None:
            function = self._load_assemble()
        blocks = min(max(rows * widest // (16 * _UNITS_EACH * THREADS), 1), _BLOCKS_AT_MOST)
        values = (staging, table, inputs, target, stamp, rows)
        self.launch("assemble", function, (blocks, max(inputs, 1)), values, stream)

    def call(self, name: str, blocks: tuple[int, int], values: Sequence[int], stream: int) -> None:
        """Starts a kernel of storage.hbm.lookup_kernels. values: its arguments; addresses are in device memory.

        Raises NotFound for an unknown name.
        """
        function = self._others.get(name)
        if function is None:
            function = self._load_source(_source_of(name))[name]
        self.launch(name, function, blocks, values, stream)

    def launch(self, name: str, function: int, blocks: tuple[int, int], values: Sequence[int], stream: int) -> None:
        """Starts a kernel that takes values of eight bytes each.

        name: for errors. blocks: those of the grid, x and y.
        """
        count = len(values)
        # The call copies the values, so they need not outlive it.
        held = (ctypes.c_int64 * count)(*values)
        first = ctypes.addressof(held)
        parameters = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        try:
            _driver().launchKernel(function, *blocks, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(parameters), 0)
        except RuntimeError as error:
            raise DeviceError(f"GPU {self.device} did not start kernel {name}: {error}") from error

    def functions(self, source: str, names: Sequence[str], options: Sequence[str] = OPTIONS) -> dict[str, int]:
        """Loads kernels of one source, by name. Raises ConfigError without CuPy or NVRTC."""
        cubin = compile_kernel(source, gpu_arch(self._capability), self._cache, options=options)
        import cupy

        driver = _driver()
        try:
            with cupy.cuda.Device(self.device):
                # The driver's own calls make no context; this one does.
                cupy.cuda.runtime.free(0)
                module = driver.moduleLoadData(cubin)
                return {name: int(driver.moduleGetFunction(module, name)) for name in names}
        except RuntimeError as error:
            raise DeviceError(f"GPU {self.device} does not load kernel {source}: {error}") from error

    def _load_assemble(self) -> int:
        with self._lock:
            if self._assemble is None:
                self._assemble = self._function("assemble")
            return self._assemble

    def _load_source(self, source: str) -> Mapping[str, int]:
        """Returns all functions of lookups that are loaded."""
        names = SOURCES[source]
        with self._lock:
            if not self._others.keys() >= set(names):
                self._others = {**self._others, **self.functions(source, names)}
            return self._others

    def _function(self, name: str) -> int:
        return self.functions(name, [name])[name]


def _source_of(name: str) -> str:
    for source, names in SOURCES.items():
        if name in names:
            return source
    raise NotFound(f"no kernel of lookups is called {name!r}")


@functools.cache
def _driver() -> Any:
    from cupy.cuda import driver

    return driver


@functools.cache
def _compiler() -> Any:
    """Returns CuPy's binding of NVRTC. Raises ConfigError."""
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise ConfigError(f"kernels for a GPU need CuPy: {_INSTALL} ({error})") from error
    try:
        nvrtc.getVersion()
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"CuPy finds no NVRTC, which compiles kernels: {_INSTALL} ({str(error).strip()})") from error
    return nvrtc


@functools.cache
def _versions() -> str:
    """Returns the versions of CuPy and of NVRTC, with its build, which only the head of a compiled empty program
    names.
    """
    import cupy

    nvrtc = _compiler()
    program = nvrtc.createProgram("", "empty.cu", [], [])
    try:
        nvrtc.compileProgram(program, ())
        head = [line for line in nvrtc.getPTX(program).decode().splitlines() if line.startswith("//")]
    finally:
        nvrtc.destroyProgram(program)
    return "\n".join((cupy.__version__, str(nvrtc.getVersion()), *head))


def _cache_key(name: str, arch: str, sources: Mapping[str, bytes], options: Sequence[str]) -> bytes:
    digest = hashlib.sha256()
    parts = [name, arch, _versions(), *options]
    for part in (*(part.encode() for part in parts), *(part for item in sources.items() for part in item)):
        encoded = part.encode() if isinstance(part, str) else part
        # Lengths separate parts that would read the same when joined.
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def _read_entry(path: Path, key: bytes) -> bytes | None:
    """Reads a cubin that is whole and under its own key; None otherwise."""
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    cubin = entry[_DIGEST_BYTES:]
    if hashlib.sha256(key + cubin).digest() == entry[:_DIGEST_BYTES]:
        return cubin
    logger.warning("%s is damaged; the kernel is compiled anew", path)
    return None


def _write_entry(path: Path, key: bytes, cubin: bytes) -> None:
    # A unique name keeps processes that compile the same source from writing into each other's file.
    part = path.with_name(f"kernel-{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_bytes(hashlib.sha256(key + cubin).digest() + cubin)
        os.replace(part, path)
    except OSError as error:
        logger.warning("compiled kernels cannot be kept in %s, so each start compiles them: %s", path.parent, error)
        with contextlib.suppress(OSError):
            part.unlink()
        return
    # Another process may have removed the entry already.
    with contextlib.suppress(OSError):
        _drop_oldest(path.parent)


def _drop_oldest(cache: Path) -> None:
    """Removes the oldest entries: each change of a source or version leaves an unused one, a killed process a part."""
    entries = [(path.stat().st_mtime_ns, path) for path in cache.iterdir() if _ENTRY.fullmatch(path.name)]
    for _, path in sorted(entries, reverse=True)[_ENTRIES_AT_MOST:]:
        path.unlink()
