"""Writes tables and texts of the reference as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# What Markdown or HTML would take for markup in a text of the code.
_SPAN = re.compile(r"(`+[^`]*`+)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table. The cells are Markdown on one line; "|" in them is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in lines) + "\n"


def prose(text: str) -> str:
    """Returns a text of the code as Markdown: signs outside of code spans stand for themselves."""
    parts = _SPAN.split(text)
    return "".join(part if place % 2 else re.sub(r"([<>*_\[\]\\])", r"\\\1", part) for place, part in enumerate(parts))


def code(text: str) -> str:
    """Returns a code span."""
    return f"``{text}``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
