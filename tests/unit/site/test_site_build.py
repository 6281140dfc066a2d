"""The site is built strictly, loads nothing from elsewhere, and its search has all pages."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import PeerMissingError
from tests.support.browser import chromium

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow
# Attributes by which a page loads something; a link may lead anywhere.
LOADED = re.compile(
    r'<(?:script|img|iframe|source)[^>]+src="([^"]+)"|<link[^>]+rel="(?:stylesheet|icon)"[^>]+href="([^"]+)"'
)


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(root)}
    return subprocess.run(
        # Not --quiet: it drops the warnings that --strict counts.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = build(ROOT, place)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 150
    for page in pages:
        loaded = [first or second for first, second in LOADED.findall(page.read_text(encoding="utf-8"))]
        assert loaded
        assert not [each for each in loaded if re.match(r"(?:https?:)?//", each)], page
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"url\(\s*[\"']?(?:https?:)?//", styles)


def test_the_search_has_pages_and_the_reference_and_no_source(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"live.html", "reference/cli.html", "reference/metrics.html", "repository/ARCHITECTURE.html"} <= places
    assert not [place for place in places if place.startswith("repository/serving/")]
    assert any("retain_snapshots" in entry["text"] for entry in index["docs"])
    # For pages that are opened as files.
    assert (site / "search" / "search_index.js").is_file()
    assert "site/iframe-worker.js" in (site / "index.html").read_text(encoding="utf-8")


def test_the_search_works_in_pages_that_are_opened_as_files(site: Path) -> None:
    asked: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            browser = stack.enter_context(chromium())
        except PeerMissingError as error:
            pytest.skip(str(error))
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{(site / 'index.html').as_uri()}?q=min_snapshot")
        page.locator(".md-search-result__link").first.wait_for()
        titles = page.locator(".md-search-result__link h1").all_inner_texts()
    assert "Live updates" in titles
    assert asked
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]


def test_python_names_have_signatures_and_texts(site: Path) -> None:
    page = (site / "reference" / "python-trainer.html").read_text(encoding="utf-8")
    assert 'id="trainer.publishing.publish.publish"' in page
    assert "sample_batch" in re.sub(r"<[^>]+>", "", page)
    assert ":::" not in re.sub(r"<[^>]+>", "", page)


def test_an_anchor_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("emberline", "serving", "storage", "trainer", "loadtest"):
        (root / name).symlink_to(ROOT / name)
    # Signatures of Python names, which take most of a build, have no part in this.
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings, count = re.subn(r"^  - mkdocstrings:\n(?:    .*\n|\n)+", "", settings, flags=re.MULTILINE)
    assert count == 1
    (root / "mkdocs.yml").write_text(settings, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "site", root / "docs" / "site")
    named = (
        "a",
        "console",
        "format",
        "metrics",
        "reference",
        "security",
        "serving",
        "training",
    )  # the reference links to most
    for name in named:
        (root / "docs" / f"{name}.md").write_text(f"# {name}\n")
    index = "".join(f"[{name}]({name}.md)\n" for name in named)
    (root / "docs" / "README.md").write_text(f"# All\n\n## Reference\n\n{index}")
    (root / "docs" / "a.md").write_text("# A\n\n## At hand\n\n[b](#at-hand) [c](serving.md#nowhere)\n")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0
    assert "does not contain an anchor '#nowhere'" in done.stderr
    assert "strict mode" in done.stderr + done.stdout
