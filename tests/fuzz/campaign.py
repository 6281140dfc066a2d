"""Shared parts of every fuzzer: options, counts, and findings that can be run again."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

FOLDER = Path(__file__).parents[2] / "build" / "fuzz"
MAX_FINDINGS = 10


@dataclass
class Campaign:
    """One run of a transport.

    It is over after `seconds`, or after `inputs` where that is not 0, or after MAX_FINDINGS findings.
    """

    transport: str
    seconds: float
    inputs: int = 0
    seed: int = 1
    done: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def is_over(self) -> bool:
        """Returns whether the campaign is over."""
        if len(self.findings) >= MAX_FINDINGS or (self.inputs and self.done >= self.inputs):
            return True
        return not self.inputs and time.monotonic() - self.started >= self.seconds

    def begin(self) -> None:
        """Starts the clock of the campaign."""
        self.started = time.monotonic()

    def rng(self) -> Random:
        """Returns the generator of the next input: the same for the same seed and number."""
        return Random((self.seed << 40) + self.done)

    def note(self, answer: str, count: int = 1) -> None:
        """Counts inputs and what came of them."""
        self.done += count
        self.answers[answer] += count

    def find(self, why: str, data: bytes, kind: str = "") -> None:
        """Notes a finding and saves its input.

        kind: what `--replay` needs to know about the input.
        """
        name = "-".join(part for part in (self.transport, kind, hashlib.sha256(data).hexdigest()[:12]) if part)
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / name
        path.write_bytes(data)
        self.findings.append(
            f"{why}\n  input {self.done} of seed {self.seed}, saved; again: "
            f"python -m tests.fuzz.{self.transport} --replay build/fuzz/{name}"
        )

    def complain(self, troubles: Sequence[str]) -> None:
        """Notes what is wrong with the server, which no single input has to have caused."""
        self.findings += [f"{trouble}\n  after {self.done} inputs of seed {self.seed}" for trouble in troubles]

    def line(self) -> str:
        """Summarises the run in text for people."""
        took = max(1e-9, time.monotonic() - self.started)
        answers = ", ".join(f"{name} {count}" for name, count in sorted(self.answers.items()))
        return (
            f"{self.transport}: {self.done} inputs in {took:.0f} s ({self.done / took:.0f}/s), seed {self.seed}, "
            f"{len(self.findings)} finding(s)\n  {answers}"
        )

    def finish(self) -> int:
        """Prints the summary and the findings; returns the exit status."""
        print(self.line(), flush=True)
        for finding in self.findings:
            print(f"FINDING {finding}", flush=True)
        return 1 if self.findings else 0


@dataclass(frozen=True)
class Options:
    """The command line of a fuzzer."""

    seconds: float
    inputs: int
    seed: int
    replay: Path | None
    rest: argparse.Namespace


def read_options(parser: argparse.ArgumentParser | None = None, arguments: Sequence[str] | None = None) -> Options:
    """Parses the options that all fuzzers have, beside those of `parser`."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run")
    parser.add_argument("--inputs", type=int, default=0, help="how many inputs, instead of how long")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="another one by default; it is printed")
    parser.add_argument("--replay", type=Path, help="run one saved input only")
    found = parser.parse_args(arguments)
    print(f"seed {found.seed}", flush=True)
    return Options(found.seconds, found.inputs, found.seed, found.replay, found)
