"""The committed stubs declare what the built modules offer."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest
from nanobind.stubgen import StubGen

import storage
from storage import _dense, _pages, _table

# Beside the sources: an installed module may lie elsewhere.
FOLDER = Path(storage.__file__).parent

PAGES = (_pages.PageFile, _pages.PageWriter, _pages.ChangesMerge, _pages.RunsMerge, _pages.PageReader, _pages.ChangeSet)
TABLES = (_table.Table, _table.OverlayTable, _table.Lookup, _table.TrainingTable)


def normal(text: str) -> str:
    """Returns the source without its formatting and comments."""
    return ast.unparse(ast.parse(text))


@pytest.mark.parametrize("module", [_table, _pages, _dense], ids=["_table", "_pages", "_dense"])
def test_the_committed_stub_is_the_modules_own(module: ModuleType) -> None:
    generator = StubGen(module, quiet=True)
    generator.put(module)
    name = module.__name__.rpartition(".")[2]
    stub = FOLDER / f"{name}.pyi"
    assert normal(stub.read_text(encoding="utf-8")) == normal(generator.get()), (
        f"out of date: run python -m nanobind.stubgen -m storage.{name} -o storage/{name}.pyi, then ruff format"
    )


@pytest.mark.parametrize("owners", [TABLES, PAGES], ids=["_table", "_pages"])
def test_everything_public_has_a_docstring(owners: tuple[type, ...]) -> None:
    bare = [
        f"{owner.__name__}.{name}"
        for owner in owners
        for name, member in vars(owner).items()
        if callable(member) and not name.startswith("_") and not member.__doc__
    ]
    assert not bare
