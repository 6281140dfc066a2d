"""What `make test-gpu` and `make bench-gpu` bring to a bare machine, and how they judge what ran there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "tests" / "gpu"
# They are the machine's own, and nothing may bring another one.
NEVER = {"torch", "numpy", "cupy-cuda12x", "cupy-cuda13x"}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    return script("wheels")


@pytest.fixture(scope="module")
def verdicts() -> ModuleType:
    return script("verdicts")


def needed(name: str, extras: frozenset[str], found: set[str], wheels: ModuleType) -> None:
    """All that a distribution brings along, by what is installed here."""
    for text in importlib.metadata.distribution(name).requires or ():
        requirement = Requirement(text)
        given = [
            extra
            for extra in ("", *extras)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ]
        plain = wheels.plain(requirement.name)
        if given and plain not in found | NEVER:
            found.add(plain)
            needed(requirement.name, frozenset(requirement.extras), found, wheels)


def test_all_that_the_server_needs_is_brought_along_and_torch_never(wheels: ModuleType) -> None:
    brought = {wheels.plain(name) for name in wheels.requirements()}
    found: set[str] = set()
    needed("emberline", frozenset(), found, wheels)
    assert found - brought == set(), "add them to tests/gpu/requirements.txt"
    assert not brought & NEVER
    assert not [name for name in brought if name.startswith("nvidia")]


def test_every_version_is_pinned(wheels: ModuleType) -> None:
    pins = wheels.pins()
    for name, is_carried in wheels.requirements().items():
        assert wheels.plain(name) in pins
        assert is_carried == (name not in ("pyarrow", "cmake"))


@pytest.mark.parametrize(
    ("code", "counts", "word", "detail"),
    [
        (0, {"tests": 9, "failures": 0, "errors": 0, "skipped": 2}, "passed", "7 passed, 2 skipped"),
        (1, {"tests": 9, "failures": 1, "errors": 1, "skipped": 0}, "FAILED", "7 passed, 1 failures, 1 errors"),
        (
            0,
            {"tests": 3, "failures": 0, "errors": 0, "skipped": 3},
            "FAILED",
            "0 passed, 3 skipped: nothing was tested",
        ),
        (
            97,
            {"tests": 3, "failures": 0, "errors": 0, "skipped": 0},
            "FAILED",
            "3 passed; the sanitizer found something",
        ),
        (-11, None, "FAILED", "ended with -11 before any test was over"),
        (None, None, "FAILED", "not done after 60 s"),
    ],
)
def test_verdicts_are_honest(
    verdicts: ModuleType, code: int | None, counts: dict[str, int] | None, word: str, detail: str
) -> None:
    assert verdicts.judge(code, counts, 60.0) == (word, detail)


def test_parts_are_run_ended_and_told(verdicts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "OUTPUT", tmp_path)
    monkeypatch.setattr(verdicts, "ROOT", tmp_path)
    monkeypatch.setattr(verdicts, "_LEAST_S", 0.1)
    (tmp_path / "test_one.py").write_text("def test_it():\n    assert 1 + 1 == 2\n")
    good = verdicts.Part("good", "good", verdicts.pytest("good", "test_one.py"), 60.0)
    slow = verdicts.Part("slow", "slow", [sys.executable, "-c", "import time; time.sleep(600)"], 0.5)
    absent = verdicts.Part("absent", "absent", ["nothing"], 60.0, "it is not installed")
    found = [verdicts.run(part, part.limit_s) for part in (good, slow, absent)]
    assert [each.word for each in found] == ["passed", "FAILED", "not run"]
    assert [each.is_bad for each in found] == [False, True, False]
    assert verdicts.run(good, 0.0).word == "NO TIME"
    assert verdicts.run(good, 0.0).is_bad
    lines = verdicts.table(found).splitlines()
    assert lines[0].split()[:2] == ["good", "passed"]
    assert lines[2].endswith("it is not installed")


def test_the_tests_that_run_under_the_sanitizer_are_there(verdicts: ModuleType) -> None:
    text = "".join((ROOT / path).read_text(encoding="utf-8") for path in verdicts._QUICK_FILES)
    for name in verdicts._QUICK.split(" or "):
        assert name in text, f"no test is called so any more: {name}"
    for path in verdicts._SIMULATED:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", ["prepare", "verdicts"])
def test_without_a_gpu_they_say_so_and_test_nothing(name: str) -> None:
    from serving.gpu.cards import find_gpus

    if not find_gpus().why_none:
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.lower().startswith("no gpu")
    assert "Nothing was tested" in done.stderr
    assert done.stdout == ""
