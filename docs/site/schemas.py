"""Writes the reference of settings and manifests, of their pydantic models."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from docs.site.markdown_tables import code, prose, table

Schema = Mapping[str, Any]
_DEFS = "#/$defs/"
_BOUNDS = (
    ("minimum", "at least {}"),
    ("ge", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("lt", "less than {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} of them"),
    ("maxItems", "at most {} of them"),
    ("pattern", "matches `{}`"),
)
# Larger numbers are written as powers where they are one.
_LARGE = 1 << 20
_NAMES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "none"}


def model_page(title: str, introduction: str, model: type[BaseModel], flags: Mapping[str, str] | None = None) -> str:
    """Returns a page with a table of the fields of a model, and one for each model that these hold.

    flags: the options of a command line that set fields of the first one.
    """
    schema = model.model_json_schema()
    classes = {each.__name__: each for each in _models(model, set())}
    parts = [f"# {title}\n", f"{introduction}\n", _fields(schema, _comments(model), flags)]
    for name, definition in sorted(schema.get("$defs", {}).items()):
        parts.append(f"## {name} {{ #{_anchor(name)} }}\n")
        found = classes.get(name)
        said = inspect.cleandoc(found.__doc__) if found is not None and found.__doc__ else definition.get("description")
        if said:
            parts.append(f"{prose(said)}\n")
        if "properties" in definition:
            parts.append(_fields(definition, _comments(found) if found is not None else {}))
        else:
            parts.append(f"{_kind(definition)}\n")
    return "\n".join(parts)


def _fields(schema: Schema, comments: Mapping[str, str], flags: Mapping[str, str] | None = None) -> str:
    required = schema.get("required", [])
    head = ("name", "value", "default", "meaning")
    rows: list[tuple[str, ...]] = []
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else _default(field, name)
        said = comments.get(name) or field.get("description", "")
        row = (code(name), _kind(field, name), default, prose(said))
        rows.append(row if flags is None else (row[0], code(flags[name]) if name in flags else "", *row[1:]))
    return table(head if flags is None else (head[0], "option", *head[1:]), rows)


def _default(field: Schema, name: str) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    if value is None:
        return "none"
    if isinstance(value, dict) and value:
        return "its defaults"
    if isinstance(value, int) and not isinstance(value, bool) and _is_size(name):
        return code(size_text(value))
    shown = json.dumps(value)
    return code(shown.strip('"') if isinstance(value, str) and value else shown)


def size_text(value: int) -> str:
    """Returns bytes as people write them, such as 64MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)


def _is_size(name: str) -> bool:
    return "bytes" in name.split("_")


def _number(value: float) -> str:
    """Returns a bound: a large power of two as one."""
    if isinstance(value, int) and abs(value) >= _LARGE and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"-{_number(-value)}" if value < -_LARGE else f"{value:g}" if isinstance(value, float) else str(value)


def _kind(field: Schema, name: str = "") -> str:
    """Returns what values a field takes, as Markdown."""
    if "$ref" in field:
        target = field["$ref"].removeprefix(_DEFS)
        return f"[{target}](#{_anchor(target)})"
    if "const" in field:
        return code(str(field["const"]))
    if "enum" in field:
        return ", ".join(code(str(each)) for each in field["enum"])
    for either in ("anyOf", "oneOf"):
        if either in field:
            return ", or ".join(dict.fromkeys(_kind(each, name) for each in field[either]))
    if "allOf" in field:
        return " and ".join(_kind(each, name) for each in field["allOf"])
    kind = field.get("type")
    if kind == "array":
        items = field.get("items") or field.get("prefixItems", [{}])[0]
        shown = f"list of {_kind(items)}"
    elif kind == "object":
        more = field.get("additionalProperties")
        shown = f"map from name to {_kind(more)}" if isinstance(more, dict) and more else "map"
    else:
        is_size = kind == "integer" and _is_size(name)
        shown = "bytes, such as `2GiB`" if is_size else _NAMES.get(str(kind), "any value")
    bounds = [text.format(_bound(field[key], name)) for key, text in _BOUNDS if key in field]
    return ", ".join([shown, *bounds])


def _bound(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    return size_text(value) if _is_size(name) and isinstance(value, int) and value < 1 << 40 else _number(value)


def _anchor(name: str) -> str:
    return name.lower()


def _models(annotation: Any, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Yields the models that an annotation, or a field of one of its models, names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation in seen:
            return
        seen.add(annotation)
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field.annotation, seen)
        return
    for each in get_args(getattr(annotation, "__value__", annotation)):
        yield from _models(each, seen)


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """Returns the comment `#:` above each field of a model and of the models that it extends."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found.update(field_comments(base))
    return found


def field_comments(owner: type) -> dict[str, str]:
    """Returns the comment `#:` above each field of a class."""
    source = textwrap.dedent(inspect.getsource(owner))
    lines = source.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        said: list[str] = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.strip().startswith("#:"):
                break
            said.insert(0, line.strip().removeprefix("#:").strip())
        if said:
            found[node.target.id] = " ".join(said)
    return found
