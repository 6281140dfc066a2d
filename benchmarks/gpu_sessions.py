"""Claims: sessions on a GPU: CUDA graphs beside operators one by one, four sessions beside one, a batch's time, idle
gaps of the card, the whole way with 26 tables in DRAM, new weights under load, a soak.

The card's own limits are measured in the same run. Every line is printed when it is there; a part that fails, hangs or
takes the process with it is reported, and the others go on in a new process.

    python -m benchmarks.gpu_sessions                              # on the first GPU: below eight minutes
    python -m benchmarks.gpu_sessions --quick                      # below two minutes
    python -m benchmarks.gpu_sessions --parts trace --svg t.svg    # one part, and a picture of three milliseconds
    python -m benchmarks.gpu_sessions --soak 600 --parts soak
    python -m benchmarks.gpu_sessions --simulated                  # no GPU: every line, and no figure of any meaning
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.catalog import Run, terminated_as_interrupt
from benchmarks.gpu_bench import Bench, LiveReport, Settings
from benchmarks.isolated_parts import LOST, Part, append_event, supervise
from benchmarks.machine import machine_line
from benchmarks.report import Report
from storage.errors import ConfigError, DeviceLost, EmberlineError

FULL_S, QUICK_S = 430.0, 115.0

# The profiler slows down what comes after it, and the compiler brings threads of its own: each has a process.
PARTS = {
    "graphs": Part("benchmarks.gpu_dense", "graphs", 120.0, "main", "CUDA graphs beside operators one by one"),
    "sessions": Part(
        "benchmarks.gpu_dense", "sessions", 90.0, "main", "2, 4 and 8 sessions beside one, without lookups"
    ),
    "latency": Part(
        "benchmarks.gpu_dense", "latency", 90.0, "main", "launch to result, p50 and p99, and where the time goes"
    ),
    "end_to_end": Part(
        "benchmarks.gpu_end_to_end", "end_to_end", 240.0, "main", "lookups included, beside what bounds it"
    ),
    "weights": Part("benchmarks.gpu_end_to_end", "new_weights", 120.0, "main", "a delta's weights under load"),
    "trace": Part(
        "benchmarks.gpu_trace", "trace", 120.0, "trace", "idle gaps of the card, by the profiler; the picture"
    ),
    "soak": Part(
        "benchmarks.gpu_soak", "soak", 90.0, "soak", "mixed batches, sessions and weights that change: memory, scores"
    ),
    "compile": Part("benchmarks.gpu_dense", "compiler", 200.0, "compile", "the runner `compile` beside the usual one"),
}
# What a quick run leaves out: a minute of compiling.
_SLOW = ("compile",)


def measure(run: Run) -> None:
    """Every part, as `emberline bench gpu_sessions` asks for them. Raises ConfigError where there is no GPU."""
    measure_parts(run, Settings(quick=run.quick, rows=run.rows), _usual(run.quick))


def measure_parts(run: Run, settings: Settings, names: Sequence[str]) -> list[str]:
    """Runs parts in processes that may die; puts their rows into the report. Returns the names of those that failed.

    Raises ConfigError where there is no GPU: then nothing has begun.
    """
    extra_s = settings.soak_s or 0.0
    parts = {
        name: replace(
            part,
            # A simulation has neither a profiler nor a card that could be lost.
            process="main" if settings.simulated else part.process,
            limit_s=part.limit_s + (extra_s if name == "soak" else 0.0),
        )
        for name, part in PARTS.items()
    }

    def command(group: Sequence[str], events: Path, left_s: float) -> list[str]:
        worker = [sys.executable, "-m", "benchmarks.gpu_sessions", "--worker", str(events), "--work", str(run.work)]
        worker += ["--parts", ",".join(group), "--repeats", str(run.repeats), *_flags(settings)]
        return [*worker, "--max-seconds", f"{left_s:.1f}"]

    budget_s = (run.max_s or (QUICK_S if run.quick else FULL_S)) + (0.0 if run.max_s else extra_s)
    return supervise(run.report, parts, names, command, run.work / "events.jsonl", run.began + budget_s)


def _flags(settings: Settings) -> list[str]:
    """The settings as a command line has them."""
    flags = ["--simulated"] if settings.simulated else []
    flags += ["--quick"] if settings.quick else []
    flags += ["--soak", str(settings.soak_s)] if settings.soak_s is not None else []
    flags += ["--svg", str(settings.svg)] if settings.svg is not None else []
    return flags + (["--rows", str(settings.rows)] if settings.rows is not None else [])


def work(events: Path, run: Run, settings: Settings, names: Sequence[str]) -> int:
    """The worker: measures parts, one after the other, and writes down what became of each."""

    def tell(kind: str, value: Any) -> None:
        append_event(events, kind, value)

    try:
        bench = Bench.open(run, settings)
    except EmberlineError as error:
        tell("refused", str(error))
        return 1
    bench.remark(f"on {bench.card}")
    for name in names:
        if run.left_s() <= 0.0:
            break
        tell("begin", name)
        print(f"{name}: {PARTS[name].says}", flush=True)
        began, why, is_lost = time.monotonic(), "", False
        try:
            part = PARTS[name]
            measured: Callable[[Bench], None] = getattr(importlib.import_module(part.module), part.function)
            measured(bench)
        except Exception as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:300]}"
            is_lost = isinstance(error, DeviceLost) or "CUDA error" in str(error)
        tell("end", [name, why])
        print(f"{name}: {why or 'done'} after {time.monotonic() - began:.0f} s", flush=True)
        if is_lost:
            os._exit(LOST)  # whatever is still there hangs on the card
    bench.close()
    return 0


def _usual(quick: bool) -> list[str]:
    return [name for name in PARTS if not (quick and name in _SLOW)]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Ends the process with 2 for what cannot be."""
    lines = "\n".join(f"  {name:11} {part.says}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_sessions",
        description=__doc__,
        epilog=f"parts:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="rough figures, below two minutes, without `compile`")
    parser.add_argument("--simulated", action="store_true", help="without a GPU, at toy sizes: shows the lines alone")
    parser.add_argument("--parts", help="some of them, such as graphs,latency (default: all)")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="of the soak (default 20, quick 6)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw some milliseconds of the trace")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table here too, the rows as FILE.json")
    parser.add_argument("--rows", type=int, help="of each of the 26 tables (default 1,000,000; quick 50,000)")
    parser.add_argument("--repeats", type=int, default=7, help="of each measurement (default %(default)s)")
    parser.add_argument("--max-seconds", type=float, help=f"begin nothing new then (default {FULL_S:g}, {QUICK_S:g})")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.parts = _usual(options.quick) if options.parts is None else options.parts.split(",")
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"--parts: there is no {unknown[0]!r}; there are {', '.join(PARTS)}")
    if options.soak is not None and not options.soak >= 1:
        parser.error(f"--soak is {options.soak:g}, expected 1 or more seconds")
    if options.rows is not None and options.rows < 64:
        parser.error(f"--rows is {options.rows}, expected 64 or more")
    if not 1 <= options.repeats <= 1000:
        parser.error(f"--repeats is {options.repeats}, expected 1 to 1000")
    if options.max_seconds is not None and not options.max_seconds > 0:
        parser.error(f"--max-seconds is {options.max_seconds:g}, expected more than 0")
    if options.svg is not None and options.worker is None and "trace" not in options.parts:
        parser.error("--svg draws what the part trace records; add it to --parts")
    for option, path in (("svg", options.svg), ("out", options.out)):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"--{option} {path}: no folder {path.parent}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The script. Returns the exit code: 1 for a part that failed, and in a full run for a target that was missed."""
    options = parse(arguments)
    settings = Settings(
        options.simulated, options.quick, options.soak, options.svg and options.svg.absolute(), options.rows
    )
    quick = options.quick or options.simulated
    if options.worker is not None:
        report = LiveReport("gpu_sessions", quick, lambda kind, value: append_event(options.worker, kind, value))
        run = Run(report, options.work, quick, options.rows, options.repeats, options.max_seconds)
        return work(options.worker, run, settings, options.parts)
    name = "gpu_sessions" + (", simulated: no figure below is a result" if options.simulated else "")
    table = Report(name, quick)
    print(machine_line(), flush=True)
    failed: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-bench-") as folder:
        run = Run(table, Path(folder), quick, options.rows, options.repeats, options.max_seconds)
        try:
            with terminated_as_interrupt():
                failed = measure_parts(run, settings, options.parts)
        except KeyboardInterrupt:
            table.interrupted = True
        except ConfigError as error:
            print(f"gpu_sessions: {error}", file=sys.stderr)
            return 1
    seconds = time.monotonic() - began
    print(flush=True)
    _print(table, Console() if sys.stdout.isatty() else Console(width=170), seconds)
    if options.out is not None:
        with options.out.open("w", encoding="utf-8") as file:
            file.write(f"{datetime.date.today().isoformat()}\n{machine_line()}\n")
            _print(table, Console(width=170, file=file), seconds)
        table.write_json(options.out.with_name(options.out.name + ".json"))
    if table.interrupted:
        return 130
    return 1 if failed or (table.missed and not quick) else 0


def _print(table: Report, console: Console, seconds: float) -> None:
    table.print(console)
    console.print(f"{seconds:.0f} s", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
