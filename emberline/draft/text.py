"""Writes names and values as YAML, and lists of names with their ranges."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from trainer.config_templates import range_of

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# YAML 1.1 reads these as booleans and null.
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


def text(value: object) -> str:
    """Returns a text as YAML, in quotes where it would be read as something else."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS and ".." not in value:
        return value
    return json.dumps(value, ensure_ascii=False)


def names(given: Sequence[str]) -> str:
    """Returns names as YAML: one, a range, or a list of both."""
    parts: list[str] = []
    rest = list(given)
    while rest:
        end = 3
        while end <= len(rest) and range_of(rest[:end]) is not None:
            end += 1
        found = range_of(rest[: end - 1])
        parts.append(text(rest[0]) if found is None else found)
        rest = rest[1 if found is None else end - 1 :]
    return parts[0] if len(parts) == 1 else f"[{', '.join(parts)}]"
