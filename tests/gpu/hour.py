"""Runs everything that a machine with a GPU is used for, in three parts of at most nine minutes, each on a bare
machine.

    python3 tests/gpu/hour.py --part 1      # does it work, and is it right?
    python3 tests/gpu/hour.py --part 2      # lookups, tiers, the profiler
    python3 tests/gpu/hour.py --part 3      # sessions, graphs, whole requests, a soak
    python3 tests/gpu/hour.py --part 1 --rehearse --plant kernels=hang --plant missing=orjson

It uses only the standard library. Whatever else is needed beside torch, numpy and CuPy comes from build/gpu-wheels,
which `make gpu-wheels` fills elsewhere. Each step has a time limit and reports its result at once; one that fails,
hangs or crashes does not stop the others. A log and a file of results are written to ${OUT:-build/gpu}. The exit code
is 1 unless all steps that ran passed. A rehearsal runs without a GPU, on the simulated one: its figures are no results.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

# This module lies beside this script.
from parts import FILES, PARTS, Given
from prepare import VENV
from series import Series
from steps import ROOT, Step
from wheels import WHEELS

SECONDS = 540.0
_PREPARE_S = 150.0


def main() -> None:
    options = parse()
    began = time.monotonic()
    out = options.out.absolute()
    facts = {
        "part": options.part,
        "rehearsal": options.rehearse,
        "date": datetime.date.today().isoformat(),
        "gpu": "none" if options.rehearse else gpu_name(),
        "machine": f"{os.cpu_count()} cores, {memory_gib():.0f} GiB, Python {sys.version.split()[0]}",
    }
    series = Series(f"part{options.part}", out, options.seconds, facts)
    signal.signal(signal.SIGTERM, interrupted)
    kind = "a rehearsal without a GPU: no figure is a result" if options.rehearse else "on this machine's GPU"
    series.say(f"part {options.part}, {kind}; GPU {facts['gpu']}; {facts['machine']}; results in {out}")
    try:
        run(series, options, out)
        series.facts["ready_s"] = round(options.ready_s, 1)
    except KeyboardInterrupt:
        series.say("ended from outside")
    finally:
        code = series.end()
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)
    sys.exit(code)


def run(series: Series, options: argparse.Namespace, out: Path) -> None:
    """Prepares the machine, then runs every step of the part."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gpu-hour-"))  # for events and rows, which are copied into the results
    plants = [tuple(each.split("=", 1)) for each in options.plant]
    wheels = without(options.wheels, [what for name, what in plants if name == "missing"], folder)
    python = options.venv.absolute() / "bin" / "python"
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "prepare.py"), "--venv", str(options.venv)]
    command += ["--wheels", str(wheels), *(["--without-gpu"] if options.rehearse else [])]
    prepared = series.run(Step("prepare", command, _PREPARE_S))
    options.ready_s = time.monotonic() - began
    if prepared.is_bad and not python.exists():
        series.say("! nothing else can run: there is no environment")
        return
    given = Given(
        python,
        folder,
        out,
        options.rehearse,
        options.host_gib,
        tuple((name, what) for name, what in plants if name != "missing"),
        options.quick,
    )
    for step in PARTS[options.part](given):
        if not options.steps or step.name in options.steps:
            series.run(step)
    shutil.rmtree(folder, ignore_errors=True)


def without(wheels: Path, names: list[str], folder: Path) -> Path:
    """Returns the folder of carried packages; for a rehearsal, a copy that lacks some wheels."""
    if not names:
        return wheels.absolute()
    target = folder / "wheels"
    target.mkdir()
    for path in sorted(wheels.absolute().iterdir()):
        if not any(path.name.lower().startswith(f"{name.replace('-', '_')}-") for name in names):
            (target / path.name).symlink_to(path)
    return target


def interrupted(_: int, __: FrameType | None) -> NoReturn:
    """Ends a part on SIGTERM as Ctrl-C does, so that the table is printed."""
    raise KeyboardInterrupt


def gpu_name() -> str:
    """Returns the name of the first GPU, with its driver, as nvidia-smi prints it."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return next((line.strip() for line in done.stdout.splitlines() if line.strip()), "unknown")


def memory_gib() -> float:
    """Returns the GiB of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--part", type=int, choices=sorted(PARTS), required=True)
    add("--seconds", type=float, default=SECONDS, help="of the part; what has no time is named (default %(default)s)")
    add("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "build" / "gpu"), help="where results go")
    add("--host-gib", type=float, help="memory of the host for tables (default: what the kernel calls available)")
    add("--steps", nargs="*", default=[], metavar="NAME", help="only these")
    add("--quick", action="store_true", help="rough figures, for a machine that is lent for minutes")
    add("--rehearse", action="store_true", help="without a GPU: the simulated one, toy sizes")
    add(
        "--plant", action="append", default=[], metavar="STEP=FAILURE", help="a failure in a rehearsal; missing=PACKAGE"
    )
    add("--venv", type=Path, default=VENV, help="the environment that is made (default build/gpu-venv)")
    add("--wheels", type=Path, default=WHEELS, help="what is carried (default build/gpu-wheels)")
    options = parser.parse_args()
    options.ready_s = 0.0
    if not 10 <= options.seconds <= 3600:
        parser.error(f"--seconds is {options.seconds:g}, expected 10 to 3600")
    for each in options.plant:
        if not options.rehearse or each.partition("=")[0] not in ("missing", *FILES):
            parser.error(f"--plant {each}: in a rehearsal, missing=PACKAGE or one of {', '.join(FILES)} and a failure")
    return options


if __name__ == "__main__":
    main()
