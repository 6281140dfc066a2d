"""Words that the project used once and does not use any more, and what to say instead (docs/glossary.md).

python -m tests.repo.vocabulary           # lists where they stand, ends with 1 when they do

Names are split into their words: `late_rows`, `LateRows` and "late rows" are the same. A word with an ordinary meaning
beside the retired one ("line" of a text, "room" on a disk, "gate" of security) is listed only in the phrases, names or
folders in which it had the retired meaning.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Retired:
    """A word that is no longer used, and its replacement."""

    #: The word in any of its forms, each of which is one word or several.
    words: tuple[str, ...]
    use: str
    #: Path prefixes in which it is retired; () for everywhere.
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    """A place in which a retired word is right."""

    #: Path prefixes.
    where: tuple[str, ...]
    #: A pattern that covers the word.
    text: str
    why: str


@dataclass(frozen=True, order=True)
class Finding:
    """A retired word that was found."""

    path: str
    #: The line number, or 0 for the path itself.
    line: int
    word: str
    use: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r} is retired: use {self.use}"


_INDEXES = (
    *("cuda/", "storage/hbm/", "storage/native/table/", "storage/native/cache/", "storage/native/gpu/"),
    *("tests/cpp/table/", "tests/cpp/cache/", "tests/cpp/cuda/"),
)
_ON_DISK = (
    *("storage/tiers/ssd/", "storage/native/pages/", "serving/", "emberline/", "benchmarks/", "docs/", "Makefile"),
    *("tests/unit/storage/test_ssd", "tests/soak/", "tests/faults/"),
)
# Names of tests are sentences of their own, in which people hear and are told things.
_PROSE = (
    *("cuda/", "docs/", "emberline/", "examples/", "loadtest/", "serving/", "storage/", "trainer/"),
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"),
)
_SNAPSHOTS = ("serving/engine/", "serving/pipeline/", "serving/updates/", "docs/live.md", "README.md")

RETIRED = (
    Retired(("card", "cards"), "GPU in prose, gpu or Gpu in names, device beside host in kernels"),
    Retired(
        ("lane", "lanes"), "execution context (GPU), loaded version (updates), session (lookups), page queue (pages)"
    ),
    Retired(("snapshot line", "snapshot lines"), "snapshot history"),
    Retired(("store line", "store lines"), "mounted store"),
    Retired(("line view", "line views"), "store view"),
    Retired(("index line", "index lines", "line array", "line locks", "cuh line"), "bucket"),
    Retired(("line", "lines"), "bucket", _INDEXES),
    Retired(("gate", "gates", "gated"), "validation; security keeps the word", _SNAPSHOTS),
    Retired(("door", "doors"), "response sink (engine), transport (HTTP, gRPC)"),
    Retired(("engine link",), "engine connection"),
    Retired(("bank", "banks"), "weight slot"),
    Retired(("late row", "late rows"), "missed rows"),
    Retired(("fold", "folds", "folded", "folding"), "compaction, compact", _ON_DISK),
    Retired(("sight", "sights"), "visibility"),
    Retired(("patience",), "base switch with backoff", ("storage/", "serving/", "docs/")),
    Retired(("heir", "heirs"), "next base"),
    Retired(("house", "houses", "wing", "wings", "hall", "halls"), "project, package, module"),
    Retired(("road", "roads"), "pipeline, walkthrough, steps"),
    Retired(("hears",), "is notified", _PROSE),
    Retired(("is told", "are told"), "is notified, gets", _PROSE),
    Retired(("tells of", "tell of"), "reports", _PROSE),
    Retired(("goes before",), "overrides", _PROSE),
    Retired(("who may",), "is allowed to", _PROSE),
    Retired(("what is so",), "the state", _PROSE),
)

# Files that are history, or that name the words in order to retire them.
UNREAD = (
    *("benchmarks/results/", "CHANGELOG.md", "LICENSE", "docs/flames/"),
    *("tests/repo/vocabulary.py", "tests/test_vocabulary.py", "tests/unit/test_docstrings.py"),
)

KEPT = (
    Kept(("cuda/", "tests/cpp/cuda/", "tests/kernels/"), r"\w*[Ll]anes?\w*", "lanes of a warp"),
    Kept(("tests/simulated_gpu/kernels.cpp", "docs/decisions/0029"), r"\blanes?\b", "lanes of a warp"),
    Kept(("storage/native/",), r"\bv(?:get|set|dup)q?_lane_\w+", "intrinsics of NEON"),
    Kept(_INDEXES, r"\bcache lines?\b|\blines? of memory\b|\b64-byte lines?\b", "64 bytes of memory"),
    Kept(("storage/native/table/match_loops.h",), r"\bkLines\b|\bwhole lines\b", "64 bytes of memory"),
    Kept(("storage/native/table/lookup.cpp",), r"\blines\b", "64 bytes of memory"),
    Kept(("storage/hbm/kernels.py", "storage/native/table/numa.cpp"), r".*", "lines of text"),
    Kept(
        ("benchmarks/report.py", "emberline/fitted_table.py", "tests/faults/night/"),
        r'overflow="fold"',
        "a setting of rich",
    ),
    Kept(("docs/",), r"`patience`|\bpatience: \d+", "an option of early stopping, as elsewhere"),
    Kept(("",), r"results/\d{4}-\d\d-\d\d-[\w-]+\.\w+", "dated results keep their names"),
)


def tracked_files() -> list[str]:
    """Returns the paths that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def is_read(path: str) -> bool:
    """Returns whether the words of a file are searched."""
    return not path.startswith(UNREAD) and not path.endswith((".svg", ".safetensors", ".pt2", ".json", ".png"))


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# What may separate the words of a phrase: nothing (camel case), or the separators of names and sentences.
_BETWEEN = re.compile(r"[\s_\-]*")


def find(path: str, text: str) -> Iterator[Finding]:
    """Yields the retired words in the path and the text of a file, one line after the other."""
    rules = {
        tuple(form.split()): retired.use
        for retired in RETIRED
        if not retired.where or path.startswith(retired.where)
        for form in retired.words
    }
    longest = max(map(len, rules))
    exceptions = [re.compile(kept.text) for kept in KEPT if path.startswith(kept.where)]
    for number, line in [(0, path), *enumerate(text.splitlines(), 1)]:
        words = list(_WORD.finditer(line))
        for first, word in enumerate(words):
            form: tuple[str, ...] = ()
            end = word.start()
            for following in words[first : first + longest]:
                if form and not _BETWEEN.fullmatch(line, end, following.start()):
                    break
                form, end = (*form, following[0].lower()), following.end()
                if form in rules and not _is_kept(exceptions, line, word.start(), end):
                    yield Finding(path, number, " ".join(form), rules[form])


def _is_kept(exceptions: Iterable[re.Pattern[str]], line: str, start: int, end: int) -> bool:
    return any(
        match.start() <= start and end <= match.end() for pattern in exceptions for match in pattern.finditer(line)
    )


def findings() -> list[Finding]:
    """Returns the retired words in the repository, by path and line."""
    found: list[Finding] = []
    for path in filter(is_read, tracked_files()):
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # The file is not text.
            continue
        found += find(path, text)
    return sorted(found)


def main() -> int:
    found = findings()
    for each in found:
        print(each)
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
