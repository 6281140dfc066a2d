"""The navigation of the site is docs/README.md: every page once, in the section that names it first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.site import pages
from docs.site.navigation import navigation, sections
from docs.site.pages import SiteError

ROOT = Path(__file__).parents[3]


def tree(root: Path, files: dict[str, str]) -> dict[str, pages.Page]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return pages.collect(root, [name for name in files if name.startswith("docs/") and name.endswith(".md")])


INDEX = "# All\n[readme](../README.md)\n## Start\n[a](a.md) [b](b.md#x)\n## Serve\n[b](b.md) [c](more/README.md)\n"
FILES = {
    "README.md": "# Readme",
    "docs/README.md": f"{INDEX}## Reference\n[r](reference.md)\n",
    "docs/a.md": "# A\n[list](../README.md)",
    "docs/b.md": "# B",
    "docs/reference.md": "# R",
    "docs/more/README.md": "# More",
    "docs/more/1.md": "# One",
}


def test_sections_are_the_headings_of_the_index(tmp_path: Path) -> None:
    found = navigation(tmp_path, tree(tmp_path, FILES), ["reference/cli.md"])
    assert found == [
        "README.md",
        {"Start": ["a.md", "b.md"]},
        {"Serve": [{"More": ["more/README.md", "more/1.md"]}]},
        {"Reference": ["reference.md", "reference/cli.md"]},
    ]


def test_a_page_that_no_section_names_is_named(tmp_path: Path) -> None:
    made = tree(tmp_path, {**FILES, "docs/new.md": "# New"})
    with pytest.raises(SiteError, match=r"docs/new\.md is in no section of docs/README\.md"):
        navigation(tmp_path, made, [])


def test_an_index_without_a_reference_is_refused(tmp_path: Path) -> None:
    made = tree(tmp_path, {**FILES, "docs/README.md": INDEX})
    del made["docs/reference.md"]
    with pytest.raises(SiteError, match="no section 'Reference'"):
        navigation(tmp_path, made, [])


def test_every_page_of_the_project_stands_once_in_the_navigation() -> None:
    docs = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    found = pages.collect(ROOT, docs)
    flat = list(flattened(navigation(ROOT, found, [])))
    assert len(set(flat)) == len(flat)
    assert {found[path].uri for path in docs} <= set(flat)
    assert len(sections(ROOT)) > 8


def flattened(entries: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            found.append(entry)
        else:
            found += flattened(next(iter(entry.values())))
    return found
