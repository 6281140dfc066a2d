"""Follows docs/tutorial.md word for word on a fresh machine: in a clone, with a home and an environment of its own.

    python -m tests.external.fresh_tutorial            # the newest commit; ten minutes and more
    python -m tests.external.fresh_tutorial --keep     # the same, and leaves the clone for a look

Clones this checkout into a temporary home, runs `make setup` there as the page asks for, makes that environment
active, and follows the page in the root of the clone. Needs what the page needs and no environment of Python. Ends
with 1 when a command fails or does not print what the page says, and with 2 where a page cannot be followed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.followed_page import broken_promises, follow, steps_of, why_not

ROOT = Path(__file__).parents[2]
LIMIT_S = 900.0
#: What the page says before its first command.
SETUP = ("`make setup`", ". .venv/bin/activate")
#: Variables that a fresh machine may have: where packages come from, and what compiles. All others stay behind.
KEPT = ("PIP_", "CCACHE_", "CMAKE_CXX_", "JOBS", "LANG", "HTTP", "http", "no_proxy", "NO_PROXY", "SSL_", "TMPDIR")


def variables_of(home: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a shell on a fresh machine. Programs of this checkout's environment are not found."""
    ours = given.get("VIRTUAL_ENV", str(ROOT))
    places = [each for each in given["PATH"].split(":") if not each.startswith((ours, str(ROOT)))]
    kept = {name: value for name, value in given.items() if name.startswith(KEPT)}
    return {**kept, "HOME": str(home), "PATH": ":".join(places)}


def follow_fresh(home: Path) -> list[str]:
    """Returns what the page promises and does not keep, after it was followed in a new home."""
    variables = variables_of(home, os.environ)
    clone = home / "emberline"
    start = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    subprocess.run(["make", "setup"], cwd=clone, env=variables, check=True)
    print(f"cloned and set up in {time.monotonic() - start:.0f} s", flush=True)
    page = (clone / "docs" / "tutorial.md").read_text(encoding="utf-8")
    missing = [words for words in SETUP if words not in page.split("## 1.")[0]]
    assert not missing, f"the page no longer says {missing}: do here what it says now"
    start = time.monotonic()
    programs = clone / ".venv" / "bin"
    printed = follow(page, clone, LIMIT_S, programs, {**variables, "VIRTUAL_ENV": str(programs.parent)})
    print(f"followed {len(printed)} blocks of commands in {time.monotonic() - start:.0f} s", flush=True)
    return [
        f"{step.commands}does not print {line!r}, but\n{text}"
        for step, text in zip(steps_of(page), printed, strict=True)
        for line in broken_promises(step, text)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="do not remove the clone")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"the page cannot be followed here: {reason}")
        return 2
    home = Path(tempfile.mkdtemp(prefix="fresh-home-"))
    try:
        broken = follow_fresh(home)
    finally:
        if arguments.keep:
            print(f"kept {home}")
        else:
            shutil.rmtree(home)
    print("\n".join(broken) or "the tutorial works word for word")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
