"""The version, from the installed distribution; a checkout that is not installed says so."""

from __future__ import annotations

from importlib import metadata

try:
    __version__ = metadata.version("emberline")
except metadata.PackageNotFoundError:
    __version__ = "0+checkout"
