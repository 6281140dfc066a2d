"""Names in documents exist: files, classes, functions, commands and options; and tests run what is to be typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.page_runs import NOT_RUN, RUN_BY
from tests.support.shown_commands import commands_of, fault, indented_of, pages, spans_of, unknown_program

ROOT = Path(__file__).parent.parent
# Mentions of a command in a sentence: an option without its value, or a word in the place of a name.
MENTION = re.compile(r"requires an argument|there is no command '([A-Z]+|\.\.\.)'")
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


@pytest.mark.parametrize("page", pages())
def test_what_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    wrong = [
        f"{page}:{number}: {reason}"
        for number, line in enumerate(text.splitlines(), 1)
        for path, name in named(line)
        if "DATE" not in path and (reason := missing(path, name))
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


@pytest.mark.parametrize("page", pages())
def test_every_command_of_a_page_is_understood(page: str) -> None:
    shown = [(each.text, fault(each.text) or unknown_program(each.text)) for each in commands_of(page)]
    mentioned = [(each.text, found) for each in spans_of(page) if not MENTION.search(found := fault(each.text))]
    wrong = [f"{page}: {text}: {why}" for text, why in shown + mentioned if why]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", pages())
def test_every_command_in_a_shell_block_is_run_or_says_why_not(page: str) -> None:
    reasons = NOT_RUN.get(page, {})
    shown = [each.text for each in commands_of(page)]
    left = [text for text in shown if not text.startswith(tuple(reasons))]
    assert not left or page in RUN_BY, f"{page}: add its test, or the reason, to tests/support/page_runs.py: {left}"
    unused = [start for start in reasons if not any(text.startswith(start) for text in shown)]
    assert not unused, f"{page}: tests/support/page_runs.py has reasons for commands that are gone: {unused}"


@pytest.mark.parametrize("page", pages())
def test_commands_stand_in_blocks_of_sh(page: str) -> None:
    assert not indented_of(page), f"{page}: put commands into a block of ```sh, so that a test has to run them"


@pytest.mark.parametrize("page", RUN_BY)
def test_the_test_of_a_page_reads_it(page: str) -> None:
    text = (ROOT / RUN_BY[page]).read_text(encoding="utf-8")
    # The guides are read by a pattern of their names.
    name = Path(page).stem.removeprefix("from-")
    assert name in text
    assert commands_of(page), f"{page} has no block of sh any more"


def test_a_command_that_is_not_there_is_found() -> None:
    assert fault("emberline tarin a.yaml") == "there is no command 'tarin'"
    assert fault("emberline train a.yaml --outptu x").startswith("No such option '--outptu'")
    assert fault("emberline store verify build/store && emberline health --port 3")
    assert fault("emberline init a.csv --label x > a.yaml") == ""
    assert unknown_program("make nothing") == "no target 'nothing'"
    assert unknown_program("python -m benchmarks.nothing") == "no module 'benchmarks.nothing'"
    assert unknown_program("python examples/nothing.py") == "no file 'examples/nothing.py'"
