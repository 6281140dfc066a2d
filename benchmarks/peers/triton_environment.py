"""Installs Triton and perf_analyzer from wheels, in a folder of their own.

    python -m benchmarks.peers.triton_environment      # makes build/bench-triton: about 300 MB

The server is the binary in the wheel of PyTriton, with its Python backend. That backend loads whatever libpython the
system has, so the environment belongs to the system's Python, whose version must be the one that runs here; it sees the
torch that is here. perf_analyzer is in the wheel of tritonclient 2.50 (later ones lack it or need a newer libc) and
needs libb64 from Debian and a library of CUDA that it never calls.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

from benchmarks.peers import PeerMissingError
from benchmarks.peers.environment import call, last_line

FOLDER = Path(__file__).parents[2] / "build" / "bench-triton"
SYSTEM_PYTHON = "/usr/bin/python3"
TRITON = "2.51.0"
PACKAGES = ("nvidia-pytriton==0.7.0", "numpy==1.26.4", "tritonclient==2.50.0", "nvidia-cuda-runtime-cu12")
DEBIAN = "libb64-0d"


def site_packages() -> Path:
    """Returns the folder of the environment's packages."""
    return FOLDER / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def server_folder() -> Path:
    """Returns the folder of the server's binary, backends and caches. Raises PeerMissingError."""
    _check()
    return _server_folder()


def perf_analyzer() -> Path:
    """Returns the load generator's binary. Raises PeerMissingError."""
    _check()
    return FOLDER / "bin" / "perf_analyzer"


def library_path() -> str:
    """Returns LD_LIBRARY_PATH for both."""
    site = site_packages()
    folders = [
        site / "nvidia_pytriton.libs",
        site / "nvidia" / "cuda_runtime" / "lib",
        FOLDER / "debian" / "usr" / "lib" / "x86_64-linux-gnu",
    ]
    return ":".join(map(str, folders))


def _server_folder() -> Path:
    return site_packages() / "pytriton" / "tritonserver"


def _check() -> None:
    reason = _why_not()
    if reason is not None:
        raise PeerMissingError(reason)


@cache
def _why_not() -> str | None:
    binary = _server_folder() / "bin" / "tritonserver"
    if not binary.exists():
        return "not installed; python -m benchmarks.peers.triton_environment installs Triton under build/"
    for program, option in ((binary, "--help"), (FOLDER / "bin" / "perf_analyzer", "--version")):
        done = subprocess.run(
            [str(program), option],
            env={"LD_LIBRARY_PATH": library_path()},
            capture_output=True,
            text=True,
            timeout=60.0,
            check=False,
        )
        if "error while loading shared libraries" in done.stderr:
            return f"{program.name} does not start: {last_line(done.stderr)}"
    return None


def make() -> None:
    """Makes the environment anew. Raises PeerMissingError with the last output of the step that failed."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    try:
        call([SYSTEM_PYTHON, "-m", "venv", "--without-pip", str(FOLDER)])
        if not site_packages().is_dir():
            raise PeerMissingError(f"{SYSTEM_PYTHON} is another version than {sys.version.split()[0]}")
        pip = [sys.executable, "-m", "pip", "--python", str(FOLDER / "bin" / "python")]
        call([*pip, "install", "--quiet", "--no-deps", *PACKAGES])
        (site_packages() / "parent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
        server = _server_folder()
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
        (server / "backends" / "python" / stub.name).symlink_to(stub)
        (FOLDER / "debian").mkdir()
        call(["apt-get", "download", DEBIAN], folder=FOLDER / "debian")
        for package in (FOLDER / "debian").glob("*.deb"):
            call(["dpkg", "-x", str(package), str(FOLDER / "debian")])
    except PeerMissingError:
        shutil.rmtree(FOLDER, ignore_errors=True)
        raise
    _why_not.cache_clear()
    _check()


if __name__ == "__main__":
    try:
        make()
    except PeerMissingError as error:
        sys.exit(f"Triton cannot be had here: {error}")
    print(FOLDER)
