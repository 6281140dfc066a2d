"""Finds the pages of the site: those of docs/, and what they link to elsewhere in the repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.site import links

_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


class SiteError(ValueError):
    """Says what is wrong with which page."""


@dataclass(frozen=True)
class Page:
    """A source of the site."""

    #: Its path in the repository.
    path: str
    #: Its path among the sources of the site.
    uri: str
    #: Its Markdown as it is written, with links for a reader of the repository; None: the file is copied.
    text: str | None


def collect(root: Path, docs: Iterable[str]) -> dict[str, Page]:
    """Returns every source that the given pages lead to, by its path in the repository.

    docs: paths in the repository of the pages to start with. Raises SiteError for a link that leads nowhere.
    """
    found: dict[str, Page] = {}
    left = list(dict.fromkeys(docs))
    while left:
        path = left.pop(0)
        if path in found:
            continue
        page = found[path] = Page(path, links.site_uri(root, path), _text(root, path))
        if page.text is None:
            continue
        base = f"{path}/index.md" if (root / path).is_dir() else path
        for target in _targets(root, page):
            to = _file_behind(root, links.resolve(base, target))
            if not (root / to).exists():
                raise SiteError(f"{path}: the link {target} leads to {to}, which does not exist")
            left.append(to)
    return found


def on_site(root: Path, pages: Mapping[str, Page], page: Page) -> str:
    """Returns the Markdown of a page with its links as they are on the site."""
    assert page.text is not None
    base = f"{page.path}/index.md" if (root / page.path).is_dir() else page.path

    def led_to(target: str) -> Page:
        return pages[_file_behind(root, links.resolve(base, target))]

    def change(target: str) -> str:
        return links.relative(page.uri, led_to(target).uri)

    def title(target: str) -> str:
        found = _TITLE.search(led_to(target).text or "") if "://" not in target else None
        return found[1] if found is not None else ""

    return links.rewrite(page.text, change, title) if _has_links(root, page) else page.text


def _text(root: Path, path: str) -> str | None:
    if (root / path).is_dir():
        return links.folder_page(root, path)
    if path.endswith(".md"):
        return (root / path).read_text(encoding="utf-8")
    return links.code_page(root, path) if links.site_uri(root, path).endswith(".md") else None


def _has_links(root: Path, page: Page) -> bool:
    return page.path.endswith(".md") or (root / page.path).is_dir()


def _targets(root: Path, page: Page) -> list[str]:
    return list(links.targets(page.text or "")) if _has_links(root, page) else []


def _file_behind(root: Path, path: str) -> str:
    """Returns README.md of a folder that has one, else the path."""
    readme = root / path / "README.md"
    return f"{path}/README.md" if readme.is_file() else path
