"""A read that gives less than was asked for is no error and no end of the file: network file systems do that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.injector import build, compiler, environment
from tests.integration.serving.planted import World

ROOT = Path(__file__).parents[3]

READ = """
import sys
from pathlib import Path
from storage import open_version
from storage.checkpoint import open_delta
from tests.faults.injector import SHORT, Call, Injector
version, delta = map(Path, sys.argv[1:])
injector = Injector()
injector.watch([version])
for folder, read in ((version, open_version), (delta, open_delta)):
    for path in sorted(folder.glob("*.*")) + sorted(folder.glob("tables/*")):
        injector.arm(Call("read", str(path), 1), SHORT)
        read(folder, verify=True)
        assert injector.fired, path
"""


@pytest.mark.skipif(compiler() is None, reason="no C compiler to build the injected library with")
def test_every_file_of_a_version_and_of_a_delta_may_be_read_in_parts(tmp_path: Path) -> None:
    world = World(tmp_path.resolve() / "repository")
    version = world.publish()
    delta = world.change(version)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(version.path), str(delta.path)],
        cwd=ROOT,
        env=environment(build(tmp_path)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
