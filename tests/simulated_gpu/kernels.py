"""Runs the kernels of cuda/, compiled for the host: each thread of a grid runs the kernel's code, one after the other.

    call = lookup_kernels.pool(...)              # over tensors of the processor
    kernels.run(call.name, call.values, call.blocks)

A library for each state of the sources is kept in build/, so that a session compiles at most once.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

_ROOT = Path(__file__).parents[2]
_SOURCE = Path(__file__).with_name("kernels.cpp")
_KEPT = _ROOT / "build" / "host_kernels"
_MOST_KEPT = 4
_SECONDS = 300
# No fused multiply-add, as on a GPU.
_OPTIONS = ("-std=c++20", "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")


def run(name: str, values: Sequence[int | torch.Tensor], blocks: tuple[int, int]) -> None:
    """Runs a kernel to its end.

    values: its arguments; a tensor is passed as its address, and so may be an int. blocks: of the grid, x and y.
    Raises ValueError for an unknown kernel, or one that takes other arguments.
    """
    library = _library()
    try:
        kernel = getattr(library, f"run_{name}")
    except AttributeError:
        raise ValueError(f"no kernel is called {name!r} in {_SOURCE.name}") from None
    expected = ctypes.c_int64.in_dll(library, f"values_of_{name}").value
    if len(values) != expected:
        raise ValueError(f"kernel {name} takes {expected} values, got {len(values)}")
    held = (ctypes.c_int64 * expected)(*(v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values))
    kernel(held, ctypes.c_int64(blocks[0]), ctypes.c_int64(blocks[1]))


@functools.cache
def _library() -> ctypes.CDLL:
    sources = [_SOURCE, *sorted((_ROOT / "cuda").glob("*.cu*"))]
    compiler = shutil.which("g++") or shutil.which("c++") or "c++"
    # The compiler is not part of the digest: a library that another machine compiled is equivalent.
    digest = hashlib.sha256(repr(_OPTIONS).encode())
    for path in sources:
        digest.update(path.name.encode() + path.read_bytes())
    _KEPT.mkdir(parents=True, exist_ok=True)
    path = _KEPT / f"kernels-{digest.hexdigest()[:32]}.so"
    with (_KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(compiler, path)
            others = sorted(_KEPT.glob("kernels-*.so"), key=lambda kept: kept.stat().st_mtime_ns)
            for old in others[:-_MOST_KEPT]:
                old.unlink()
        return ctypes.CDLL(str(path))


def _compile(compiler: str, path: Path) -> None:
    part = path.with_suffix(".part")
    command = [compiler, *_OPTIONS, f"-I{_ROOT / 'cuda'}", "-o", str(part), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{_SOURCE.name} does not compile:\n{done.stderr}")
    part.replace(path)
