"""Rewrites the links of pages for the site: files of the repository outside docs/ become pages of the site, too.

Pages are written for a reader of the repository, so a link may lead to any file or folder of it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

# Where files of the repository outside docs/ lie on the site.
ELSEWHERE = "repository"
#: Longer files are copied, and not shown as a page.
MAX_PAGE_BYTES = 100_000
_IMAGES = {".svg", ".png"}
_LANGUAGES = {
    ".py": "python",
    ".pyi": "python",
    ".cpp": "cpp",
    ".h": "cpp",
    ".go": "go",
    ".java": "java",
    ".sh": "sh",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
}
# A fenced block, a code span, the text of a link that is a file's name, or the target of a link.
_PARTS = re.compile(
    r"^ *(?P<fence>`{3,}|~{3,}).*?^ *(?P=fence)[`~]*[ ]*$"
    r"|(?P<ticks>`+)(?!`)(?:(?!\n\n).)*?(?<!`)(?P=ticks)(?!`)"
    r"|\[(?P<name>[\w./-]+\.md)(?=\]\((?P<to>[^)#\s]+))"
    r"|(?P<open>\]\()(?P<target>[^)\s]+)(?P<close>\))",
    re.MULTILINE | re.DOTALL,
)


def targets(text: str) -> Iterator[str]:
    """Yields the targets of the links and images of a page that lead to files, without their anchors."""
    for part in _PARTS.finditer(text):
        target = (part["target"] or "").partition("#")[0]
        if target and "://" not in target and not target.startswith("mailto:"):
            yield target


def rewrite(text: str, change: Callable[[str], str], title: Callable[[str], str] = lambda target: "") -> str:
    """Returns the page with every target that `targets` yields replaced by what `change` returns for it.

    title: returns the title of a target, which a link shows in the place of a file's name; "" for one without.
    """

    def replaced(part: re.Match[str]) -> str:
        if part["name"] is not None:
            return f"[{title(part['to']) or part['name']}"
        target, hash_sign, anchor = (part["target"] or "").partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return part[0]
        return f"{part['open']}{change(target)}{hash_sign}{anchor}{part['close']}"

    return _PARTS.sub(replaced, text)


def resolve(page: str, target: str) -> str:
    """Returns the path in the repository that a link of a page leads to. page: the page's own path in it."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def site_uri(root: Path, path: str) -> str:
    """Returns where a file or a folder of the repository lies among the sources of the site."""
    suffix = posixpath.splitext(path)[1]
    if path.startswith("docs/") and suffix in {".md", *_IMAGES}:
        return path.removeprefix("docs/")
    # Names that begin with a dot are left out by MkDocs.
    place = f"{ELSEWHERE}/{path.lstrip('.')}"
    if (root / path).is_dir():
        readme = root / path / "README.md"
        return f"{place}/README.md" if readme.exists() else f"{place}/index.md"
    return place if suffix in {".md", *_IMAGES} or not is_shown(root / path) else f"{place}.md"


def is_shown(file: Path) -> bool:
    """Returns whether a file is short enough, and text, to be shown as a page."""
    if file.stat().st_size > MAX_PAGE_BYTES:
        return False
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def relative(page_uri: str, uri: str) -> str:
    """Returns the link from a source of the site to another one."""
    return posixpath.relpath(uri, posixpath.dirname(page_uri) or ".")


def code_page(root: Path, path: str) -> str:
    """Returns the page that shows a text file of the repository."""
    text = (root / path).read_text(encoding="utf-8").rstrip("\n")
    ticks = max([2, *(len(run) for run in re.findall(r"`{3,}", text))]) + 1
    language = _LANGUAGES.get(posixpath.splitext(path)[1], "text")
    fence = "`" * ticks
    return f"{_unsearched()}# {posixpath.basename(path)}\n\n`{path}`\n\n{fence}{language}\n{text}\n{fence}\n"


def folder_page(root: Path, path: str) -> str:
    """Returns the page that lists a folder of the repository, with links to its text files."""
    lines = [f"{_unsearched()}# {posixpath.basename(path)}/\n", f"The files of `{path}/`:\n"]
    for file in sorted((root / path).iterdir()):
        if file.name.startswith((".", "__pycache__")):
            continue
        link = f"[{file.name}]({file.name})" if file.is_file() and is_shown(file) else f"`{file.name}`"
        lines.append(f"- {link}")
    return "\n".join(lines) + "\n"


def _unsearched() -> str:
    return "---\nsearch:\n  exclude: true\n---\n\n"
