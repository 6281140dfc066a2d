"""Everything that shows whether sessions work on this machine's GPU, and a table of verdicts at the end.

    make test-gpu
    build/gpu-venv/bin/python tests/gpu/verdicts.py --seconds 420

The driver, the kernels, the cache of rows and the sessions on the card; the quick ones of these under
compute-sanitizer, where it is installed; the same sessions on the simulated card. Each part has a bound, and all of
them together `--seconds`. What a part printed lies in build/gpu-test. Ends with 1 unless all that could be run passed,
and with 1 where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "gpu-test"
_SANITIZER = "compute-sanitizer"
_SANITIZER_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/compute-sanitizer")
# Its own exit code when it found something.
_FOUND = 97
# Tests that take milliseconds: the sanitizer makes them 10 to 50 times slower.
_QUICK = (
    "go_there_and_back or parts_of_buffers or lies_in_its_buffers or layouts_at_the_ends or random_layouts or "
    "captured_one_unpacks or holds_everything or two_snapshots or does_not_know_a_snapshot or "
    "small_batches or captured_lookup or parts_of_buffers_are_zeroed"
)
_QUICK_FILES = (
    "tests/gpu/test_driver.py",
    "tests/gpu/test_assemble.py",
    "tests/gpu/test_kernels_on_card.py",
    "tests/gpu/test_hbm.py",
    "tests/gpu/test_hbm_sharing.py",
)
_SIMULATED = (
    "tests/unit/serving/gpu",
    "tests/unit/serving/engine/test_gpu_sessions.py",
    "tests/unit/serving/engine/test_gpu_padding.py",
    "tests/unit/serving/engine/test_gpu_runners.py",
    "tests/unit/benchmarks/test_gpu_sessions.py",
    "tests/unit/benchmarks/test_gpu_lookup.py",
    "tests/integration/storage/test_hbm_tier.py",
    "tests/integration/storage/test_hbm_sharing.py",
)
# Lines of a part's output that are shown when it did not pass.
_TAIL = 30
_LEAST_S = 10.0


@dataclass(frozen=True)
class Part:
    """name: in the table, file: of its output. limit_s: when it is ended. why_not: it cannot be run here."""

    name: str
    file: str
    command: list[str]
    limit_s: float
    why_not: str = ""


@dataclass(frozen=True)
class Verdict:
    """word: passed, FAILED, or why it was not run."""

    part: Part
    word: str
    detail: str
    seconds: float

    @property
    def is_bad(self) -> bool:
        """Whether the exit status says so; what this machine has no tool for does not count."""
        return self.word not in ("passed", "not run")


def pytest(file: str, *arguments: str) -> list[str]:
    """A run of the tests. Warnings of libraries that are not ours to choose here are none of its business."""
    report = OUTPUT / f"{file}.xml"
    return [sys.executable, "-m", "pytest", "-q", "-W", "default", f"--junitxml={report}", "--tb=short", *arguments]


def parts() -> list[Part]:
    """In the order in which they matter most."""
    sanitizer = find_sanitizer()
    missing = "" if sanitizer else f"{_SANITIZER} is not on PATH, nor in {_SANITIZER_FOLDERS[0]}"
    checked = [str(sanitizer), "--error-exitcode", str(_FOUND), "--print-limit", "20"]
    quick = ["-k", _QUICK, "-x", *_QUICK_FILES]
    memcheck = [*checked, "--tool", "memcheck", "--report-api-errors", "no", *pytest("memcheck", *quick)]
    # It watches shared memory, which the lookups do not use, and those of cuBLAS would take minutes.
    ours = ["--kernel-name", "kernel_substring=assemble"]
    racecheck = [*checked, "--tool", "racecheck", *ours, *pytest("racecheck", *quick)]
    cores = str(min(8, len(os.sched_getaffinity(0))))
    shared = ["--numprocesses", cores, "--dist", "loadfile", *[path for path in _SIMULATED if (ROOT / path).exists()]]
    return [
        Part("driver, kernels, rows and sessions on the card", "card", pytest("card", "-m", "gpu", "tests/gpu"), 300.0),
        Part("the quick ones of these under memcheck", "memcheck", memcheck, 120.0, missing),
        Part("the same under racecheck", "racecheck", racecheck, 90.0, missing),
        Part("sessions on the simulated card", "simulated", pytest("simulated", *shared), 150.0),
    ]


def find_sanitizer() -> Path | None:
    """NVIDIA's tool, on PATH or where the toolkit puts it."""
    found = shutil.which(_SANITIZER) or shutil.which(_SANITIZER, path=os.pathsep.join(_SANITIZER_FOLDERS))
    return None if found is None else Path(found)


def run(part: Part, limit_s: float) -> Verdict:
    """Runs one part within its bound, its output in a file."""
    if part.why_not:
        return Verdict(part, "not run", part.why_not, 0.0)
    if limit_s < _LEAST_S:
        return Verdict(part, "NO TIME", "the parts before took it all", 0.0)
    path, report = OUTPUT / f"{part.file}.txt", OUTPUT / f"{part.file}.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    with path.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            part.command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                # A test that hangs in CUDA does not hear of anything gentler, and it may have children.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    counts = read_report(report)
    word, detail = judge(code, counts, limit_s)
    if word != "passed":
        print(f"-- {part.name}: the end of {path.relative_to(ROOT)}", flush=True)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-_TAIL:]), flush=True)
    return Verdict(part, word, detail, time.monotonic() - began)


def read_report(path: Path) -> dict[str, int] | None:
    """How many tests there were, and what became of them; None when pytest did not get to its end."""
    try:
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return None
    names = ("tests", "failures", "errors", "skipped")
    return {name: sum(int(suite.get(name, 0)) for suite in suites) for name in names}


def judge(code: int | None, counts: dict[str, int] | None, limit_s: float) -> tuple[str, str]:
    """The verdict on an exit code, None when it was ended, and pytest's counts."""
    if code is None:
        return "FAILED", f"not done after {limit_s:.0f} s"
    if counts is None:
        return "FAILED", f"ended with {code} before any test was over"
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    detail = f"{passed} passed"
    detail += "".join(f", {counts[name]} {name}" for name in ("failures", "errors", "skipped") if counts[name])
    if code == _FOUND:
        return "FAILED", f"{detail}; the sanitizer found something"
    if code != 0:
        return "FAILED", detail
    if passed == 0:
        return "FAILED", f"{detail}: nothing was tested"
    return "passed", detail


def table(verdicts: list[Verdict]) -> str:
    """One line a part."""
    width = max(len(each.part.name) for each in verdicts)
    return "\n".join(
        f"{each.part.name:{width}}  {each.word:8}  {each.seconds:4.0f} s  {each.detail}" for each in verdicts
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=420.0, help="of all parts together (default %(default)s)")
    options = parser.parse_args()
    if options.seconds < _LEAST_S:
        parser.error(f"--seconds is {options.seconds:g}, expected {_LEAST_S:.0f} or more")
    sys.path.insert(0, str(ROOT))
    from serving.gpu.cards import find_gpus

    gpus = find_gpus()
    if gpus.why_none:
        sys.exit(f"no GPU can be used: {gpus.why_none}\nNothing was tested.")
    print(", ".join(map(str, gpus.infos)), flush=True)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + options.seconds
    verdicts: list[Verdict] = []
    for part in parts():
        print(f"{part.name} ...", flush=True)
        verdicts.append(run(part, min(part.limit_s, ends - time.monotonic())))
    print(f"\n{table(verdicts)}")
    sys.exit(1 if any(each.is_bad for each in verdicts) else 0)


if __name__ == "__main__":
    main()
