"""Defines what a tracker takes: numbers by step, and once the parameters of the run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from storage.errors import ConfigError


class Tracker(Protocol):
    """Writes the figures of one pass over data. Not thread-safe.

    A tracker that was opened at a step continues what an earlier process wrote: figures of later steps, which that
    process wrote after its last commit, are replaced or kept, and none stands there twice.
    """

    def parameters(self, values: Mapping[str, str]) -> None:
        """Writes the parameters of the run, by dotted path."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes finite numbers by name; `step` counts the training steps that were made."""

    def flush(self) -> None:
        """Returns when everything logged so far is where it goes."""

    def close(self, ended: str) -> None:
        """Ends the track. ended: "finished", "failed" or "killed"."""


def imported(module: str, package: str, tracker: str) -> Any:
    """Imports a module of an optional package. Raises ConfigError saying what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"tracking: {tracker} needs the package {package}, which cannot be imported ({error}); "
            f"run: pip install 'emberline[{tracker}]'",
            field="tracking",
        ) from None
