"""The time of a start runs from the start of the process, not of the server in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from serving.repository.starts import process_began


def test_a_process_began_when_it_was_started() -> None:
    before = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        after = time.monotonic()
        began = process_began(str(process.pid))
        process.communicate(b"\n")
    assert before - 0.05 < began < after + 0.05
    assert process_began() < before
    assert process_began() == pytest.approx(process_began(str(os.getpid())), abs=0.05)


def test_where_the_system_does_not_tell_it_is_now() -> None:
    assert process_began("nobody") == pytest.approx(time.monotonic(), abs=0.5)
