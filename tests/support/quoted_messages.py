"""Finds texts of the source that a page of the documentation quotes, with `...` in the place of what varies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("emberline", "serving", "storage", "trainer", "loadtest")
# Stands for a value that is put into a text.
_VALUE = "\0"
# Shorter parts of a message say nothing by themselves.
_SHORT = 12


def quoted(page: str) -> list[str]:
    """Returns the lines of the blocks ```text of a page, each of which is a message."""
    return [line for block in re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S) for line in block.splitlines()]


def is_in_source(message: str) -> bool:
    """Returns whether a text of the source, C++ included, is what a page quotes.

    A page may quote a part of a text, and a text that another one ends with, joined by `...`.
    """
    parts = [part.strip() for part in re.split(r"\.\.\.+", message) if part.strip(" .;:,")]
    pattern = re.compile(".*?".join(re.escape(part) for part in parts), re.DOTALL)
    if any(pattern.search(text) for text in source_texts()):
        return True
    # A message of two texts, such as a reason and an advice that follows it.
    is_telling = len(parts) > 1 and any(len(part) > _SHORT for part in parts)
    return is_telling and all(any(part.strip(" ;:") in text for text in source_texts()) for part in parts)


@cache
def source_texts() -> tuple[str, ...]:
    """Returns every text of the packages: of Python, with a mark where a value is put in, and of C++."""
    found: list[str] = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            found += _python_texts(ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / package).rglob("*.cpp")):
            joined = re.sub(r'"\s*"', "", path.read_text(encoding="utf-8"))
            found += re.findall(r'"((?:[^"\\\n]|\\.)*)"(?=[^"\n]*)', joined)
    return tuple(found)


def _python_texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else _VALUE + _inner(part) for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # %s and the like of the log are values, too.
            yield re.sub(r"%[sdgr]|%\.\d+f", _VALUE, node.value)


def _inner(part: ast.AST) -> str:
    """Returns the texts within a value, such as those of a condition."""
    values = [each.value for each in ast.walk(part) if isinstance(each, ast.Constant)]
    return "".join(value for value in values if isinstance(value, str))
