"""Tests what is copied to a bare machine with a GPU, what is run there, and how the results are judged."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu import prediction_sessions
from benchmarks.gpu.measured import measured, read_results

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "tests" / "gpu"
# These belong to the machine; no dependency may install another version.
NEVER = {"torch", "numpy", "cupy-cuda12x", "cupy-cuda13x"}


def script(name: str) -> ModuleType:
    """Imports one of the scripts, which import each other from their own folder."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    return script("wheels")


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    return script("steps")


@pytest.fixture(scope="module")
def series() -> ModuleType:
    return script("series")


@pytest.fixture(scope="module")
def parts() -> ModuleType:
    return script("parts")


@pytest.fixture(scope="module")
def hour() -> ModuleType:
    return script("hour")


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return script("native")


def needed(name: str, extras: frozenset[str], found: set[str], wheels: ModuleType) -> None:
    """Collects everything that a distribution requires, by what is installed here."""
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
    brought = {wheels.plain(name) for name in {*wheels.requirements(), *wheels.left_out()}}
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


BEGUN = [["begin", "a"], ["outcome", ["a", "passed"]], ["end", "a"], ["begin", "b"]]
ONE = [*BEGUN, ["outcome", ["b", "passed"]], ["end", "b"]]
BAD = [*BEGUN, ["outcome", ["b", "failed"]], ["outcome", ["b", "error"]], ["end", "b"]]
NONE = [["begin", "a"], ["outcome", ["a", "skipped"]], ["end", "a"]]


@pytest.mark.parametrize(
    ("code", "events", "word", "detail"),
    [
        (0, ONE, "passed", "2 passed"),
        (1, BAD, "FAILED", "1 passed, 1 failed, 1 error"),
        (0, NONE, "FAILED", "0 passed, 1 skipped: nothing was tested"),
        (97, ONE, "FAILED", "2 passed; the sanitizer found something"),
        (-11, BEGUN, "CRASHED", "1 passed; SIGSEGV in b"),
        (1, BEGUN, "HANGS", "1 passed; in b"),
        (None, BEGUN, "HANGS", "1 passed; in b, not done after 60 s"),
        (None, [], "HANGS", "0 passed; not done after 60 s"),
        (4, [], "FAILED", "0 passed; exit code 4: the last line"),
    ],
)
def test_verdicts_are_honest(steps: ModuleType, code: int | None, events: list[Any], word: str, detail: str) -> None:
    assert steps.judge_tests(events, code, 60.0, "the last line") == (word, detail)


HANGING = """
import threading, time

def test_one():
    assert 1 + 1 == 2

def test_two():
    assert [1, 2] == [1, 3], "two"

def test_three():
    print("in here")
    held = threading.Lock()
    with held:
        held.acquire()

def test_four():
    pass
"""
LOSING = """
from storage.errors import DeviceLost

def test_one():
    pass

def test_two():
    raise DeviceLost("an illegal memory access was encountered")

def test_three():
    raise DeviceLost("the same")
"""
CRASHING = """
import ctypes

def test_one():
    pass

def test_two():
    ctypes.string_at(8)
"""


