"""SIGHUP stops what a terminal controls, and nothing else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if len(sys.argv) > 1:
    terminal = os.open(sys.argv[1], os.O_RDWR)  # the first one of a session controls it
from serving.hang_up import ignore_strange_hang_up
ignore_strange_hang_up()
print(signal.getsignal(signal.SIGHUP).name)
"""


def hang_up_in_a_session(*terminal: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *terminal], start_new_session=True, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_it_is_ignored_without_a_terminal() -> None:
    assert hang_up_in_a_session() == "SIG_IGN"


def test_it_is_heeded_with_one() -> None:
    ours, theirs = pty.openpty()
    try:
        assert hang_up_in_a_session(os.ttyname(theirs)) == "SIG_DFL"
    finally:
        os.close(theirs)
        os.close(ours)
