"""Makes a sample of a restart's file calls fail; `python -m tests.faults.storm --all` covers all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.injector import compiler

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
# For the faults of each world, beside what building it takes.
SECONDS = 8


@pytest.mark.skipif(compiler() is None, reason="no C compiler to build the injected library with")
def test_after_a_fault_in_a_restart_what_was_decided_is_served_or_nothing(tmp_path: Path) -> None:
    worlds = [part for name in ("rolled_back", "pinned", "canary") for part in ("--world", name)]
    done = subprocess.run(
        [*(sys.executable, "-m", "tests.faults.storm"), *worlds, "--seconds", str(SECONDS), "--keep", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    # A machine that is too slow for any of them has shown nothing.
    assert "\n0 restarts with a fault" not in done.stdout
