"""Puts torch-rechub, DeepCTR-Torch and RecBole into a folder that no other code sees.

    python -m benchmarks.libraries.environment      # makes build/libraries: some 20 MB and ten seconds

They are installed without their dependencies, since their pins would bring another torch; what they import beside is
here, or is named in `PACKAGES`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from storage.errors import Unavailable

FOLDER = Path(__file__).parents[2] / "build" / "libraries"
PACKAGES = (
    "torch-rechub==0.9.0",
    "deepctr-torch==0.3.0",
    "recbole==1.2.1",
    "colorama==0.4.6",
    "colorlog==6.12.0",
    "pandas==2.3.3",
    "pytz==2025.2",
    "tabulate==0.10.0",
    "texttable==1.7.2",
)
_INSTALL_S = 300.0
_LIST = "packages.txt"


def make() -> Path:
    """Installs the packages unless they are there; returns the folder.

    Raises Unavailable with the last line of pip's output.
    """
    wanted = "\n".join(PACKAGES)
    if (FOLDER / _LIST).is_file() and (FOLDER / _LIST).read_text(encoding="utf-8") == wanted:
        return FOLDER
    shutil.rmtree(FOLDER, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip had not installed {', '.join(PACKAGES)} after {_INSTALL_S:g} s") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if "ERROR" in line] or ["no message"]
        raise Unavailable(f"pip could not install {', '.join(PACKAGES)}: {lines[-1]}")
    # A wheel brought its own tests as a top-level package, which would hide ours.
    shutil.rmtree(FOLDER / "tests", ignore_errors=True)
    (FOLDER / _LIST).write_text(wanted, encoding="utf-8")
    return FOLDER


def enter() -> None:
    """Makes the libraries importable in this process; installs them first. Raises Unavailable."""
    folder = str(make())
    if folder not in sys.path:
        sys.path.insert(0, folder)


if __name__ == "__main__":
    try:
        print(make())
    except Unavailable as error:
        sys.exit(str(error))
