"""Lists the steps of the three parts, the most important first."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from steps import SANITIZER_FOUND, Step

SANITIZER = "compute-sanitizer"
SANITIZER_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/compute-sanitizer")
# Tests that take milliseconds, which the sanitizer makes 10 to 50 times slower, and that capture nothing:
# without torch's memory cache, which would hide accesses between two buffers, no capture can allocate.
MEMCHECKED = {
    "tests/gpu/test_driver.py": "go_there_and_back or parts_of_buffers",
    "tests/gpu/test_assemble.py": "layouts_at_the_ends or random_layouts",
    "tests/gpu/test_kernels_on_gpu.py": "small_batches or parts_of_buffers_are_zeroed",
    "tests/gpu/test_hbm.py": "holds_everything or two_snapshots",
}
# A test that takes longer prints its stack, and its file ends: the longest, a soak, takes 20 seconds.
HANGS_AFTER_S = 75
# Without these plugins a test's own process runs nothing but tests.
_PLUGINS = ["-p", "no:cacheprovider", "-p", "tests.gpu.telling"]
FILES = {
    "driver": ("tests/gpu/test_driver.py", 90.0),
    "assemble": ("tests/gpu/test_assemble.py", 60.0),
    "kernels": ("tests/gpu/test_kernels_on_gpu.py", 90.0),
    "rows": ("tests/gpu/test_hbm.py", 100.0),
    "sharing": ("tests/gpu/test_hbm_sharing_on_gpu.py", 100.0),
    "sessions": ("tests/gpu/test_sessions.py", 200.0),
    "training": ("tests/gpu/test_training_on_gpu.py", 150.0),
}
# The driver of the simulated GPU is not the one for CUDA, whose calls go to a model of torch and CuPy there.
REHEARSED_DRIVER = "tests/unit/serving/gpu/test_torch_driver.py"


@dataclass(frozen=True)
class Given:
    """The inputs of the steps."""

    #: An interpreter with everything that is needed.
    python: Path
    #: Folder for temporary files.
    scratch: Path
    #: Folder for files that are kept.
    out: Path
    #: A rehearsal.
    simulated: bool = False
    #: Memory of the host for tables.
    host_gib: float | None = None
    #: Failures to plant by step, in a rehearsal.
    plants: tuple[tuple[str, str], ...] = ()
    #: Rough figures alone.
    quick: bool = False


def correctness(given: Given) -> list[Step]:
    """Returns part 1: does it work, and is it right?

    Each file has a process of its own, so that a lost GPU affects that file alone.
    """
    flags = ["--simulated"] if given.simulated else []
    probe = Step("probe", [str(given.python), "-m", "tests.gpu.probe", *flags], 60.0)
    steps = [probe, *[_tests(given, name, path, limit_s) for name, (path, limit_s) in FILES.items()]]
    return [*steps, _memcheck(given)]


def lookups(given: Given) -> list[Step]:
    """Returns part 2: lookups, tiers, and the profile of the two kernels."""
    rehearsed = [Step("profiled", [str(given.python), "-m", "benchmarks.gpu.profiled", "--simulated"], 60.0)]
    return [
        _suite(given, "lookup", "lookup", "small,gather,pool", 110.0 if given.quick else 190.0, quick=given.quick),
        _suite(given, "tiers", "tiers", "misses,delta", 170.0, quick=True),
        _ncu(given, 75.0),
        *(rehearsed if given.simulated else []),
        _suite(given, "across", "lookup", "across", 45.0, quick=True),
    ]


def sessions(given: Given) -> list[Step]:
    """Returns part 3: graphs, sessions, whole requests, new weights, a soak."""
    picture = [] if given.simulated else ["--svg", str(given.out / "trace.svg")]
    return [
        _suite(given, "graphs", "sessions", "graphs,latency", 100.0, quick=True),
        _suite(given, "end to end", "sessions", "end_to_end,in_hbm,tenth,weights", 160.0, quick=True),
        _suite(given, "training", "training", "rates,parts,compile", 110.0, quick=True),
        _suite(given, "soak", "sessions", "soak", 50.0, quick=True),
        _suite(given, "sessions", "sessions", "sessions", 70.0, quick=True),
        _suite(given, "trace", "sessions", "trace", 60.0, quick=True, more=picture),
        _suite(given, "compile", "sessions", "compile", 100.0, quick=True),
    ]


PARTS = {1: correctness, 2: lookups, 3: sessions}


def _tests(given: Given, name: str, path: str, limit_s: float) -> Step:
    arguments = []
    if given.simulated:
        path = REHEARSED_DRIVER if name == "driver" else path
        arguments = [] if name == "driver" else ["--simulated"]
    arguments += [word for step, kind in given.plants if step == name for word in ("--plant", kind)]
    return _pytest(given, name, [path, *arguments], limit_s)


def _pytest(
    given: Given, name: str, arguments: list[str], limit_s: float, before: tuple[str, ...] = (), **environment: str
) -> Step:
    """Returns a step that runs pytest, without the machine's own plugins and the warnings of its libraries."""
    events = given.scratch / f"{name}.events"
    command = [*before, str(given.python), "-m", "pytest", "-q", "--tb=short", "-W", "default", *_PLUGINS]
    command += ["-o", f"faulthandler_timeout={HANGS_AFTER_S}", "-o", "faulthandler_exit_on_timeout=true"]
    command += ["--events", str(events), *arguments]
    usual = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return Step(name, command, limit_s, "tests", environment={**usual, **environment}, file=events)


