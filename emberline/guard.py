"""Reports when a user's own file hides a package of ours.

Our packages have plain names at the top level. A folder `serving/` in the working directory, or another distribution
called `trainer`, would be imported instead of ours, and the error would come from deep inside. This check reports it at
the start.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

# A file of each package of ours that no other package of that name has.
LANDMARKS = {
    "serving": "engine/session.py",
    "storage": "errors.py",
    "trainer": "publishing/publish.py",
    "loadtest": "locustfile.py",
}


class HiddenPackageError(ImportError):
    """A package of ours is hidden by another one of the same name."""


def check_packages(find_spec: Callable[[str], ModuleSpec | None] = importlib.util.find_spec) -> None:
    """Raises HiddenPackageError naming what hides which package of ours, and what to do. Imports nothing."""
    for package, landmark in LANDMARKS.items():
        spec = find_spec(package)
        if spec is None:
            raise HiddenPackageError(
                f"the package {package!r} of emberline is not installed; run `pip install emberline` again"
            )
        places = [Path(place) for place in spec.submodule_search_locations or ()]
        if any((place / landmark).is_file() for place in places):
            continue
        where = ", ".join(map(str, places)) or str(spec.origin)
        raise HiddenPackageError(
            f"{where} hides emberline's package {package!r}. If it is a folder or file of yours, start from another "
            f"directory or rename it; if another distribution installed it, uninstall that one."
        )
