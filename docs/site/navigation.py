"""Makes the navigation of the site of docs/README.md, so that a page stands in one list and not in two.

A heading of docs/README.md is a section, and holds the pages that are linked under it and under no heading before. The
pages of a folder are below its README.md.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.site import links
from docs.site.pages import Page, SiteError

INDEX = "docs/README.md"
REFERENCE = "Reference"
_HEADING = re.compile(r"^## +(.+)$", re.MULTILINE)


def sections(root: Path) -> dict[str, list[str]]:
    """Returns the paths in the repository of the pages of each section, in the order of docs/README.md."""
    parts = _HEADING.split((root / INDEX).read_text(encoding="utf-8"))
    seen: set[str] = {INDEX}
    found: dict[str, list[str]] = {}
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        paths = [links.resolve(INDEX, target) for target in links.targets(text)]
        pages = [path for path in dict.fromkeys(paths) if path.endswith(".md") and path not in seen]
        seen.update(pages)
        if pages:
            found[heading.strip()] = pages
    return found


def navigation(root: Path, pages: Mapping[str, Page], generated: list[str]) -> list[Any]:
    """Returns the navigation for MkDocs, which is a list of pages and of sections by their names.

    pages: all sources, by their paths. generated: the pages of the reference, which follow those of the section with
    its name. Raises SiteError for a page of docs/ that docs/README.md does not name.
    """
    named = sections(root)
    known = {path for paths in named.values() for path in paths}
    below: dict[str, list[str]] = {}
    for path in sorted(pages):
        if not (path.startswith("docs/") and path.endswith(".md")) or path in known or path == INDEX:
            continue
        readme = f"{posixpath.dirname(path)}/README.md"
        if readme not in known:
            raise SiteError(
                f"{path} is in no section of {INDEX}, of which the navigation is made; add a row for it to a table"
            )
        below.setdefault(readme, []).append(path)
    found: list[Any] = [pages[INDEX].uri]
    for heading, paths in named.items():
        entries: list[Any] = []
        for path in paths:
            entry = pages[path].uri
            folder = posixpath.basename(posixpath.dirname(path)).capitalize()
            more = [pages[each].uri for each in below.get(path, [])]
            entries.append({folder: [entry, *more]} if more else entry)
        found.append({heading: [*entries, *generated] if heading == REFERENCE else entries})
    if REFERENCE not in named:
        raise SiteError(f"{INDEX} has no section {REFERENCE!r}, which the generated pages are put into")
    return found
