"""`python -m loadtest`: the same as `emberline loadtest`.

The command lies in `emberline`, above this package, with all other commands; so it is run by its name.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.argv.insert(1, "loadtest")
    runpy.run_module("emberline", run_name="__main__", alter_sys=True)
