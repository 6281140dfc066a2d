"""Defines the base of the spec's models, which are frozen and refuse a misspelt key with the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?`, or the list of the known names when none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"; known are: {shown}" if names else ""


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yields the types of a union, without what annotates them."""
    if get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for kind in get_args(annotation):
            yield from _kinds(kind)
    else:
        yield annotation


def _wants_number(annotation: Any) -> bool:
    return set(_kinds(annotation)) <= {int, float, type(None)}


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys by name, and `yes` where a number is expected, which pydantic takes as
    1."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}{did_you_mean(str(key), cls.model_fields)}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _no_booleans_for_numbers(cls, value: Any) -> Any:
        for key, came in value.items() if isinstance(value, Mapping) else ():
            entry = cls.model_fields.get(key) if isinstance(came, bool) else None
            if entry is not None and _wants_number(entry.annotation):
                word = "true" if came else "false"
                raise ValueError(f"expected a number for {key!r}, got {word} (in YAML also yes, no, on and off)")
        return value
