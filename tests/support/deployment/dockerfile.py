"""Reads a Dockerfile, and which files of the checkout an engine would be sent."""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.deployment.programs import ROOT


@dataclass
class Stage:
    """One FROM with the instructions that follow it."""

    image: str
    name: str
    #: Pairs of an instruction and the rest of its line, in order; lines that are continued are joined.
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        """Returns the rest of every line with an instruction."""
        return [rest for name, rest in self.steps if name == instruction]

    def command(self, instruction: str) -> list[str]:
        """Returns the command of ENTRYPOINT or HEALTHCHECK."""
        (rest,) = self.all(instruction)
        return list(json.loads(rest[rest.index("[") :]))

    @property
    def environment(self) -> dict[str, str]:
        """The variables of ENV."""
        return dict(pair.split("=", 1) for rest in self.all("ENV") for pair in rest.split())


def stages(path: Path) -> list[Stage]:
    """Reads a Dockerfile."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    found: list[Stage] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image, name))
        elif instruction:
            found[-1].steps.append((instruction, rest.strip()))
    return found


def copied_from_checkout(stage: Stage) -> list[tuple[list[str], str]]:
    """Returns sources and target of every COPY that is not from another stage."""
    lines = [rest.split() for rest in stage.all("COPY") if not rest.startswith("--from")]
    return [(sources, target) for *sources, target in lines]


def is_sent(path: Path) -> bool:
    """Returns whether .dockerignore lets an engine have a file.

    The last pattern that fits the file or a parent counts.
    """
    relative = path.relative_to(ROOT)
    parts = [relative, *list(relative.parents)[:-1]]
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!")
        if not line or line.startswith("#"):
            continue
        for part in parts:
            name = part.name if pattern.startswith("**/") else str(part)
            if fnmatch.fnmatch(name, pattern.removeprefix("**/")) and (pattern != "*" or "/" not in str(part)):
                sent = line.startswith("!")
    return sent
