"""Makes build/gpu-venv: the Python that runs tests and benchmarks on a GPU. Uses only the standard library.

    python3 tests/gpu/prepare.py                  # refuses where torch sees no GPU, or CuPy is not there
    python3 tests/gpu/prepare.py --without-gpu    # prepares and imports only

torch, numpy and CuPy are those of the Python that runs this, and are never changed. Other missing packages come from
build/gpu-wheels (`make gpu-wheels`, for machines without a network), or from the package index where there is no such
folder. Packages that the folder lacks are named, and the rest is installed. The native modules and compiled kernels
come from there too where they fit; otherwise they are built here. Whatever is up to date is left as it is.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from native import NATIVE, native_digest, place_kernels, place_native
from wheels import CONSTRAINTS, ROOT, WHEELS, plain, requirements, wheel_names

VENV = ROOT / "build" / "gpu-venv"
_PROBE_S, _PIP_S, _BUILD_S = 120.0, 300.0, 400.0
# Packages that come with the machine.
_MACHINES_OWN = ("torch", "numpy")
# Imported in one process each, so that a failure of one does not hide another.
_IMPORTED = ("serving.server", "trainer, benchmarks.gpu.suite", "pytest, hypothesis")

_PROBE = """
import importlib.util, json, warnings
warnings.simplefilter("ignore")
found = {"torch": "", "cuda": "", "gpus": [], "cupy": "", "why": ""}
try:
    import torch
    found["torch"], found["cuda"] = torch.__version__, torch.version.cuda or ""
    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
except Exception as error:
    found["why"] = f"{type(error).__name__}: {error}"
try:
    if importlib.util.find_spec("cupy") is not None:
        import cupy
        found["cupy"] = cupy.__version__
        found["cupy_gpus"] = cupy.cuda.runtime.getDeviceCount()
