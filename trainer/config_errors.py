"""Turns pydantic's errors into ours: every problem on its own line, with the dotted path as the user wrote it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from storage.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)
_OF_A_KEY = re.compile(r"(unknown key|expected a number)(?: for)? '([^']*)'")
_LINES_AT_MOST = 10
# The keys whose value says which of several models a mapping is.
_TAG_KEYS = ("type", "kind", "op")


def tag_unless_given(key: str, tag: str) -> BeforeValidator:
    """Returns a validator that gives a mapping without the key which says what it is the usual one."""

    def given(content: Any) -> Any:
        return {key: tag, **content} if isinstance(content, Mapping) else content

    return BeforeValidator(given)


def _as_it_is(path: str) -> tuple[str, str | None]:
    return path, None


def parse_config(
    model: type[_Model],
    content: object,
    *,
    source: str = "config",
    as_written: Callable[[str], tuple[str, str | None]] = _as_it_is,
) -> _Model:
    """Validates `content` as `model`. Raises ConfigError naming the dotted path, what was expected and what came.

    as_written: gives a path in what the user wrote, and for which of several names that was read.
    """
    if not isinstance(content, Mapping):
        came = "nothing" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{source}: expected a mapping of names to values, got {came}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _config_error(content, error, source, as_written) from None


def _config_error(
    content: object, error: ValidationError, source: str, as_written: Callable[[str], tuple[str, str | None]]
) -> ConfigError:
    problems = error.errors(include_url=False)
    lines: list[str] = []
    said: set[tuple[str, str]] = set()
    first = ""
    for problem in problems:
        location = problem["loc"]
        if problem["type"] == "too_short" and any(
            p["loc"][: len(location)] == location for p in problems if p != problem
        ):
            continue  # pydantic counts an entry that it refused as one that is not there
        path = _path(content, location, keep_last=problem["type"] == "missing")
        message = problem["msg"].removeprefix("Value error, ")
        of_a_key = _OF_A_KEY.match(message)
        if of_a_key:
            path = f"{path}.{of_a_key[2]}" if path else of_a_key[2]
            message = of_a_key[1] + message[of_a_key.end() :]
        elif problem["type"] == "missing":
            message = "missing; give it a value"
        elif problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
            path, message = _wrong_tag(path, problem)
        elif problem["type"] in ("model_type", "model_attributes_type", "dict_type"):
            message = f"expected a mapping of names to values, got {_shown(problem['input'])}"
        elif problem["type"] in ("tuple_type", "list_type"):
            message = f"expected a list, got {_shown(problem['input'])}"
        elif problem["type"] in ("string_type", "literal_error"):
            message = f"{message}, got {_shown(problem['input'])}"
        elif isinstance(problem["input"], str | int | float):
            message = f"{message}, got {problem['input']!r}"
        path, name = as_written(path)
        first = first or path
        # What stands once for several names is said once.
        if (path, message) not in said or name is None:
            where = path if name is None else f"{path} (for {name})"
            lines.append(f"{where}: {message}" if path else message)
        said.add((path, message))
    if len(lines) > _LINES_AT_MOST:
        lines = [*lines[:_LINES_AT_MOST], f"and {len(lines) - _LINES_AT_MOST} more"]
    return ConfigError(f"{source}: " + "\n  ".join(lines), field=first)


def _wrong_tag(path: str, problem: Any) -> tuple[str, str]:
    """Returns path and message for a mapping whose tag is missing, or names none of the models that it could be."""
    key = problem["ctx"]["discriminator"].strip("'")
    path = f"{path}.{key}" if path else key
    if problem["type"] == "union_tag_not_found":
        return path, "missing; give it a value"
    tags, given = problem["ctx"]["expected_tags"], problem["input"][key]
    own = " or MODULE:CLASS, a class of your own" if path == "model.type" else ""
    known = [tag.strip("' ") for tag in tags.split(",")]
    near = difflib.get_close_matches(given if isinstance(given, str) else "", known, n=1)
    nearest = f"; did you mean {near[0]!r}?" if near else ""
    return path, f"expected one of {tags}{own}, got {_shown(given)}{nearest}"


def _shown(value: object) -> str:
    """Returns what came instead of a name or a mapping, as YAML calls it when it is neither text nor a number."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else repr(value)


def _path(content: object, location: Sequence[int | str], *, keep_last: bool) -> str:
    """Returns the location without the tags that pydantic adds for the branches of a union; they are not in the
    content.
    """
    path: list[str] = []
    here: Any = content
    tagged = False
    for position, part in enumerate(location):
        # The tag of a branch may also be a key of it, as `momentum` is; the tag comes first.
        if not tagged and isinstance(here, Mapping) and part in (here.get(key) for key in _TAG_KEYS):
            tagged = True
            continue
        tagged = False
        is_index = isinstance(part, int) and isinstance(here, Sequence) and not isinstance(here, str)
        if is_index or (isinstance(here, Mapping) and part in here):
            here = here[part]
        elif not (keep_last and position == len(location) - 1):
            continue
        path.append(str(part))
    return ".".join(path)
