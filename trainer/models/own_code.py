"""Reports what fails in a model of one's own with the lines of that code."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from storage.errors import ConfigError, EmberlineError

# Python's own code with the packages that are installed, and ours.
_NOT_THEIRS = (
    Path(sysconfig.get_path("stdlib")),
    Path(sysconfig.get_path("purelib")),
    *(Path(__file__).parents[2] / package for package in ("trainer", "storage", "emberline", "serving")),
)
_FRAMES_AT_MOST = 4
_LINES_AT_MOST = 6


@contextmanager
def own_errors(model: nn.Module, doing: str) -> Iterator[None]:
    """Raises ConfigError for an exception of a model that is not ours; errors of this project pass as they are.

    doing: what the model was asked to do, such as "step 3".
    """
    try:
        yield
    except EmberlineError:
        raise
    except Exception as error:
        kind = type(model)
        if kind.__module__.partition(".")[0] == "trainer":
            raise
        name = f"{kind.__module__}:{kind.__name__}"
        raise ConfigError(
            f"model.type: {name} failed in {doing}: {explained(error, kind.__module__)}", field="model.type"
        ) from error


def explained(error: BaseException, module: str) -> str:
    """Returns the type and the text of an exception, and below it the last lines of a user's code that led to it.

    module: the name of the user's module, whose package may be installed among others.
    """
    said = "\n".join(str(error).strip().splitlines()[:_LINES_AT_MOST])
    return "\n".join([f"{type(error).__name__}: {said}".removesuffix(": "), *_frames(error, module)])


def _frames(error: BaseException, module: str) -> list[str]:
    root = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    theirs = None if root is None else Path(root).parent if Path(root).name == "__init__.py" else Path(root)
    found = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if frame.filename.startswith("<"):
            continue
        if any(path.is_relative_to(folder) for folder in _NOT_THEIRS) and not (theirs and path.is_relative_to(theirs)):
            continue
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        found.append(f"  {shown}:{frame.lineno} in {frame.name}: {frame.line}")
    return found[-_FRAMES_AT_MOST:]
