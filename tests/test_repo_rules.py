"""Rules of the sample that no other tool checks. Each failure says what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.repo import docstrings, imports
from tests.repo.markdown import COLUMNS, is_generated, long_lines

ROOT = Path(__file__).parent.parent
PACKAGES = ("emberline", "serving", "storage", "trainer", "loadtest")
# Not .pyi: a stub is written by a machine, one a native module.
SOURCE_SUFFIXES = {".py", ".cpp", ".h", ".cu", ".cuh"}
LINES_AT_MOST = 500
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def tracked_files() -> list[Path]:
    """Returns the files that git knows or would add; in a tree without git, everything outside build output."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        skipped = {".venv", "build", ".git", "__pycache__"}
        return [path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.parts)]
    return [ROOT / name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()]


FILES = tracked_files()


def test_the_listing_is_not_empty() -> None:
    assert len(FILES) > 50


@pytest.mark.parametrize("package", PACKAGES)
def test_our_package_is_the_one_that_imports(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None, f"{package} resolved to a folder without our __init__.py"
    assert Path(spec.origin).resolve() == ROOT / package / "__init__.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_owns_our_names(package: str) -> None:
    owners = set(importlib.metadata.packages_distributions().get(package, [])) - {"emberline"}
    assert not owners, f"uninstall {owners}: they install a package called {package!r} over ours"


def test_cuda_holds_kernels_only() -> None:
    strangers = [p for p in FILES if p.is_relative_to(ROOT / "cuda") and p.suffix not in {".cu", ".cuh", ".md"}]
    assert not strangers, "cuda/ is data: a Python file there breaks `import cupy`"
    assert not list((ROOT / "cuda").rglob("*.py"))


def test_no_folder_called_cuda_is_a_package_anywhere() -> None:
    assert not [p for p in FILES if p.name == "__init__.py" and p.parent.name == "cuda"]


def test_cuda_pathfinder_still_resolves_beside_cupy() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed, so nothing could hide cuda.pathfinder")
    assert importlib.util.find_spec("cuda.pathfinder") is not None


def test_files_stay_small() -> None:
    long = {
        str(p.relative_to(ROOT)): count
        for p in FILES
        if p.suffix in SOURCE_SUFFIXES and (count := len(p.read_text(encoding="utf-8").splitlines())) > LINES_AT_MOST
    }
    assert not long, f"over {LINES_AT_MOST} lines: split by idea: {long}"


def test_lines_of_native_code_fit_the_screen() -> None:
    """Checks the lines that clang-format does not wrap.

    It wraps code; comments are left to their author, because it would destroy aligned lists.
    """
    long = [
        f"{p.relative_to(ROOT)}:{number}"
        for p in FILES
        if p.suffix in SOURCE_SUFFIXES - {".py"}
        for number, line in enumerate(p.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not long


def test_names_say_what_they_hold() -> None:
    vague = [p for p in FILES if {p.stem.lower(), p.parent.name.lower()} & VAGUE_NAMES or p.stem.endswith("_v2")]
    assert not vague


def test_no_two_test_files_have_one_name() -> None:
    names = [p.name for p in FILES if p.is_relative_to(ROOT / "tests") and p.name.startswith("test_")]
    assert sorted(names) == sorted(set(names)), "pytest and mypy tell files apart by folder, and readers do not"


def test_what_tests_share_lies_in_support() -> None:
    """Every reference is beside the test that compares with it."""
    unit = [p for p in FILES if p.is_relative_to(ROOT / "tests" / "unit") and p.suffix == ".py"]
    assert unit
    assert {p.name for p in unit if not p.name.startswith("test_")} == {"conftest.py", "reference.py"}


def test_nothing_large_or_binary_is_committed() -> None:
    large = {str(p.relative_to(ROOT)): p.stat().st_size for p in FILES if p.stat().st_size > 512 * 1024}
    assert not large


def test_no_pickle_is_ever_loaded() -> None:
    # With weights_only, torch reads tensors and plain values, and runs nothing.
    banned = re.compile(
        r"\b(pickle\.loads?|torch\.load\((?![^()]*\bweights_only=True)|torch\.export\.load|joblib\.load|allow_pickle=True|dill\.|cloudpickle)"
    )
    ours = [p for p in FILES if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in {*PACKAGES, "benchmarks"}]
    assert ours
    found = [f"{p.relative_to(ROOT)}: {m[0]}" for p in ours for m in banned.finditer(p.read_text(encoding="utf-8"))]
    assert not found


def test_only_the_edges_read_the_environment() -> None:
    """Settings come from configuration; the only exceptions are the command line, the cache folder's location, and
    what torchrun tells a rank, which it has no other way to say.
    """
    allowed = {"emberline", "loadtest"}
    ranks = "trainer/rank_place.py"
    reads = re.compile(r"os\.environ|os\.getenv")
    found = [
        str(p.relative_to(ROOT))
        for p in FILES
        if p.suffix == ".py"
        and p.relative_to(ROOT).parts[0] in set(PACKAGES) - allowed
        and p.relative_to(ROOT).as_posix() != ranks
        and reads.search(p.read_text(encoding="utf-8"))
    ]
    assert not found


def test_the_stubs_of_the_native_modules_are_committed() -> None:
    names = {p.relative_to(ROOT).as_posix() for p in FILES if p.suffix == ".pyi"}
    stubs = {f"storage/_{name}.pyi" for name in ("dense", "features", "pages", "table")}
    assert {*stubs, "benchmarks/_limits.pyi"} <= names


def test_every_package_is_typed() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists()


def test_the_changelog_has_an_unreleased_or_current_section() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert version is not None
    assert f"## {version[1]}" in text or "## Unreleased" in text


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in FILES
        if page.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def test_no_files_and_no_folders_import_each_other() -> None:
    """Checks the order of files, and of folders anywhere.

    The contracts in pyproject.toml hold the order of folders.
    """
    modules = imports.read_modules()
    graph = imports.file_graph(modules)
    assert len(graph) > 400
    found = imports.circles(graph) + imports.knots(graph, modules)
    assert not found, "python -m tests.repo.imports says which import closes each circle"


def test_a_circle_is_found_through_functions_types_and_packages(tmp_path: Path) -> None:
    files = {
        "sample/__init__.py": "from sample.low import value",
        "sample/low.py": "def late():\n    from sample.high import name",
        "sample/high.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sample import value",
        "sample/alone.py": "from . import low",
        "sample/up/one.py": "from sample.down.one import x",
        "sample/up/__init__.py": "",
        "sample/down/one.py": "x = 1",
        "sample/down/two.py": "import sample.up.one",
        "sample/down/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    modules = imports.read_modules(tmp_path, ["sample"])
    graph = imports.file_graph(modules)
    assert imports.circles(graph) == [["sample.high", "sample.low"]]
    assert sorted(imports.knots(graph, modules)) == [["sample.down", "sample.up"], ["sample.high", "sample.low"]]


def test_prose_fits_the_screen() -> None:
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in FILES
        if page.suffix == ".md" and not is_generated(text := page.read_text(encoding="utf-8"))
        for number in long_lines(text)
    ]
    assert not long, "python -m tests.repo.markdown --wrap"


def test_docstrings_begin_with_a_sentence() -> None:
    tails = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in docstrings.python_files([])
        for line, text in docstrings.tails(path.read_text(encoding="utf-8"))
    ]
    assert not tails, "a docstring has a verb of its own: point 4 of the style in CONTRIBUTING.md"


def test_every_page_is_reachable_from_the_index() -> None:
    """Every page can be reached from docs/README.md by links; the pages are Markdown files in docs/."""
    pages = {page for page in FILES if page.suffix == ".md" and page.is_relative_to(ROOT / "docs")}
    index = ROOT / "docs" / "README.md"
    seen, left = {index}, [index]
    while left:
        page = left.pop()
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            linked = (page.parent / target).resolve()
            if linked in pages - seen:
                seen.add(linked)
                left.append(linked)
    missing = sorted(str(page.relative_to(ROOT)) for page in pages - seen)
    assert not missing, "add them to docs/README.md"


def test_the_index_names_every_page_itself() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in FILES if page.suffix == ".md" and page.parent == ROOT / "docs"} - {"README.md"}
    assert not pages - set(re.findall(r"\]\(([^)#/\s]+)", text))


def test_the_readme_leads_to_the_index() -> None:
    assert "(docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
