"""Finds the commands that pages of the documentation show, and reads those of emberline as the command line does."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from emberline.cli.frame import command as emberline

ROOT = Path(__file__).parents[2]
#: Programs with which a line of an indented block is a command.
PROGRAMS = (
    *("aws", "bash", "curl", "docker", "emberline", "gh", "git", "haproxy", "helm", "install", "kubectl", "locust"),
    *("make", "perf", "pip", "pipx", "promtool", "python", "python3", "rclone", "redis-cli", "sudo", "systemctl"),
    *("systemd-analyze", "tensorboard", "torchrun", "twine", "useradd", "."),
)
_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# Not a command that a page shows with the error that it ends with.
_INDENTED = re.compile(r"^ {4}(?:\$ )?(.+)$(?!\n {4}Error: )", re.MULTILINE)
_SPAN = re.compile(r"`(emberline [a-z][^`]*)`")


@dataclass(frozen=True)
class Shown:
    """A command on a page."""

    #: The path of the page in the repository.
    page: str
    text: str


def pages() -> list[str]:
    """Returns the paths of all pages that are written for readers; decisions and the changelog are history."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    history = ("docs/decisions/", "CHANGELOG.md", ".github/")
    return [name for name in names if name and not name.startswith(history) and (ROOT / name).is_file()]


def blocks_of(page: str) -> list[list[str]]:
    """Returns the commands of each block of `sh`, each as one line."""
    found = _FENCED.findall((ROOT / page).read_text(encoding="utf-8"))
    return [list(_lines(block)) for language, block in found if language == "sh"]


def commands_of(page: str) -> list[Shown]:
    """Returns the commands in blocks of `sh`, each as one line."""
    return [Shown(page, each) for block in blocks_of(page) for each in block]


def indented_of(page: str) -> list[str]:
    """Returns the commands that stand in an indented block, where no test would run them."""
    outside = _FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return [line for line in _INDENTED.findall(outside) if line.split(maxsplit=1)[0] in PROGRAMS]


def spans_of(page: str) -> list[Shown]:
    """Returns the commands of emberline in code spans of a page."""
    text = _FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return [Shown(page, " ".join(each.split())) for each in _SPAN.findall(text)]


def _lines(block: str) -> Iterator[str]:
    """Yields the commands of a block, those over several lines as one."""
    waiting = ""
    for line in block.replace("\\\n", "").splitlines():
        waiting = f"{waiting}\n{line}" if waiting else line.strip()
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:  # a quotation goes on in the next line
            continue
        if words:
            yield waiting
        waiting = ""
    assert not waiting, waiting


def fault(text: str) -> str:
    """Returns why the command line would not understand a command of emberline; "" when it does.

    Names and options are checked, and not values: a page may write NAME for one.
    """
    for line in re.split(r"\s(?:&&|\|)\s", text):
        words = shlex.split(line, comments=True)
        if not words or words[0] != "emberline" or len(words) == 1:
            continue
        redirections = [place for place, word in enumerate(words) if re.match(r"\d?>|&$", word)]
        found = _fault_of(words[1 : min(redirections, default=len(words))])
        if found:
            return found
    return ""


def _fault_of(words: list[str]) -> str:
    group: click.Command = emberline
    context = click.Context(emberline, info_name="emberline")
    while isinstance(group, click.Group):
        words = [word for word in words if word != "--debug"]
        if not words or words[0].startswith("-"):
            break
        name, *words = words
        inner = group.get_command(context, name)
        if inner is None:
            return f"there is no command {name!r}"
        group, context = inner, click.Context(inner, info_name=name, parent=context)
    try:
        _, left, _ = group.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return error.format_message()
    left = [word for word in left if word != "..."]
    return f"unexpected {' '.join(left)!r}" if left and not isinstance(group, click.Group) else ""


def unknown_program(text: str) -> str:
    """Returns why a command of this repository does not exist: a target of make, a module or a file of Python."""
    program, *words = shlex.split(text, comments=True)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return "; ".join(f"no target {word!r}" for word in words if "=" not in word and word not in targets)
    if program in ("python", "python3") and words:
        return _unknown_module(words[1]) if words[0] == "-m" else _unknown_file(words[0])
    return ""


def _unknown_module(name: str) -> str:
    place = ROOT.joinpath(*name.split("."))
    is_ours = (ROOT / name.split(".")[0]).is_dir()
    there = place.with_suffix(".py").exists() or (place / "__main__.py").exists()
    return "" if there or not is_ours else f"no module {name!r}"


def _unknown_file(name: str) -> str:
    is_ours = "/" in name and (ROOT / name.split("/")[0]).is_dir() and not name.startswith("build/")
    return f"no file {name!r}" if is_ours and not (ROOT / name).is_file() else ""
