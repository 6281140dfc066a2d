"""Makes reads below chosen folders fail as a disk, a network mount or a limit of the machine makes them fail."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Faults:
    """Makes calls that open or look at a path fail, for as long as it is switched on.

    call: the function that fails, "" for all of them. times: how many calls fail. count: those that did.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._below: Path | None = None
        self._call = ""
        self._number = 0
        self._times = 0
        self.count = 0
        for module, name in ((os, "open"), (io, "open"), (os, "stat"), (os, "lstat"), (os, "scandir")):
            patch.setattr(module, name, self._failing(name, getattr(module, name)))

    def begin(self, below: Path, number: int, times: int = 1 << 30, *, call: str = "") -> None:
        self._number, self._times, self._call, self.count = number, times, call, 0
        self._below = below

    def end(self) -> None:
        self._below = None

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            below = self._below
            if (
                below is not None
                and self._call in ("", name)
                and isinstance(path, str | Path)
                and options.get("dir_fd") is None
            ):
                place = Path(path)
                if (place == below or below in place.parents) and self.count < self._times:
                    self.count += 1
                    raise OSError(self._number, os.strerror(self._number), str(path))
            return real(path, *arguments, **options)

        return call


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)
