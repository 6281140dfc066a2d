"""`python -m benchmarks`: see `benchmarks.command`."""

from __future__ import annotations

import sys

from benchmarks.command import NAME, command
from emberline.cli.frame import run_command

run_command(command, sys.argv[1:], NAME)