except Exception as error:
    found["cupy_why"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def refuse(reason: str) -> NoReturn:
    """Exits with status 1: nothing was tested, for this reason."""
    sys.exit(f"{reason}. Nothing was tested or measured.")


def check_machine(python: Path, *, needs_gpu: bool) -> str:
    """Describes this Python in one line. Ends the process when its packages are not sufficient."""
    done = run([str(python), "-c", _PROBE], _PROBE_S)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        refuse(f"{python} cannot be asked for its torch: {last_words(done)}")
    found = json.loads(lines[-1])
    if not found["torch"]:
        why = f" ({found['why']})" if found["why"] else ""
        refuse(f"{python} has no torch{why}; install it, or name another Python: make test-gpu GPU_BASE=...")
    if needs_gpu:
        if not found["cuda"]:
            refuse(f"No GPU: torch {found['torch']} is built without CUDA; pip install --force-reinstall torch")
        if not found["gpus"]:
            why = f" ({found['why']})" if found["why"] else ""
            refuse(f"No GPU: torch {found['torch']} for CUDA {found['cuda']} sees none{why}; look at `nvidia-smi`")
        build = f"cupy-cuda{found['cuda'].split('.')[0]}x"
        if not found["cupy"]:
            why = found.get("cupy_why", "it is not installed")
            refuse(f"CuPy cannot be used ({why}): pip install {build}")
        if not found.get("cupy_gpus"):
            refuse(f"CuPy {found['cupy']} sees no GPU ({found.get('cupy_why', 'it says so')}): is it {build}?")
    gpus = ", ".join(found["gpus"]) or "no GPU"
    return f"{gpus}; torch {found['torch']}, CuPy {found['cupy'] or 'none'}, Python {sys.version.split()[0]}"


def make_venv(folder: Path) -> Path:
    """Returns the environment's interpreter; it sees everything that the Python which runs this sees."""
    python = folder / "bin" / "python"
    own = f"{sys.version} {sys.prefix}"
    stamp = folder / "made-by"
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == own:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    # Without a pip of its own: the existing one installs into it, and some systems cannot make one.
    done = run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(folder)], _PIP_S)
    if done.returncode != 0:
        refuse(f"{sys.executable} -m venv {folder}: {last_words(done)}")
    if sys.prefix != sys.base_prefix:
        # Such an environment sees the packages of the system, not those of the environment that made it.
        site = next((folder / "lib").glob("python*/site-packages"))
        paths = list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
        (site / "parent.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
        # CuPy looks for CUDA's libraries only in an environment's own folder.
        libraries = [Path(path, "nvidia") for path in paths if Path(path, "nvidia").is_dir()]
        if libraries:
            (site / "nvidia").symlink_to(libraries[0], target_is_directory=True)
    if run([str(python), "-m", "pip", "--version"], _PIP_S).returncode != 0:
        done = run([str(python), "-m", "ensurepip"], _PIP_S)
        if done.returncode != 0:
            refuse(f"{sys.executable} has no pip, and cannot make one: {last_words(done)}")
    stamp.write_text(own, encoding="utf-8")
    return python


def install(python: Path, folder: Path) -> list[str]:
    """Installs what is in requirements.txt and not present at the version of constraints.txt.

    Returns the names that could not be installed.
    """
    carried = [name for name, is_carried in requirements().items() if is_carried]
    present = distributions(python)
    others = [name for name, is_carried in requirements().items() if not is_carried and plain(name) not in present]
    others = [name for name in others if shutil.which(name) is None]  # cmake may be a program of the system
    missing: list[str] = []
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += ["--no-compile", "--constraint", str(CONSTRAINTS)]
    if folder.is_dir():
        there = wheel_names(folder)
        missing = [name for name in carried if plain(name) not in there and plain(name) not in present] + others
        names = [name for name in carried if plain(name) in there]
        command += ["--no-index", "--find-links", str(folder), *names]
    else:
        command += [*carried, *others]
    done = run(command, _PIP_S)
    if done.returncode != 0:
        source = f"from {folder}" if folder.is_dir() else f"from the index ({folder} is not there)"
        hint = ""
        if folder.is_dir() and "No matching distribution" in done.stderr:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            hint = f"; are the wheels for Python {version}? make gpu-wheels GPU_PYTHON={version}"
        refuse(f"pip install {source}: {last_words(done)}{hint}")
    changed = [name for name in _MACHINES_OWN if distributions(python).get(name) != present.get(name)]
    assert not changed, f"pip replaced {changed}"
    return missing


def native(python: Path, folder: Path, carried: Path) -> str:
    """Installs the native modules, and with them the distribution `emberline`, whose sources stay where they are.

    Returns where they come from, in words.
    """
    stamp = folder / "built-from"
    digest = f"{ROOT} {native_digest()}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest and not why_no_native(python):
        return "there already"
    site = next((folder / "lib").glob("python*/site-packages"))
    why = place_native(carried, site, f"cp{sys.version_info.major}{sys.version_info.minor}")
    why = why or why_no_native(python)
    if why:
        print(f"the native modules are built here: {why}", flush=True)
        (site / "emberline-here.pth").unlink(missing_ok=True)
        build(python, folder)
    stamp.write_text(digest, encoding="utf-8")
    return "built here" if why else "carried"


def build(python: Path, folder: Path) -> None:
    """Builds the native modules with the compiler of this machine."""
    for module in (*(ROOT / "storage").glob("_*.so"), *(ROOT / "benchmarks").glob("_*.so")):
        if f"-{sys.version_info.major}{sys.version_info.minor}-" in module.name:
            module.unlink()  # a carried one, which does not fit
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    command += ["--disable-pip-version-check", "--editable", str(ROOT)]
    cores = str(len(os.sched_getaffinity(0)))
    # The programs of the environment and of the Python beneath it: ninja, cmake.
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = run(command, _BUILD_S, {"CMAKE_BUILD_PARALLEL_LEVEL": cores, "PATH": path})
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
        refuse(f"the native modules could not be built (g++ and Python's headers are needed): {last_words(done)}")
    why_not = why_no_native(python)
    if why_not:
        refuse(f"what was built does not import: {why_not}")


def why_no_native(python: Path) -> str:
    """Returns "" when the native modules import and were built from these sources; otherwise the reason."""
    natives = ", ".join(NATIVE)
    done = run([str(python), "-c", f"import {natives}; print(storage._table.__file__)"], _PROBE_S)
    if done.returncode != 0:
        return last_words(done)
    home = done.stdout.strip().splitlines()[-1]
    owners = (str(python.parents[1]), str(ROOT / "storage"))
    return "" if home.startswith(owners) else f"storage._table is {home}, not one under {' or '.join(owners)}"


def why_no_import(python: Path) -> list[str]:
    """Returns a line, with the reason, for each tested module that does not import; they are tried side by side."""
    with ThreadPoolExecutor(len(_IMPORTED)) as pool:
        tried = list(pool.map(lambda name: run([str(python), "-c", f"import {name}"], _PROBE_S), _IMPORTED))
    return [
        f"{name} does not import: {last_words(done)}"
        for name, done in zip(_IMPORTED, tried, strict=True)
        if done.returncode != 0
    ]


def distributions(python: Path) -> dict[str, str]:
    """Returns the versions of a Python's distributions, by plain name."""
    if python == Path(sys.executable):
        found = [(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()]
    else:
        asked = "import importlib.metadata as m, json"
        asked += "\nprint(json.dumps([(d.metadata['Name'], d.version) for d in m.distributions()]))"
        found = json.loads(run([str(python), "-c", asked], _PROBE_S).stdout.strip().splitlines()[-1])
    versions: dict[str, str] = {}
    for name, version in found:
        versions.setdefault(plain(name or ""), version)  # the first on the path is what is imported
    return versions


def run(
    command: list[str], timeout_s: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a step and keeps its output. One that exceeds its time has failed."""
    given = {**os.environ, **environment} if environment else None
    try:
        return subprocess.run(
            command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {timeout_s:.0f} s")


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the most informative line: an ERROR of pip's, or the last one."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(ERROR|error|fatal)", line)]
    return (errors or lines or ["no message"])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-gpu", action="store_true", help="prepare and import only, whatever the machine has")
    parser.add_argument("--venv", type=Path, default=VENV, help="what is made (default build/gpu-venv)")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="what is carried (default build/gpu-wheels)")
    options = parser.parse_args()
    began = time.monotonic()
    machine = check_machine(Path(sys.executable), needs_gpu=not options.without_gpu)
    print(machine, flush=True)
    folder, carried = options.venv.absolute(), options.wheels.absolute()
    python = make_venv(folder)
    troubles = [f"MISSING {name}: not here, and not in {carried.name}" for name in install(python, carried)]
    kernels, host = place_kernels(carried)
    came = native(python, folder, carried)
    with ThreadPoolExecutor(1) as pool:
        # Checks once more, with the interpreter that will be used.
        again = pool.submit(check_machine, python, needs_gpu=not options.without_gpu)
        troubles += why_no_import(python)
    if again.result() != machine:
        refuse(f"{python} has another torch or CuPy than {sys.executable}")
    for trouble in troubles:
        print(f"! {trouble}", flush=True)
    seconds = time.monotonic() - began
    made = f"native modules {came}; {kernels} compiled kernels and {host} of the host carried"
    state = f"incomplete ({troubles[0]})" if troubles else "ready"
    print(f"{state} after {seconds:.0f} s: {made}", flush=True)
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
