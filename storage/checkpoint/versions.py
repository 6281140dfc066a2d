"""Recognises the version folders of a model: those named by a number, without leading zeros."""

from __future__ import annotations

import re

_VERSION = re.compile(r"[1-9][0-9]{0,17}")


def is_version(name: str) -> bool:
    """Returns whether a folder's name is that of a version."""
    return _VERSION.fullmatch(name) is not None
