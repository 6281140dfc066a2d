"""Compiles every kernel of cuda/ into the cache that a server looks in, without a GPU: for images, for other machines.

python -m storage.compile_kernels sm_80 sm_90
python -m storage.compile_kernels --cache FOLDER sm_90
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from storage.errors import EmberlineError
from storage.hbm.kernel_sources import SOURCES
from storage.hbm.kernels import DEFAULT_CACHE, compile_kernel

KERNELS = ("assemble", *SOURCES)


def compile_all(archs: Sequence[str], cache: Path) -> int:
    """Compiles every kernel for every architecture, such as "sm_90". Returns how many there are.

    Raises ConfigError without CuPy or NVRTC, DeviceError for an architecture that NVRTC does not know.
    """
    for arch in archs:
        for name in KERNELS:
            compile_kernel(name, arch, cache)
    return len(archs) * len(KERNELS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="+", metavar="ARCH", help="such as sm_90")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where they go (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.cache is None:
        parser.error("--cache: this user has no home folder, so name one")
    try:
        count = compile_all(options.archs, options.cache)
    except EmberlineError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{count} kernels in {options.cache}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
