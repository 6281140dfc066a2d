"""The committed stub of the page files says what the built module offers."""

from __future__ import annotations

import ast
from pathlib import Path

from nanobind.stubgen import StubGen

import storage
import storage._pages as module

# Beside the sources: an installed module may lie elsewhere.
STUB = Path(storage.__file__).parent / "_pages.pyi"


def normal(text: str) -> str:
    """Formatting and comments aside."""
    return ast.unparse(ast.parse(text))


def test_the_committed_stub_is_the_modules_own() -> None:
    generator = StubGen(module, quiet=True)
    generator.put(module)
    assert normal(STUB.read_text(encoding="utf-8")) == normal(generator.get()), (
        "out of date: run python -m nanobind.stubgen -m storage._pages -o storage/_pages.pyi, then ruff format"
    )


def test_everything_public_has_a_docstring() -> None:
    owners = (module.PageFile, module.PageWriter, module.ChangesMerge, module.RunsMerge, module.PageReader)
    bare = [
        f"{owner.__name__}.{name}"
        for owner in (*owners, module.ChangeSet)
        for name, member in vars(owner).items()
        if callable(member) and not name.startswith("_") and not member.__doc__
    ]
    assert not bare
