"""Follows a page of the documentation word for word: its shell blocks run in one shell, and print what it promises.

A block ```text after a block ```sh is what its commands promise to print: these lines in this order, among others.
`...` stands for anything. A number with a decimal point may differ by TOLERANCE, and a line may go on behind its end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TOLERANCE = 0.02
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+\.\d+")
_MARK = "@@ block "
#: Folders of programs that a page needs and PATH may lack.
_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass(frozen=True)
class Step:
    """Commands of one block, and the lines that they promise to print."""

    commands: str
    promised: tuple[str, ...]


def why_not() -> str:
    """Returns why pages cannot be followed on this machine, "" where they can."""
    missing = [name for name in ("unshare", "ip", "curl") if shutil.which(name, path=_PLACES) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    done = subprocess.run(["unshare", "--map-root-user", "--net", "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no network of its own: {done.stderr.strip()}"


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


def follow(
    page: str,
    folder: Path,
    timeout_s: float,
    programs: Path = Path(sys.executable).parent,
    variables: Mapping[str, str] = os.environ,
) -> list[str]:
    """Runs the shell blocks of a page in a folder, in a network of their own, where its ports are free.

    programs: folder of the environment that a reader has made active. variables: of the shell, before that. Returns
    what each block printed, errors included. Fails when a command fails, or after timeout_s.
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
    path_of_all = f"{programs}:{variables['PATH']}:{_PLACES}"
    log = folder / "page.log"
    with log.open("w") as output:
        # The shell is the first process of its own process namespace: with it, everything that it started ends.
        shell = subprocess.Popen(
            ["unshare", *users, "--net", "--pid", "--fork", "--kill-child", "bash", str(path)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**variables, "PATH": path_of_all, "COLUMNS": "200"},
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
