"""Builds in advance what takes minutes on a machine with a GPU: native modules, kernels for its GPU and its host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from native import CARRIED, HOST_KERNELS, KERNELS, LIBRARIES, native_digest
from wheels import ROOT

_BUILD_S = 900.0
# Runs in a process that sees the repository, and writes into the folder that it is given.
_COMPILE = """
import sys
from pathlib import Path
from storage.compile_kernels import compile_all

folder, arch = Path(sys.argv[1]), sys.argv[2]
compile_all([arch], folder)
"""
_FOR_HOST = "from tests.simulated_gpu import kernels; print(kernels._library()._name)"


def make(python: str, arch: str, folder: Path) -> Iterator[str]:
    """Fills the folder; yields for each item what was made, or why not.

    Items that are missing are made on the machine itself.
    """
    makers: dict[str, Callable[[], str]] = {
        "native modules": partial(native, python, folder),
        "kernels": partial(kernels, arch, folder / KERNELS),
        "kernels for the host": partial(host_kernels, folder / HOST_KERNELS),
    }
    for what, work in makers.items():
        began = time.monotonic()
        said = work()
        yield f"{what}: {said} ({time.monotonic() - began:.0f} s)"


def native(python: str, folder: Path) -> str:
    """Builds a wheel of ours for a Python of that version, if this machine has one."""
    interpreter = find_python(python)
    if interpreter is None:
        return f"not made, there is no Python {python} here"
    before = set(folder.glob("*.whl"))
    command = [str(interpreter), "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check"]
    # Includes the limits that the benchmarks measure, which a wheel for users leaves out.
    command += ["--config-settings=cmake.define.EMBERLINE_LIMITS=ON", "--wheel-dir", str(folder), str(ROOT)]
    done = _run(command)
    if done.returncode != 0:
        return f"not made: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
    (wheel,) = set(folder.glob("*.whl")) - before
    unpacked = Path(os.environ.get("EMBERLINE_NGHTTP2", ""), "lib")
    for library in unpacked.glob("*/libnghttp2.so.[0-9][0-9]"):  # the module looks for it beside itself, too
        (folder / LIBRARIES).mkdir(exist_ok=True)
        shutil.copyfile(library, folder / LIBRARIES / library.name)
    text = json.dumps({"wheel": wheel.name, "native": native_digest()})
    (folder / CARRIED).write_text(text + "\n", encoding="utf-8")
    return f"{wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB"


def kernels(arch: str, folder: Path) -> str:
    """Compiles all kernels of cuda/ into the layout of the kernel cache."""
    folder.mkdir()
    done = _run([sys.executable, "-c", _COMPILE, str(folder), arch])
    if done.returncode != 0:
        return f"not made: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
    found = list(folder.glob("*.cubin"))
    return f"{len(found)} for {arch}, {sum(path.stat().st_size for path in found) / 2**20:.1f} MiB"


def host_kernels(folder: Path) -> str:
    """Compiles the same kernels for the processor, for tests that compare the two."""
    folder.mkdir()
    done = _run([sys.executable, "-c", _FOR_HOST])
    if done.returncode != 0:
        return f"not made: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
    library = Path(done.stdout.strip().splitlines()[-1])
    shutil.copyfile(library, folder / library.name)
    return f"{library.name}, {library.stat().st_size / 2**20:.1f} MiB"


def find_python(version: str) -> Path | None:
    """Returns a Python of that version, from PATH or from pyenv."""
    if sys.version.startswith(f"{version}."):
        return Path(sys.executable)
    found = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))
    on_path = shutil.which(f"python{version}")
    return Path(on_path) if on_path and not found else found[-1] if found else None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {_BUILD_S:.0f} s")
