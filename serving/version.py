"""Gives the version of this build."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def server_version() -> str:
    """Returns the version of this package."""
    try:
        return version("emberline")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0.1.0"
