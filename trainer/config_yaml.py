"""Reads YAML: plain values only, keys given once, and numbers as YAML 1.2 and JSON write them."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from storage.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice instead of dropping the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, where a number without a dot has no exponent. In YAML 1.2 and JSON, and so in the config.json
# of a run, 1e-15 is a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> Any:
    """Returns the content of a file. Raises ConfigError naming the file, and the line where it is not YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Returns the content of YAML text. Raises ConfigError naming `source`, and the line where it is not YAML."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: plain values only
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", in line {mark.line + 1}"
        reason = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{source}: not YAML: {reason}{where}") from None
