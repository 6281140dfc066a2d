"""Dotted paths into a configuration, such as `optimizer.sparse.lr` or `tables.items.dim`.

Entries of a list are found by their name, where they have one, or by their place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel


def leaves(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a configuration, given as JSON values, by dotted path. A list of plain values is one."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(content, list) and any(isinstance(entry, Mapping) for entry in content):
        for key, value in zip(_keys(content), content, strict=True):
            yield from leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, content


def shown_leaves(config: BaseModel) -> dict[str, str]:
    """Returns the values as text by dotted path, without what is not set and without repeating names in paths."""
    found = leaves(config.model_dump(mode="json", exclude_none=True))
    return {path: shown(value) for path, value in found if value not in ([], {}, None)}


def shown(value: Any) -> str:
    """Returns a value as YAML has it."""
    return value if isinstance(value, str) else json.dumps(value)


def _keys(content: list[Any]) -> list[str]:
    names = [
        str(entry.get("name", place)) if isinstance(entry, Mapping) else str(place)
        for place, entry in enumerate(content)
    ]
    return names if len(set(names)) == len(names) else [str(place) for place in range(len(content))]
