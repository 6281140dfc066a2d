"""Fills variables into a compose file, as Docker Compose does before it reads one."""

from __future__ import annotations

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?:(:?[-?])([^}]*))?\}")


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Replaces ${NAME}, ${NAME:-DEFAULT} and ${NAME-DEFAULT}. Raises KeyError for a variable without a value."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name, operator, default = found.groups()
        given = variables.get(name)
        if given or (given is not None and operator in (None, "-", "?")):
            return given
        if operator in ("-", ":-"):
            return str(default)
        raise KeyError(name)

    return _VARIABLE.sub(value, text)
