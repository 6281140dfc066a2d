"""Installs the native modules, the kernels and their host versions on a machine with a GPU: carried, else built there.

`make gpu-wheels` makes them for the Python, the architecture and the versions of CuPy and NVRTC of that machine. A
carried one is used only when it was built from exactly the sources that are here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
import zipfile
from pathlib import Path

from wheels import ROOT

CARRIED = "carried.json"
KERNELS, HOST_KERNELS = "kernels", "host_kernels"
LIBRARIES = "libraries"
NATIVE = (
    "storage._table",
    "storage._features",
    "storage._pages",
    "storage._dense",
    "serving._front",
    "benchmarks._limits",
)


def native_digest() -> str:
    """Returns a digest of all files that the native modules are built from."""
    names = [ROOT / "CMakeLists.txt"]
    suffixes = {".cpp", ".h", ".cuh", ".txt"}
    for folder in ("storage/native", "serving/native", "benchmarks/native", "cuda"):
        names += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    built_by = {"build-system": project["build-system"], "scikit-build": project["tool"]["scikit-build"]}
    digest = hashlib.sha256(json.dumps(built_by, sort_keys=True).encode())
    for name in sorted(names):
        digest.update(name.relative_to(ROOT).as_posix().encode() + b"\0" + name.read_bytes() + b"\0")
    return digest.hexdigest()


def place_native(folder: Path, site: Path, tag: str) -> str:
    """Puts carried modules beside their sources, where Python looks for them, and registers the distribution there.

    folder: the carried packages. site: the environment's packages. tag: of the Python, such as "cp312".
    Returns "" or the reason why they have to be built here.
    """
    try:
        carried = json.loads((folder / CARRIED).read_text(encoding="utf-8"))
        wheel = folder / carried["wheel"]
    except (OSError, ValueError, KeyError):
        return f"none are in {folder}"
    if f"-{tag}-" not in wheel.name:
        return f"{wheel.name} is for another Python than {tag}"
    if carried["native"] != native_digest():
        return f"{wheel.name} was built from other sources"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                _replace(ROOT / name, archive.read(name))
            elif ".dist-info/" in name:
                (site / name).parent.mkdir(parents=True, exist_ok=True)
                (site / name).write_bytes(archive.read(name))
    for library in (folder / LIBRARIES).glob("*"):
        _replace(ROOT / "serving" / library.name, library.read_bytes())
    (site / "emberline-here.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    return ""


def _replace(path: Path, content: bytes) -> None:
    """Writes a new file: a process may have the old one open."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def place_kernels(folder: Path) -> tuple[int, int]:
    """Puts carried kernels into the caches for a GPU and for the host. Returns how many of each."""
    # The same path as DEFAULT_CACHE of storage/hbm/kernels.py, which needs packages that may not be there yet.
    caches = {KERNELS: Path.home() / ".cache" / "emberline" / "kernels", HOST_KERNELS: ROOT / "build" / HOST_KERNELS}
    counts = []
    for name, cache in caches.items():
        found = [path for path in sorted((folder / name).glob("*")) if path.is_file()]
        cache.mkdir(parents=True, exist_ok=True)
        for path in found:
            if not (cache / path.name).exists():
                shutil.copyfile(path, cache / path.name)
        counts.append(len(found))
    return counts[0], counts[1]
