"""Defines the base of the spec's models, which are frozen and refuse a misspelt key with the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?`, or the list of the known names when none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"; known are: {shown}" if names else ""


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}{did_you_mean(str(key), cls.model_fields)}")
        return value
