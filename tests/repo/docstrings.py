"""Finds docstrings that do not stand alone because the first sentence begins in the middle ("Of a lookup.").

python -m tests.repo.docstrings                 # file:line and first line of each; ends with 1 when there are some
python -m tests.repo.docstrings storage/hbm     # those of one folder or file

Looks at modules, classes, functions and attributes in .py files and in the stubs (.pyi) of the native modules.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# A docstring that begins with one of these words has no subject and no verb of its own.
_TAIL = re.compile(r"(any|as|by|for|how|none|of|so|than|what|where|whether|which|who|whose|why)\b", re.IGNORECASE)


def is_tail(docstring: str) -> bool:
    """Returns whether the first word makes the docstring a grammatical tail."""
    return _TAIL.match(docstring.strip()) is not None


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of every docstring, in the order of the file."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            if isinstance(statement.value.value, str):
                found.append((statement.lineno, statement.value.value))
    yield from sorted(found)


def tails(source: str) -> list[tuple[int, str]]:
    """Returns the line and the first line of text of each docstring that is a tail."""
    return [(line, text.strip().split("\n")[0]) for line, text in docstrings(source) if is_tail(text)]


def python_files(folders: list[str]) -> list[Path]:
    """Returns the Python files and stubs under the folders that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *folders]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return [ROOT / name for name in names if name.endswith((".py", ".pyi")) and (ROOT / name).is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="folders or files, relative to the root; default: the whole tree")
    code = 0
    for path in python_files(parser.parse_args().folders):
        for line, text in tails(path.read_text(encoding="utf-8")):
            print(f"{path.relative_to(ROOT)}:{line}: {text}")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
