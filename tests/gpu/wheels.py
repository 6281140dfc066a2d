"""Downloads what `prepare` installs on a machine with a GPU and no network, and builds what takes long there.

    python tests/gpu/wheels.py                              # for Python 3.12 on Linux x86-64, into build/gpu-wheels
    python tests/gpu/wheels.py --python 3.11 --arch sm_80 --folder F

It downloads only the names in requirements.txt, at the versions of constraints.txt, without their dependencies: torch,
numpy and CuPy are the machine's own. Built here: a wheel of ours with the native modules, where this machine has such a
Python; every kernel compiled for the GPU's architecture, where this Python has CuPy; the kernels compiled for the host.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "tests" / "gpu" / "requirements.txt"
CONSTRAINTS = ROOT / "constraints.txt"
WHEELS = ROOT / "build" / "gpu-wheels"
# Byte limits of the wheels, and of the wheels with the repository.
MOST_BYTES, MOST_IN_ALL = 50 << 20, 64 << 20
_NOT_CARRIED, _NOT_NEEDED = "# not carried", "# not needed"
# Platforms of the oldest C libraries that wheels are made for; later ones run them too.
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(5, 35)]
_PLATFORMS += ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"]
_DOWNLOAD_S = 600.0


def requirements() -> dict[str, bool]:
    """Returns the names, and whether each is carried."""
    return {name: _NOT_CARRIED not in line for name, line in _listed().items() if _NOT_NEEDED not in line}


def left_out() -> set[str]:
    """Returns the names that a server needs elsewhere and nothing on such a machine does."""
    return {name for name, line in _listed().items() if _NOT_NEEDED in line}


def _listed() -> dict[str, str]:
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    named = ((line.partition("#")[0].strip(), line) for line in lines)
    return {name: line for name, line in named if name}


def plain(name: str) -> str:
    """Normalises a distribution's name, whatever its spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Returns the version of each distribution in constraints.txt, by its plain name."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    parts = [line.partition("#")[0].strip().partition("==") for line in lines]
    return {plain(name): version for name, _, version in parts if version}


def wheel_names(folder: Path) -> set[str]:
    """Returns the plain names of the distributions whose wheels are in a folder."""
    return {plain(path.name.partition("-")[0]) for path in folder.glob("*.whl")}


def download(python: str, folder: Path) -> int:
    """Fills the folder anew; returns the bytes of its wheels.

    Exits with pip's last line when one is not available.
    """
    names = [name for name, is_carried in requirements().items() if is_carried]
    unknown = [name for name in names if plain(name) not in pins()]
    if unknown:
        sys.exit(f"gpu-wheels: {CONSTRAINTS.name} has no version of {', '.join(unknown)}; pin them there")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", python, "--dest", str(folder)]
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    # One call for all names; pip resolves each by itself.
    command += [f"{name}=={pins()[plain(name)]}" for name in names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"gpu-wheels: pip was not done after {_DOWNLOAD_S:.0f} s")
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        sys.exit(f"gpu-wheels: pip download for Python {python}: {(errors or ['no message'])[-1]}")
    return sum(path.stat().st_size for path in folder.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU (default %(default)s)")
    parser.add_argument("--arch", default="sm_90", help="of its GPU (default %(default)s)")
    parser.add_argument("--folder", type=Path, default=WHEELS, help="where they go (default build/gpu-wheels)")
    options = parser.parse_args()
    if not re.fullmatch(r"3\.\d+", options.python):
        parser.error(f"--python is {options.python}, expected something like 3.12")
    from making import make

    download(options.python, options.folder)
    print(f"{len(list(options.folder.glob('*.whl')))} wheels for Python {options.python}", flush=True)
    for line in make(options.python, options.arch, options.folder):
        print(line, flush=True)
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    tree = tree_bytes()
    print(f"{size / 2**20:.1f} MiB in {options.folder}, {tree / 2**20:.1f} MiB of repository")
    if size > MOST_BYTES or size + tree > MOST_IN_ALL:
        most = f"{MOST_BYTES >> 20} MiB, or {MOST_IN_ALL >> 20} MiB with the repository"
        sys.exit(f"gpu-wheels: more than {most}: mark what is large and not needed in requirements.txt")


def tree_bytes() -> int:
    """Returns the bytes of the repository's files: those that git has, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum((ROOT / name).stat().st_size for name in listed.split("\0") if name and (ROOT / name).is_file())


if __name__ == "__main__":
    main()