@pytest.mark.slow
def test_what_fails_hangs_or_crashes_is_reported_at_once_and_the_rest_goes_on(
    steps: ModuleType,
    series: ModuleType,
    parts: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setattr(parts, "HANGS_AFTER_S", 2)
    given = parts.Given(Path(sys.executable), tmp_path, tmp_path)
    scripts = {"hanging": HANGING, "crashing": CRASHING, "losing": LOSING, "good": "def test_one():\n    pass\n"}
    for name, text in scripts.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    part = series.Series("part9", tmp_path / "out", 120.0, {"part": 9})
    for name in scripts:
        part.run(parts._pytest(given, name, [str(tmp_path / f"test_{name}.py")], 60.0))
    part.run(steps.Step("slow", [sys.executable, "-c", "import time; time.sleep(600)"], 11.0))
    part.run(steps.Step("absent", [], 60.0, why_not="it is not installed"))
    part.run(steps.Step("unknown", [str(tmp_path / "nothing")], 60.0))
    assert part.end() == 1
    told = capsys.readouterr().out
    words = [(each.name, each.word) for each in part.verdicts]
    assert words == [
        ("hanging", "HANGS"), ("crashing", "CRASHED"), ("losing", "FAILED"), ("good", "passed"), ("slow", "HANGS"),
        ("absent", "not run"), ("unknown", "FAILED"),
    ]  # fmt: skip
    assert part.verdicts[0].detail == "1 passed, 1 failed; in test_three"
    assert part.verdicts[0].seconds < 20
    assert part.verdicts[1].detail == "1 passed; SIGSEGV in test_two"
    lost = "1 passed, 1 failed; the GPU is lost to this process, the tests after it are left out"
    assert part.verdicts[2].detail == lost
    # The output shows the failure before its verdict, and the stack of the hang with the line that waits.
    failure, stack, verdict = (
        told.index(what) for what in ("! FAILED ", "Timeout (0:00:02)!", "hanging            HANGS")
    )
    assert failure < stack < verdict
    assert re.search(r'test_hanging.py", line \d+ in test_three', told)
    assert re.search(r'test_crashing.py", line \d+ in test_two', told)
    assert "Fatal Python error: Segmentation fault" in told
    log = (tmp_path / "out" / "part9.log").read_text()
    assert "AssertionError: two" in log
    content = json.loads((tmp_path / "out" / "part9.json").read_text())
    assert [step["word"] for step in content["steps"]] == [word for _, word in words]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["part9.json", "part9.log"]


def test_steps_without_time_are_named_and_results_are_there_after_each(
    steps: ModuleType, series: ModuleType, tmp_path: Path
) -> None:
    part = series.Series("part9", tmp_path, 9.0, {})
    part.run(steps.Step("late", [sys.executable, "-c", "print('no')"], 60.0))
    assert [str(each).split()[:3] for each in part.verdicts] == [["late", "NO", "TIME"]]
    assert json.loads((tmp_path / "part9.json").read_text())["steps"][0]["word"] == "NO TIME"
    assert part.end() == 1


def test_a_log_has_the_beginning_and_the_end_of_what_is_too_long(
    steps: ModuleType, series: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "HEAD_BYTES", 200)
    monkeypatch.setattr(steps, "TAIL_BYTES", 200)
    part = series.Series("part9", tmp_path, 60.0, {})
    part.run(steps.Step("loud", [sys.executable, "-c", "for n in range(9999): print('line', n)"], 60.0))
    part.end()
    log = (tmp_path / "part9.log").read_text()
    assert len(log) < 2000
    assert "line 3\n" in log
    assert "line 9998\n" in log
    assert "bytes are left out" in log


def test_rows_of_a_benchmark_are_taken_into_the_results(steps: ModuleType, series: ModuleType, tmp_path: Path) -> None:
    part = series.Series("part9", tmp_path / "out", 60.0, {})
    out = tmp_path / "rows.txt"
    code = f"open({str(out) + '.json'!r}, 'w').write('[{{\"claim\": \"a\"}}]')"
    verdict = part.run(steps.Step("rows", [sys.executable, "-c", code], 60.0, "figures", file=out))
    assert (verdict.word, verdict.detail) == ("passed", "1 rows")
    part.end()
    assert json.loads((tmp_path / "out" / "part9.json").read_text())["figures"] == {"rows": [{"claim": "a"}]}


def test_the_tests_that_run_under_the_sanitizer_are_there(parts: ModuleType) -> None:
    for path, names in parts.MEMCHECKED.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        if path == "tests/gpu/test_hbm.py":
            text += (ROOT / "tests" / "support" / "hbm" / "behaviour.py").read_text(encoding="utf-8")
        for name in names.split(" or "):
            assert name in text, f"no test of {path} is called so any more: {name}"
            # Where torch caches no memory, no capture can allocate.
            assert "captur" not in name
    for path, _ in parts.FILES.values():
        assert (ROOT / path).exists()
    assert list(parts.FILES) == ["driver", "assemble", "kernels", "rows", "sharing", "sessions", "training"]


def test_a_part_asks_the_suites_for_parts_that_there_are(parts: ModuleType, tmp_path: Path) -> None:
    given = parts.Given(Path("python"), tmp_path, tmp_path, host_gib=100.0)
    seen = []
    for step in (*parts.lookups(given), *parts.sessions(given)):
        if step.kind != "figures":
            continue
        name = step.command[2].removeprefix("benchmarks.gpu.")
        suite = importlib.import_module(step.command[2]).SUITE
        options = suite.parse(step.command[3:])
        assert options.host_gib == 100.0
        assert options.max_seconds < step.limit_s
        seen += [(name, part) for part in options.parts]
    assert len(seen) == len(set(seen))
    expected = {("lookup", "across"), ("sessions", "in_hbm"), ("sessions", "tenth"), ("tiers", "delta")}
    assert expected < set(seen)


def test_what_is_carried_is_named_when_it_is_missing(hour: ModuleType, wheels: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    for name in ("orjson-3.1-cp312.whl", "pydantic_core-2-cp312.whl", "carried.json"):
        (folder / name).touch()
    (tmp_path / "scratch").mkdir()
    less = hour.without(folder, ["orjson"], tmp_path / "scratch")
    assert wheels.wheel_names(less) == {"pydantic-core"}
    assert (less / "carried.json").exists()
    assert hour.without(folder, [], tmp_path) == folder


def test_results_of_a_part_are_what_the_page_of_figures_reads(
    hour: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(series: Any, options: Any, out: Path) -> None:
        row = {"claim": "soak of 9 s: wrong scores", "against": "none", "ours": 0.0, "ratio": 1.0, "unit": "batches"}
        series.figures["soak"] = [{**row, "disturbed": False}]

    monkeypatch.setattr(hour, "run", run)
    monkeypatch.setattr(hour, "gpu_name", lambda: "NVIDIA H100, 580")
    monkeypatch.setattr(hour.signal, "signal", lambda *_: None)
    for flags in (["--part", "3"], ["--part", "2", "--rehearse"]):
        monkeypatch.setattr(sys, "argv", ["hour.py", *flags, "--out", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            hour.main()
        assert ended.value.code == 0
    for number in (2, 3):
        (tmp_path / f"part{number}.json").rename(tmp_path / f"2026-01-01-gpu-part{number}.json")
    (result,) = read_results(tmp_path)
    (line,) = [each for each in prediction_sessions.lines() if each.figure == "soak: wrong scores"]
    assert measured(line, [result]) == "0 batches (NVIDIA H100, 580)"
    assert "part 3, on this machine's GPU; GPU NVIDIA H100, 580" in capsys.readouterr().out


def test_native_modules_of_other_sources_or_another_python_are_not_taken(
    native: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, site, folder = tmp_path / "root", tmp_path / "site", tmp_path / "carried"
    for path in (root / "storage", site, folder):
        path.mkdir(parents=True)
    monkeypatch.setattr(native, "ROOT", root)
    monkeypatch.setattr(native, "native_digest", lambda: "digest")
    assert native.place_native(folder, site, "cp312") == f"none are in {folder}"
    wheel = folder / "emberline-1-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("storage/_table.cpython-312-x86_64-linux-gnu.so", b"new")
        archive.writestr("serving/_front.cpython-312-x86_64-linux-gnu.so", b"new")
        archive.writestr("storage/hbm/kernels.py", b"not this")
        archive.writestr("emberline-1.dist-info/METADATA", b"Name: emberline")
    (folder / "carried.json").write_text(json.dumps({"wheel": wheel.name, "native": "other"}))
    assert "built from other sources" in native.place_native(folder, site, "cp312")
    assert "another Python than cp313" in native.place_native(folder, site, "cp313")
    (folder / "carried.json").write_text(json.dumps({"wheel": wheel.name, "native": "digest"}))
    (folder / "libraries").mkdir()
    (folder / "libraries" / "libnghttp2.so.14").write_bytes(b"library")
    assert native.place_native(folder, site, "cp312") == ""
    assert [path.name for path in (root / "storage").iterdir()] == ["_table.cpython-312-x86_64-linux-gnu.so"]
    assert {path.name for path in (root / "serving").iterdir()} == {
        "_front.cpython-312-x86_64-linux-gnu.so",
        "libnghttp2.so.14",
    }
    assert (site / "emberline-1.dist-info" / "METADATA").exists()
    assert (site / "emberline-here.pth").read_text() == f"{root}\n"


@pytest.mark.slow
def test_the_probe_passes_on_the_simulated_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.probe", "--simulated"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 of 9 checks passed" in done.stdout


@pytest.mark.parametrize("name", ["prepare"])
def test_without_a_gpu_they_say_so_and_test_nothing(name: str) -> None:
    from serving.gpu.gpus import find_gpus

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
