"""Follows a page of the documentation word for word: its shell blocks run in one shell, and print what it promises.

A block ```text after a block ```sh is what its commands promise to print: these lines in this order, among others.
`...` stands for anything. A number with a decimal point may differ by TOLERANCE, and a line may go on behind its end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

TOLERANCE = 0.02
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+\.\d+")
_MARK = "@@ block "


@dataclass(frozen=True)
class Step:
    """Commands of one block, and the lines that they promise to print."""

    commands: str
    promised: tuple[str, ...]


def steps_of(page: str) -> list[Step]:
    """Returns the shell blocks of a page in their order."""
    blocks = _BLOCK.findall(page)
    steps = []
    for place, (language, text) in enumerate(blocks):
        if language == "sh":
            after = blocks[place + 1] if place + 1 < len(blocks) else ("", "")
            steps.append(Step(text, tuple(after[1].splitlines()) if after[0] == "text" else ()))
    return steps


def files_of(page: str) -> dict[str, str]:
    """Returns the files that a page asks to save: blocks of Python that begin with a comment of the name alone."""
    found = {}
    for language, text in _BLOCK.findall(page):
        name = re.match(r"# ([\w.-]+\.py)\n", text)
        if language == "python" and name is not None:
            found[name[1]] = text
    return found


def follow(page: str, folder: Path, timeout_s: float) -> list[str]:
    """Runs the shell blocks of a page in a folder, in a network of their own, where its ports are free.

    Returns what each block printed, errors included. Fails when a command fails, or after timeout_s.
    """
    for name, text in files_of(page).items():
        (folder / name).write_text(text)
    steps = steps_of(page)
    script = ["set -e", "ip link set lo up"]
    for number, step in enumerate(steps):
        script += [f"echo '{_MARK}{number}'", step.commands]
    path = folder / "page.sh"
    path.write_text("\n".join(script))
    users = [] if os.geteuid() == 0 else ["--map-root-user"]
    bin_folder = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}:/usr/sbin:/sbin", "COLUMNS": "200"}
    log = folder / "page.log"
    with log.open("w") as output:
        # The shell is the first process of its own process namespace: with it, everything that it started ends.
        shell = subprocess.Popen(
            ["unshare", *users, "--net", "--pid", "--fork", "--kill-child", "bash", str(path)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=variables,
        )
        deadline = time.monotonic() + timeout_s
        try:
            code = shell.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            shell.kill()
            shell.wait()
    printed = log.read_text(errors="replace")
    assert code == 0, f"the page's commands ended with {code} (-1: not in {timeout_s:g} s)\n{printed[-4000:]}"
    return [part.partition("\n")[2] for part in printed.split(_MARK)[1:]]


def broken_promises(step: Step, printed: str) -> list[str]:
    """Returns the promised lines that are not among the printed ones, in this order."""
    left = iter(printed.splitlines())
    return [line for line in step.promised if not any(keeps(line, each) for each in left)]


def keeps(promised: str, printed: str) -> bool:
    """Returns whether a printed line is what a page promises."""
    pattern = "".join(
        ".*" if part == "..." else r"(\d+\.\d+)" if _NUMBER.fullmatch(part) else re.escape(part)
        for part in re.split(r"(\.\.\.|\d+\.\d+)", promised.strip())
    )
    found = re.match(pattern, printed.strip())
    if found is None:
        return False
    wanted = [float(number) for number in _NUMBER.findall(promised.replace("...", ""))]
    return all(abs(float(a) - b) <= TOLERANCE for a, b in zip(found.groups(), wanted, strict=True))
