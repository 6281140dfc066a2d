"""Makes a separate Python for FBGEMM and TorchRec, because TorchRec's wheel asks for the GPU build of FBGEMM.

    python -m benchmarks.peers.environment      # makes build/bench-peers: about 10 MB over the torch that is here

The environment sees the packages of the Python that makes it, so both use one torch; FBGEMM is compiled against
exactly one version of torch, which `FOR_TORCH` names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

from benchmarks.peers import PeerMissingError

FOLDER = Path(__file__).parents[2] / "build" / "bench-peers"
FOR_TORCH = "2.13"
# Installed without their dependencies: those of TorchRec would bring the GPU build of FBGEMM and another torch.
PACKAGES = (
    "fbgemm-gpu-cpu==1.8.0",
    "torchrec==1.8.0",
    "tensordict",
    "pyvers",
    "torchmetrics==1.0.3",
    "lightning-utilities",
    "pyre-extensions",
    "typing-inspect",
)
_CHECK = "import fbgemm_gpu, torchrec"
_INSTALL_S = 600.0
_CHECK_S = 120.0


def python() -> Path:
    """Returns the environment's interpreter.

    Raises PeerMissingError that says how to make it, or why it does not work.
    """
    reason = _why_not()
    if reason is not None:
        raise PeerMissingError(reason)
    return FOLDER / "bin" / "python"


@cache
def _why_not() -> str | None:
    interpreter = FOLDER / "bin" / "python"
    if not interpreter.exists():
        return "not installed; python -m benchmarks.peers.environment installs FBGEMM and TorchRec under build/"
    done = subprocess.run(
        [str(interpreter), "-c", _CHECK], capture_output=True, text=True, timeout=_CHECK_S, check=False
    )
    if done.returncode != 0:
        return f"installed, but it does not import: {last_line(done.stderr)}"
    return None


def make() -> Path:
    """Makes the environment anew; returns its interpreter.

    Raises PeerMissingError with the last line of pip's output.
    """
    import torch

    if not torch.__version__.startswith(FOR_TORCH + "."):
        raise PeerMissingError(f"torch is {torch.__version__}; {PACKAGES[0]} was compiled for {FOR_TORCH}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    try:
        call([sys.executable, "-m", "venv", str(FOLDER)])
        site = next((FOLDER / "lib").glob("python*/site-packages"))
        (site / "parent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
        call([str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES])
    except PeerMissingError:
        shutil.rmtree(FOLDER, ignore_errors=True)
        raise
    _why_not.cache_clear()
    return python()


def call(command: list[str], folder: Path | None = None) -> None:
    """Runs a step of an installation. Raises PeerMissingError with the last line of its output."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissingError(f"{' '.join(command[:4])}: {error}") from error
    if done.returncode != 0:
        raise PeerMissingError(f"{' '.join(command[:4])}: {last_line(done.stderr)}")


def last_line(text: str) -> str:
    """Returns the last line of a program's output."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


if __name__ == "__main__":
    try:
        print(make())
    except PeerMissingError as error:
        sys.exit(f"FBGEMM and TorchRec cannot be had here: {error}")
