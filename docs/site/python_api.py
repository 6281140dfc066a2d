"""Writes the reference of the Python packages: a page a package, with what its `__all__` names."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The packages that users import, in the order of the pages.
PACKAGES = ("emberline", "trainer", "serving", "storage")
# Models whose fields have a page of their own.
_FIELDS = {"ServerConfig": "[server options](server.md)", "TrainConfig": "[training configuration](training.md)"}


def package_page(package: str) -> str:
    """Returns the page of a package. mkdocstrings puts signatures and docstrings in place of the names."""
    module = importlib.import_module(package)
    said = inspect.cleandoc(module.__doc__ or "")
    first, _, more = said.partition("\n\n")
    parts = [f"# {package}\n", f"{first}\n"]
    if more:
        parts.append(f"```python\n{more}\n```\n" if "import " in more else f"{more}\n")
    for name in module.__all__:
        if not name.startswith("__"):
            parts.append(f"::: {defined_at(package, name)}\n")
            parts += [f"Its fields: {_FIELDS[name]}.\n"] if name in _FIELDS else []
    return "\n".join(parts)


def defined_at(package: str, name: str) -> str:
    """Returns the path of a public name from the package that it comes from.

    Packages load their names late, and say in _HOMES where each comes from. A module that is called like what it
    defines is named, because the name alone would mean the module.
    """
    homes = getattr(importlib.import_module(package), "_HOMES", {})
    if name in homes:
        return defined_at(homes[name], name)
    is_module = (ROOT.joinpath(*package.split(".")) / f"{name}.py").exists()
    return f"{package}.{name}.{name}" if is_module else f"{package}.{name}"
