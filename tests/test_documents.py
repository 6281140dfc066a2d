"""Names in documents exist: files and folders of the repository, and classes and functions in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/deployment.md", "docs/glossary.md")
FOLDERS = "benchmarks|cuda|deploy|docs|emberline|examples|loadtest|model_repo|serving|storage|tests|trainer"
# Matches `serving/http/protocol.py:HttpProtocol.data_received`, or a path alone.
NAMED = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)(?::([A-Za-z_]\w*(?:\.\w+)*))?`")


def named(text: str) -> list[tuple[str, str]]:
    """Returns the paths in code spans, with the dotted name behind each, or ""."""
    return [(path, name or "") for path, name in NAMED.findall(text)]


def missing(path: str, name: str) -> str:
    """Returns why what a document names does not exist; "" when it does."""
    file = ROOT / path
    if not file.exists():
        return f"{path} is not there"
    if not name:
        return ""
    # A method may be defined in the .cpp beside its header, so the last part is looked for in both.
    texts = [part.read_text(encoding="utf-8") for part in (file, file.with_suffix(".cpp")) if part.is_file()]
    for part in name.split("."):
        defined = re.compile(rf"(?:def|class|struct) {part}\b|^{part}\b.*=|\b{part}\(", re.M)
        if not any(defined.search(text) for text in texts):
            return f"{path} defines no {part!r}"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    wrong = [
        f"{page}:{number}: {reason}"
        for number, line in enumerate(text.splitlines(), 1)
        for path, name in named(line)
        if (reason := missing(path, name))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_walkthroughs_name_their_stations() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    walks = re.split(r"^## Walkthrough ", text, flags=re.M)[1:]
    assert [walk[0] for walk in walks] == ["A", "B", "C", "D"]
    for walk in walks:
        assert len([name for _, name in named(walk.split("\n## ")[0]) if name]) >= 10


def test_what_is_not_there_is_found() -> None:
    assert named("`serving/server.py:Server.run` and `docs/` and `emberline serve`") == [
        ("serving/server.py", "Server.run"),
        ("docs/", ""),
    ]
    assert missing("serving/server.py", "Server.run") == ""
    assert missing("storage/native/table/lookup.h", "Lookup.begin") == ""
    assert missing("serving/server.py", "Server.walk") == "serving/server.py defines no 'walk'"
    assert missing("serving/nowhere.py", "") == "serving/nowhere.py is not there"
