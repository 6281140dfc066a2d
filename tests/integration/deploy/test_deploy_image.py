"""The steps of the Dockerfile run here one by one, without an engine.

Left out is what needs the base image or its root: apt-get, useradd, and torch from the network. Two steps are
shortened: the wheel is built without compiling, which CI does from the same CMakeLists.txt, and its dependencies are
those that are installed here; their versions are compared with the pinned ones.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.deployment.dockerfile import copied_from_checkout, is_sent, stages
from tests.support.deployment.programs import ROOT, check

pytestmark = pytest.mark.slow

BUILD, IMAGE = stages(ROOT / "Dockerfile")
SITE = Path(sysconfig.get_path("purelib"))
# Steps of RUN that are known, with what stands for them here; a new one fails the test until it is added.
LEFT_OUT = ("apt-get", "rm -rf", "useradd")


class Image:
    """A virtual environment with what the image's would have, and folders in place of /models and /store."""

    def __init__(self, folder: Path) -> None:
        self.source, self.wheels, self.environment = folder / "src", folder / "wheels", folder / "venv"
        self.wheels.mkdir()
        self.folders = {path: folder / path.strip("/") for path in ("/models", "/store")}
        for sources, target in copied_from_checkout(BUILD):
            for source in sources:
                self._copy(ROOT / source, self.source / (source if target == "./" else target))
        self.made = [self._run(part) for stage in (BUILD, IMAGE) for rest in stage.all("RUN") for part in _parts(rest)]

    def program(self, name: str) -> Path:
        return self.environment / "bin" / name

    def _copy(self, source: Path, target: Path) -> None:
        files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
        for path in filter(is_sent, files):
            place = target / path.relative_to(source) if source.is_dir() else target
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)

    def _run(self, command: str) -> str:
        """Does what a step of RUN does, and returns its name."""
        if command.startswith("pip wheel"):
            options = command.replace("/wheels", str(self.wheels)).split()[2:-1]
            wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", *options]
            line = [*wheel, "--config-settings=wheel.cmake=false", str(self.source)]
            done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
            if "No matching distribution found for scikit-build-core" in done.stderr:
                pytest.skip("the package index cannot be reached, which building a wheel needs")
            assert done.returncode == 0, done.stderr
            return "wheel"
        if command.startswith("pip install") and command.endswith(".whl"):
            check(sys.executable, "-m", "venv", "--without-pip", self.environment)
            (wheel_file,) = self.wheels.iterdir()
            python = self.program("python")
            check(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel_file)
            (site,) = self.environment.glob("lib/python*/site-packages")
            for module in (*SITE.glob("storage/*.so"), *SITE.glob("serving/*.so")):
                shutil.copy(module, site / module.parent.name)
            (site / "dependencies.pth").write_text(f"{SITE}\n")
            return "install"
        if command.startswith("pip install"):
            assert shlex.split(command)[-1] == "torch", command
            return "torch"
        if command.startswith("install --directory"):
            for path in shlex.split(command)[4:]:
                self.folders[path].mkdir()
            return "folders"
        assert command.startswith(LEFT_OUT), f"a step that this test does not know: {command}"
        return command.split()[0]


def _parts(rest: str) -> list[str]:
    return [part.strip() for part in re.sub(r"\$\{TORCH_ARGS\}", "", rest).split("&&")]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"))


def test_every_step_was_taken(image: Image) -> None:
    assert [each for each in image.made if each not in {"apt-get", "rm", "useradd"}] == [
        "wheel",
        "torch",
        "install",
        "folders",
    ]
    assert IMAGE.all("USER") == ["emberline"]
    assert any("useradd" in rest for rest in IMAGE.all("RUN"))
    # An engine is not sent what a checkout has beside sources.
    assert not any(map(is_sent, (ROOT / ".git" / "HEAD", ROOT / ".venv/bin/python", ROOT / "storage" / "_table.so")))
    assert is_sent(ROOT / "storage" / "native" / "CMakeLists.txt")


def test_what_is_copied_is_all_that_compiling_takes(image: Image) -> None:
    """CMake finds every source, and the kernels are there that it installs."""
    options = ["-DSKBUILD=ON", "-DSKBUILD_STATE=wheel", f"-DPython_EXECUTABLE={sys.executable}", "-G", "Ninja"]
    tools = Path(sys.executable).parent
    cmake = tools / "cmake" if (tools / "cmake").exists() else "cmake"
    if (tools / "ninja").exists():
        options.append(f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}")
    check(cmake, "-S", image.source, "-B", image.source.parent / "configured", *options)
    kernels = {path.name for path in (ROOT / "cuda").glob("*.cu")}
    assert kernels
    assert {path.name for path in (image.source / "cuda").glob("*.cu")} == kernels


def test_the_packages_are_those_of_the_image(image: Image) -> None:
    lines = "import emberline, serving, storage._features, trainer; print(storage._features.__file__, trainer.__file__)"
    found = check("env", "-C", image.source.parent, image.program("python"), "-c", lines).split()
    assert all(Path(path).is_relative_to(image.environment) for path in found), found


def test_what_the_wheel_needs_is_pinned_and_is_what_runs_here(image: Image) -> None:
    (metadata,) = image.environment.glob("lib/python*/site-packages/emberline-*.dist-info")
    needed = importlib.metadata.PathDistribution(metadata).requires or []
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    requirements = [each for each in map(Requirement, needed) if each.marker is None or each.marker.evaluate()]
    assert "obstore" in {each.name for each in requirements}, "a server of a bucket needs it"
    for each in requirements:
        assert each.specifier.contains(pinned[canonicalize_name(each.name)]), each
        assert each.specifier.contains(importlib.metadata.version(each.name).partition("+")[0]), each


def test_the_entry_point_serves_by_the_environment_of_the_image_and_is_healthy(image: Image, tmp_path: Path) -> None:
    if os.geteuid() or subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        pytest.skip("the ports of the image are fixed: a network of its own for them needs root")
    shutil.copytree(ROOT / "model_repo" / "tiny", image.folders["/models"] / "tiny")
    variables = {**IMAGE.environment, "PATH": f"{image.environment}/bin:/usr/sbin:/usr/bin", "HOME": str(tmp_path)}
    for name, value in variables.items():
        variables[name] = str(image.folders.get(value, value))
    script = f"""
        ip link set lo up
        {shlex.join(IMAGE.command("ENTRYPOINT"))} & server=$!
        until {shlex.join(IMAGE.command("HEALTHCHECK"))} > /dev/null 2>&1; do
            kill -0 $server || exit 3
            sleep 0.2
        done
        python -c 'from urllib.request import urlopen; print(urlopen("http://127.0.0.1:8002/metrics").read().decode())'
        kill -TERM $server
        wait $server
        echo "ended with $?"
    """
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script],
        env=variables,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "emberline_ready 1" in done.stdout, done.stderr[-3000:]
    assert "ended with 0" in done.stdout, done.stderr[-3000:]
    assert [*image.folders["/store"].iterdir()]


def test_the_image_for_gpus_is_built_of_the_same_files() -> None:
    build, _ = stages(ROOT / "Dockerfile.gpu")
    assert copied_from_checkout(build) == copied_from_checkout(BUILD)
