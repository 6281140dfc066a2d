from __future__ import annotations

import os
import subprocess
import sys

from serving.interpreter import SLEEPING_WAITS, wait_without_spinning


def test_threads_of_torch_sleep_while_they_wait() -> None:
    """Asserts what OpenMP itself reports to have read from the environment when torch loaded it."""
    code = "import os, sys; from serving.interpreter import wait_without_spinning as w; w(os.environ)"
    plain = {name: value for name, value in os.environ.items() if name not in SLEEPING_WAITS}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules; import torch"],
        env={**plain, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
    assert "GOMP_SPINCOUNT = '0'" in done.stderr


def test_what_the_environment_says_stays() -> None:
    environment = {"OMP_WAIT_POLICY": "active"}
    wait_without_spinning(environment)
    assert environment == {**SLEEPING_WAITS, "OMP_WAIT_POLICY": "active"}
