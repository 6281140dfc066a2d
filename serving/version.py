"""Which build this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def server_version() -> str:
    """The version of this package."""
    try:
        return version("emberline")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0.1.0"
