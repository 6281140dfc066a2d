"""`python -m examples.quickstart`: runs the pipeline and prints its figures. docs/quickstart.md explains them."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from storage.errors import EmberlineError
from storage.paths import local_path


def main() -> None:
    """Parses the command line and runs the pipeline. Exit code 1 when a stage fails, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m examples.quickstart", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/quickstart"), help="folder for everything made")
    parser.add_argument("--keep", action="store_true", help="leave the server running, with lines to try")
    parser.add_argument("--wheel", type=Path, help="the wheel of recbole 1.2.1, if it lies here already")
    parser.add_argument("--seconds", type=int, default=4, help="load test, for each kind of user (default %(default)s)")
    options = parser.parse_args()
    if options.seconds < 1:
        parser.error(f"--seconds: expected 1 or more, got {options.seconds}")
    # A plain kill must not leave the server behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from examples.quickstart.walkthrough import walk

        work = local_path(options.work, "--work")
        wheel = None if options.wheel is None else local_path(options.wheel, "--wheel")
        good = walk(work, wheel=wheel, seconds=options.seconds, keep=options.keep)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
    except EmberlineError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
