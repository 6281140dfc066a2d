"""Dotted paths into a configuration, such as `optimizer.sparse.lr` or `tables.items.dim`.

Entries of a list are found by their name, where they have one, or by their place from 0 on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean


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


def with_value(content: Any, path: str, value: Any, field: str = "") -> Any:
    """Returns a copy of `content` with a value at a dotted path, in which `*` stands for every entry of a list.

    What lies between is made where it is missing. Raises ConfigError for an entry of a list that is not there.
    """
    return _with(content, path.split("."), value, path, field or path)


def values_at(content: Any, path: str) -> list[Any]:
    """Returns what lies at a dotted path: nothing, one value, or with `*` several."""
    found = [content]
    for key in path.split("."):
        entries: list[Any] = []
        for here in found:
            if isinstance(here, Mapping) and key in here:
                entries.append(here[key])
            elif isinstance(here, list):
                entries += here if key == "*" else [here[place] for place in _places(here, key)]
        found = entries
    return found


def _with(content: Any, keys: list[str], value: Any, path: str, field: str) -> Any:
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if isinstance(content, list):
        places = range(len(content)) if key == "*" else _places(content, key)
        if not places:
            known = [name for name in _keys(content) if not name.isdigit()]
            hint = did_you_mean(key, [*known, "*"]) if known else f"; give a place from 0 to {len(content) - 1}, or *"
            raise ConfigError(f"{path}: the list has no entry {key!r}{hint}", field=field)
        return [
            _with(entry, rest, value, path, field) if place in places else entry for place, entry in enumerate(content)
        ]
    if content is not None and not isinstance(content, Mapping):
        raise ConfigError(f"{path}: {key!r} lies below {shown(content)}, which is a value", field=field)
    inner = dict(content or {})
    inner[key] = _with(inner.get(key), rest, value, path, field)
    return inner


def _places(content: list[Any], key: str) -> list[int]:
    if key.isdigit():
        return [int(key)] if int(key) < len(content) else []
    return [place for place, entry in enumerate(content) if isinstance(entry, Mapping) and entry.get("name") == key]
