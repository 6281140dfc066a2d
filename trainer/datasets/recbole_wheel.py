"""Fetches MovieLens-100k out of a wheel on the package index: recbole carries it as its example data.

Nothing of that package is installed or run; the wheel is read as the zip that it is, after its digest was checked.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from storage.errors import IntegrityError, NotFound
from storage.paths import local_path

REQUIREMENT = "recbole==1.2.1"
WHEEL = "recbole-1.2.1-py3-none-any.whl"
SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
INSIDE = "recbole/dataset_example/ml-100k/ml-100k."
SOURCE = "MovieLens-100k by GroupLens Research, University of Minnesota (grouplens.org/datasets/movielens/100k)"
TERMS = (
    "Its terms, in our words: for research; name GroupLens as the source in what you publish (Harper and Konstan, "
    "The MovieLens Datasets: History and Context, 2015); do not suggest that the university endorses you; do not pass "
    "it on or use it commercially without their leave; no warranty. Read theirs before you use it for anything else."
)
_TIMEOUT_S = 300


def find_wheel(cache: Path, given: Path | None = None) -> Path:
    """Returns the verified wheel: the given one, the cached one, or a fresh download into `cache`.

    Raises NotFound when it cannot be had, IntegrityError when its bytes are not the expected ones.
    """
    if given is not None:
        given = local_path(given, "wheel")
        if not given.is_file():
            raise NotFound(f"{given}: there is no such file; --wheel names a copy of {WHEEL}")
        _check_digest(given)
        return given
    cached = cache / WHEEL
    if not cached.is_file():
        _download(cache, cached)
    try:
        _check_digest(cached)
    except IntegrityError as error:
        raise IntegrityError(f"{error}; delete it and run the command again") from None
    return cached


def read_table(wheel: Path, kind: str) -> tuple[list[str], list[list[str]]]:
    """Returns column names and rows of one of the files: kind is inter, item or user."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            lines = archive.read(INSIDE + kind).decode("utf-8").splitlines()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise NotFound(f"{wheel}: {INSIDE}{kind} is not in it: {error}") from None
    header = [entry.partition(":")[0] for entry in lines[0].split("\t")]
    return header, [line.split("\t") for line in lines[1:] if line]


def _download(cache: Path, target: Path) -> None:
    advice = (
        f"with a network elsewhere, run `python -m pip download --no-deps {REQUIREMENT}` there, copy {WHEEL} over and "
        "pass it with --wheel PATH"
    )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _run_pip(["download", "--no-deps", "--only-binary", ":all:", "--dest", folder, REQUIREMENT], advice)
            fetched = Path(folder) / WHEEL
            if not fetched.is_file():
                raise NotFound(f"pip fetched {[p.name for p in Path(folder).iterdir()]}, expected {WHEEL}; {advice}")
            _check_digest(fetched)
            shutil.move(fetched, target)
    except OSError as error:
        raise NotFound(f"{cache}: the cache folder cannot be used: {error}; pass a copy with --wheel PATH") from None


def _run_pip(arguments: Sequence[str], advice: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotFound(
            f"pip had not fetched {REQUIREMENT} after {_TIMEOUT_S} s: is there a network? {advice}"
        ) from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no word")
        raise NotFound(f"pip could not fetch {REQUIREMENT} ({reason.removeprefix('ERROR: ')}); {advice}")


def _check_digest(path: Path) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise IntegrityError(f"{path}: sha256 is {digest}, expected {SHA256}: not the wheel that was published")
