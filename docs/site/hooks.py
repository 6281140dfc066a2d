"""Adds to the pages of docs/, for MkDocs: the navigation, the reference, and the files that pages link to elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402 - the path of the packages comes first
from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page as SitePage  # noqa: E402

from docs.site import links, pages, reference  # noqa: E402
from docs.site.navigation import navigation  # noqa: E402

#: Set by mike, which builds a version of the site.
_VERSION = "MIKE_DOCS_VERSION"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Shows the menu of versions where mike builds one of them."""
    if os.environ.get(_VERSION):
        config.extra["version"] = {"provider": "mike", "default": "latest"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/, and sets the navigation."""
    docs = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    try:
        found = pages.collect(ROOT, docs)
        generated = reference.pages(ROOT)
        config.nav = navigation(ROOT, found, list(generated))
        contents = {page.uri: pages.on_site(ROOT, found, page) for page in found.values() if page.text is not None}
    except pages.SiteError as error:
        raise PluginError(str(error)) from None
    for page in found.values():
        if files.get_file_from_path(page.uri) is None:
            content = contents.get(page.uri)
            add = {"content": content} if content is not None else {"abs_src_path": str(ROOT / page.path)}
            files.append(File.generated(config, page.uri, **add))  # type: ignore[call-overload]
    for uri, content in generated.items():
        files.append(File.generated(config, uri, content=content))
    config.extra["site_contents"] = contents
    return files


def on_page_markdown(markdown: str, page: SitePage, config: MkDocsConfig, files: Files) -> str:
    """Returns a page of docs/ with its links as they are on the site."""
    uri = page.file.src_uri
    content: str = config.extra["site_contents"].get(uri, markdown)
    if uri.startswith(f"{links.ELSEWHERE}/"):
        return markdown
    return reference.with_contents(content) if uri == reference.OVERVIEW else content
