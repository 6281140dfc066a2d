"""Entries of a configuration that stand for several: one line for the columns C1 to C26, or for a list of names.

An entry of `inputs`, `features` or `tables` whose `name` is a range (`C1..C26`) or a list is repeated for each name.
With `each`, the names are given apart from `name`. In every text of the entry, `$each` stands for the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.errors import ConfigError

SECTIONS = ("inputs", "features", "tables")
EACH = "$each"

_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)", re.DOTALL)
_NAMES_AT_MOST = 10_000


@dataclass(frozen=True)
class Written:
    """Says where the entries of an expanded configuration stand in the one that was written."""

    #: By section: the place of each entry as it was written, and its name if the entry stands for several.
    places: Mapping[str, list[tuple[int, str | None]]] = field(default_factory=dict)

    def path(self, path: str) -> tuple[str, str | None]:
        """Returns a dotted path as it was written, and for which name of several it was read."""
        section, _, rest = path.partition(".")
        place, dot, below = rest.partition(".")
        if section not in self.places or not place.isdigit():
            return path, None
        written, name = self.places[section][int(place)]
        return f"{section}.{written}{dot}{below}", name


def expand(content: Any, source: str) -> tuple[Any, Written]:
    """Returns the configuration with every entry that stands for several repeated, and where each was written.

    content: as it was read; other things than mappings and lists are left to whoever checks them. Raises ConfigError
    for a range or a list that makes no sense.
    """
    if not isinstance(content, Mapping):
        return content, Written()
    expanded = dict(content)
    places: dict[str, list[tuple[int, str | None]]] = {}
    for section in SECTIONS:
        entries = content.get(section)
        if not isinstance(entries, list):
            continue
        expanded[section], places[section] = [], []
        for place, entry in enumerate(entries):
            for name, each in _repeated(entry, f"{section}.{place}", source):
                expanded[section].append(each)
                places[section].append((place, name))
    return expanded, Written(places)


def range_of(names: list[str]) -> str | None:
    """Returns the range that stands for the names, in their order; None when there is none, or fewer than three."""
    if len(names) < 3:
        return None
    found = [re.fullmatch(r"(.*?)(\d+)", name, re.DOTALL) for name in (names[0], names[-1])]
    text = f"{names[0]}..{names[-1]}"
    if None in found or not _RANGE.fullmatch(text):
        return None
    try:
        return text if _names_of_range(text) == names else None
    except ValueError:
        return None


def _repeated(entry: Any, path: str, source: str) -> list[tuple[str | None, Any]]:
    if not isinstance(entry, Mapping):
        return [(None, entry)]
    key = "each" if "each" in entry else "name"
    given = entry.get(key)
    if key == "name" and not isinstance(given, list) and not (isinstance(given, str) and _RANGE.fullmatch(given)):
        return [(None, entry)]
    try:
        names = _names_of(given)
        if key == "each" and len(names) > 1 and EACH not in str(entry.get("name", EACH)):
            raise ValueError(f"the name {entry['name']!r} would be that of all; put {EACH} into it")
    except ValueError as error:
        raise ConfigError(f"{source}: {path}.{key}: {error}", field=f"{path}.{key}") from None
    pattern = {name: value for name, value in entry.items() if name != "each"}
    for key_of_names in ("inputs", "table", "weights"):
        values = pattern.get(key_of_names)
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, str) and _RANGE.fullmatch(value):
                where = f"{path}.{key_of_names}"
                raise ConfigError(
                    f"{source}: {where}: {value!r} would be all of them for each; write {EACH}, which stands for the "
                    f"one name of {key}",
                    field=where,
                )
    if key == "name":
        pattern["name"] = EACH
    return [(name, _filled(pattern, name)) for name in names]


def _names_of(given: Any) -> list[str]:
    names: list[str] = []
    for entry in given if isinstance(given, list) else [given]:
        if not isinstance(entry, str):
            raise ValueError(f"expected a name, a range such as C1..C26, or a list of them, got {entry!r}")
        names += _names_of_range(entry)
    if not names:
        raise ValueError("expected one name at least, got an empty list")
    return names


def _names_of_range(text: str) -> list[str]:
    found = _RANGE.fullmatch(text)
    if found is None:
        return [text]
    before, first, again, last = found.groups()
    if before != again:
        raise ValueError(f"the range {text!r} has other text on each side; expected {before}{first}..{before}{last}")
    low, high = int(first), int(last)
    if high < low:
        raise ValueError(f"the range {text!r} ends before it begins; expected {before}{last}..{before}{first}")
    if high - low >= _NAMES_AT_MOST:
        raise ValueError(f"the range {text!r} has {high - low + 1:,} names; expected {_NAMES_AT_MOST:,} at most")
    # C01..C26 counts with as many digits as it begins with.
    digits = len(first) if first.startswith("0") else 0
    return [f"{before}{number:0{digits}}" if digits else f"{before}{number}" for number in range(low, high + 1)]


def _filled(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace(EACH, name)
    if isinstance(value, Mapping):
        return {key: _filled(entry, name) for key, entry in value.items()}
    return [_filled(entry, name) for entry in value] if isinstance(value, list) else value