def _memcheck(given: Given) -> Step:
    sanitizer = find(SANITIZER, SANITIZER_FOLDERS)
    before = (str(sanitizer), "--tool", "memcheck", "--error-exitcode", str(SANITIZER_FOUND), "--print-limit", "20")
    chosen = " or ".join(MEMCHECKED.values())
    step = _pytest(
        given,
        "memcheck",
        ["-k", chosen, *MEMCHECKED],
        90.0,
        (*before, "--report-api-errors", "no"),
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )
    if sanitizer is None:
        why = f"{SANITIZER} is not on PATH, nor in {', '.join(SANITIZER_FOLDERS)}"
        return Step("memcheck", [], 0.0, why_not=why)
    return step


def _suite(
    given: Given, name: str, suite: str, parts: str, limit_s: float, *, quick: bool, more: list[str] | None = None
) -> Step:
    """Returns a step that runs benchmarks; they end by themselves before their limit, and write what they have."""
    file = given.scratch / f"{name.replace(' ', '-')}.txt"
    command = [str(given.python), "-m", f"benchmarks.gpu.{suite}", "--parts", parts, "--out", str(file)]
    command += ["--max-seconds", f"{limit_s - 20:.0f}", *(more or [])]
    command += ["--simulated"] if given.simulated else ["--quick"] if quick else ["--repeats", "5"]
    if given.host_gib is not None:
        command += ["--host-gib", f"{given.host_gib:g}"]
    return Step(name, command, limit_s, "figures", file=file)


def _ncu(given: Given, limit_s: float) -> Step:
    ncu = find("ncu", tuple(str(path) for path in sorted(Path("/opt/nvidia/nsight-compute").glob("*"))))
    if ncu is None:
        return Step("ncu", [], 0.0, why_not="ncu is not on PATH, nor under /opt/nvidia/nsight-compute")
    sections = ["SpeedOfLight", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy", "WarpStateStats"]
    command = [str(ncu), "--clock-control", "none", "--kernel-name", "regex:lookup_.*", "--launch-count", "8"]
    command += [word for section in sections for word in ("--section", section)]
    return Step("ncu", [*command, str(given.python), "-m", "benchmarks.gpu.profiled"], limit_s)


def find(name: str, folders: tuple[str, ...]) -> Path | None:
    """Returns a program on PATH, or in one of the folders."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    return None if found is None else Path(found)
