"""Links of pages lead to the same things on the site as in the repository."""

from __future__ import annotations

import re
from pathlib import Path

import markdown
import pytest
from markdown_it import MarkdownIt

from docs.site import links, pages
from docs.site.pages import SiteError

ROOT = Path(__file__).parents[3]
# What a difference in reading shows in, such as a list that is none without an empty line above it.
ELEMENTS = ("li", "ul", "ol", "pre", "table", "tr", "td", "th", "h1", "h2", "h3", "a", "img", "blockquote", "code")


def test_links_in_code_are_left_alone() -> None:
    text = "[a](x.md)\n```\n[b](y.md)\n```\n`[c](z.md)` and [`d`](w.md#at) [e](https://e.org) ![f](f.svg)\n"
    assert list(links.targets(text)) == ["x.md", "w.md", "f.svg"]
    assert links.rewrite(text, lambda target: f"../{target}") == (
        "[a](../x.md)\n```\n[b](y.md)\n```\n`[c](z.md)` and [`d`](../w.md#at) [e](https://e.org) ![f](../f.svg)\n"
    )


def test_a_link_that_shows_a_name_of_a_file_shows_its_title() -> None:
    text = "[more/x.md](more/x.md#at), [it](x.md), `[x.md](x.md)` and [y.md](y.md)"
    titles = {"more/x.md": "All of x"}
    assert links.rewrite(text, str, lambda target: titles.get(target, "")) == (
        "[All of x](more/x.md#at), [it](x.md), `[x.md](x.md)` and [y.md](y.md)"
    )


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("docs/live.md", "live.md"),
        ("docs/overview.svg", "overview.svg"),
        ("docs/manifest.schema.json", "repository/docs/manifest.schema.json.md"),
        ("README.md", "repository/README.md"),
        ("serving/config.py", "repository/serving/config.py.md"),
        (".github/workflows/ci.yml", "repository/github/workflows/ci.yml.md"),
        ("loadtest", "repository/loadtest/index.md"),
        ("model_repo", "repository/model_repo/README.md"),
    ],
)
def test_every_file_has_a_place_on_the_site(path: str, uri: str) -> None:
    assert links.site_uri(ROOT, path) == uri


def test_a_link_to_a_source_file_leads_to_a_page_that_shows_it(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "docs" / "a.md").write_text("[it](../code/it.py#L3), [all](../code), [large](../code/large.txt)")
    (tmp_path / "code" / "it.py").write_text("x = '```'\n")
    (tmp_path / "code" / "large.txt").write_text("x" * (links.MAX_PAGE_BYTES + 1))
    found = pages.collect(tmp_path, ["docs/a.md"])
    text = pages.on_site(tmp_path, found, found["docs/a.md"])
    assert text == (
        "[it](repository/code/it.py.md#L3), [all](repository/code/index.md), [large](repository/code/large.txt)"
    )
    assert "````python\nx = '```'\n````" in str(found["code/it.py"].text)
    assert "[it.py](it.py.md)" in pages.on_site(tmp_path, found, found["code"])
    assert found["code/large.txt"].text is None


def test_a_link_that_leads_nowhere_is_named_with_its_page(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("[gone](gone.md)")
    with pytest.raises(SiteError, match=r"docs/a\.md: the link gone\.md leads to docs/gone\.md, which does not exist"):
        pages.collect(tmp_path, ["docs/a.md"])


def test_pages_are_read_by_the_site_as_by_the_repository() -> None:
    """The site's Markdown is stricter than that of code hosts: a list needs an empty line above it, for one."""
    host = MarkdownIt("commonmark").enable("table")
    site = markdown.Markdown(extensions=["tables", "fenced_code", "toc", "sane_lists", "md_in_html"])
    different = {}
    found = pages.collect(ROOT, [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")])
    for path, page in found.items():
        if page.text is None or not path.endswith(".md"):
            continue
        expected, got = counted(host.render(page.text)), counted(site.reset().convert(page.text))
        if got != expected:
            different[path] = {name: (expected[name], got[name]) for name in ELEMENTS if expected[name] != got[name]}
    assert not different, "(on a code host, on the site)"


def counted(html: str) -> dict[str, int]:
    return {name: len(re.findall(rf"<{name}[ >/]", html)) for name in ELEMENTS}
