"""Runs tests many times beside busy loops, as on a machine that others use too, and names those that failed even once.

    python -m tests.repo.flaky --runs 20 tests/integration/serving tests/e2e
    python -m tests.repo.flaky --runs 5 tests -m 'not slow'

Further arguments go to pytest. At the end, it prints the tests that failed, with the first line of each first reason,
and the slowest 30 by their mean; every run's report lies under build/flaky. Ends with 1 if a test failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 30
_LINE = 160
_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"


@dataclass
class Runs:
    """Results of the runs so far."""

    #: Number of failures, by test.
    failed: Counter[str] = field(default_factory=Counter)
    #: Reason of the first failure, by test.
    reasons: dict[str, str] = field(default_factory=dict)
    #: Duration of every run, by test.
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    def add(self, report: Path, log: Path) -> None:
        """Reads the report of a run. A run that left none counts as a failed test of its own."""
        self.count += 1
        try:
            cases = ElementTree.parse(report).getroot().iter("testcase")
        except (OSError, ElementTree.ParseError) as error:
            self._fail("(a whole run)", f"no report: {error}; see {log}")
            return
        for case in cases:
            name = _name(case)
            self.seconds[name].append(float(case.get("time", "0")))
            for kind in ("failure", "error"):
                if (found := case.find(kind)) is not None:
                    self._fail(name, found.get("message") or found.text or kind)

    def _fail(self, name: str, reason: str) -> None:
        self.failed[name] += 1
        self.reasons.setdefault(name, reason.strip().splitlines()[0][:_LINE] if reason.strip() else "no reason given")

    def lines(self) -> Iterator[str]:
        """Yields the lines of the table: the tests that failed, then the slowest ones."""
        yield f"{self.count} runs of {len(self.seconds)} tests; {len(self.failed)} failed at least once"
        for name, count in self.failed.most_common():
            yield f"  {count:>3} times  {name}: {self.reasons[name]}"
        means = {name: sum(each) / len(each) for name, each in self.seconds.items()}
        yield f"slowest {min(SLOWEST, len(means))}: mean and longest, in seconds"
        for name in sorted(means, key=lambda name: -means[name])[:SLOWEST]:
            yield f"  {means[name]:8.2f} {max(self.seconds[name]):8.2f}  {name}"


def _name(case: ElementTree.Element) -> str:
    """Returns the name that pytest accepts: path::name, or path::class::name."""
    file, classes = case.get("file", ""), case.get("classname", "")
    inside = classes.removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join(part for part in (file, inside.replace(".", "::"), case.get("name", "")) if part)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Runs `count` processes that only use one core each. They end with this process, however it ends."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_all(runs: int, loops: int, arguments: Sequence[str], out: Path, timeout_s: float) -> Runs:
    """Runs pytest `runs` times beside busy loops. A run that takes longer than `timeout_s` is ended, and has failed."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    found = Runs()
    with busy(loops):
        for number in range(1, runs + 1):
            report, log = out / f"{number}.xml", out / f"{number}.log"
            command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junit-xml={report}"]
            began = time.monotonic()
            with log.open("w", encoding="utf-8") as output, contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([*command, *arguments], stdout=output, stderr=output, timeout=timeout_s, check=False)
            found.add(report, log)
            failed = ", ".join(sorted(found.failed)) or "nothing"
            print(f"run {number}: {time.monotonic() - began:.0f} s; failed so far: {failed}", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0 when no test failed in any run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="busy loops beside the tests")
    parser.add_argument("--out", type=Path, default=Path("build/flaky"), help="for logs and reports; emptied first")
    parser.add_argument("--timeout-s", type=float, default=3600.0, help="of one run")
    given, rest = parser.parse_known_args(arguments)
    found = run_all(given.runs, given.busy, rest, given.out, given.timeout_s)
    print(*found.lines(), sep="\n")
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
