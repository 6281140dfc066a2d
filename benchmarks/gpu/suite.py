"""Runs a benchmark of a GPU in parts: its command line, and workers whose failure costs one part alone.

Every line is printed at once; a part that fails, hangs or kills its process is reported, and the others continue in a
new process.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.catalog import Run, module_of, terminated_as_interrupt
from benchmarks.gpu.bench import Bench, LiveReport, Settings
from benchmarks.isolated_parts import LOST, Part, append_event, supervise
from benchmarks.machine import machine_line
from benchmarks.report import Report
from serving.interpreter import share_gil
from storage.errors import ConfigError, DeviceLost, EmberlineError


@dataclass(frozen=True)
class Suite:
    """A benchmark of a GPU."""

    #: The benchmark's name.
    name: str
    #: Its docstring, printed as --help.
    says: str
    parts: Mapping[str, Part]
    #: Seconds that a full run may take.
    full_s: float
    #: Seconds that a quick run may take.
    quick_s: float
    #: What --rows sets, in words.
    rows: str
    #: Parts that a quick run leaves out.
    slow: tuple[str, ...] = ()
    #: Whether a part "soak" knows the option --soak.
    has_soak: bool = False
    #: Whether a part "trace" knows the option --svg.
    has_svg: bool = False

    def measure(self, run: Run) -> None:
        """Measures every part, for `python -m benchmarks`. Raises ConfigError where there is no GPU."""
        self.measure_parts(run, Settings(quick=run.quick, rows=run.rows), self.usual(run.quick))

    def usual(self, quick: bool) -> list[str]:
        """Returns the parts of a run that names none."""
        return [name for name in self.parts if not (quick and name in self.slow)]

    def measure_parts(self, run: Run, settings: Settings, names: Sequence[str]) -> list[str]:
        """Runs parts in processes that may die; puts their rows into the report.

        Returns the names of those that failed. Raises ConfigError where there is no GPU: then nothing has begun.
        """
        extra_s = settings.soak_s or 0.0
        parts = {
            name: replace(
                part,
                # A simulation has neither a profiler nor a GPU that could be lost.
                process="main" if settings.simulated else part.process,
                limit_s=part.limit_s + (extra_s if name == "soak" else 0.0),
            )
            for name, part in self.parts.items()
        }

        def command(group: Sequence[str], events: Path, left_s: float) -> list[str]:
            worker = [sys.executable, "-m", module_of(self.name), "--worker", str(events), "--work", str(run.work)]
            worker += ["--parts", ",".join(group), "--repeats", str(run.repeats), *_flags(settings)]
            return [*worker, "--max-seconds", f"{left_s:.1f}"]

        budget_s = (run.max_s or (self.quick_s if run.quick else self.full_s)) + (0.0 if run.max_s else extra_s)
        return supervise(run.report, parts, names, command, run.work / "events.jsonl", run.began + budget_s)

    def work(self, events: Path, run: Run, settings: Settings, names: Sequence[str]) -> int:
        """Runs in the worker: measures parts, one after the other, and writes down how each ended."""

        def tell(kind: str, value: Any) -> None:
            append_event(events, kind, value)

        share_gil()  # as a server does
        try:
            bench = Bench.open(run, settings)
        except EmberlineError as error:
            tell("refused", str(error))
            return 1
        bench.remark(f"on {bench.gpu}")
        for name in names:
            if run.left_s() <= 0.0:
                break
            tell("begin", name)
            print(f"{name}: {self.parts[name].says}", flush=True)
            began, why, is_lost = time.monotonic(), "", False
            try:
                part = self.parts[name]
                measured: Callable[[Bench], None] = getattr(importlib.import_module(part.module), part.function)
                measured(bench)
            except Exception as error:
                traceback.print_exc()
                why = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:300]}"
                is_lost = isinstance(error, DeviceLost) or "CUDA error" in str(error)
            tell("end", [name, why])
            print(f"{name}: {why or 'done'} after {time.monotonic() - began:.0f} s", flush=True)
            if is_lost:
                os._exit(LOST)  # whatever still runs hangs on the GPU
        bench.close()
        return 0

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parses the command line. Exits with status 2 for invalid values."""
        lines = "\n".join(f"  {name:11} {part.says}" for name, part in self.parts.items())
        parser = argparse.ArgumentParser(
            prog=f"python -m {module_of(self.name)}",
            description=self.says,
            epilog=f"parts:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        without = f", without `{'`, `'.join(self.slow)}`" if self.slow else ""
        add = parser.add_argument
        add("--quick", action="store_true", help=f"rough figures, below two minutes{without}")
        add("--simulated", action="store_true", help="without a GPU, at toy sizes: shows the lines alone")
        add("--parts", help=f"some of them, such as {','.join(list(self.parts)[:2])} (default: all)")
        if self.has_soak:
            add("--soak", type=float, metavar="SECONDS", help="of the soak (default 20, quick 6)")
        if self.has_svg:
            add("--svg", type=Path, metavar="FILE", help="draw some milliseconds of the trace")
        add("--out", type=Path, metavar="FILE", help="write the table here too, the rows as FILE.json")
        add("--rows", type=int, help=self.rows)
        add("--host-gib", type=float, metavar="N", help="memory of the host for tables (default: what is available)")
        add("--repeats", type=int, default=7, help="of each measurement (default %(default)s)")
        bounds = f"{self.full_s:g}, {self.quick_s:g}"
        add("--max-seconds", type=float, help=f"begin nothing new then (default {bounds})")
        add("--work", type=Path, help=argparse.SUPPRESS)
        add("--worker", type=Path, help=argparse.SUPPRESS)
        parser.set_defaults(soak=None, svg=None)
        options = parser.parse_args(arguments)
        options.parts = self.usual(options.quick) if options.parts is None else options.parts.split(",")
        unknown = [name for name in options.parts if name not in self.parts]
        if unknown:
            parser.error(f"--parts: there is no {unknown[0]!r}; there are {', '.join(self.parts)}")
        if options.soak is not None and not options.soak >= 1:
            parser.error(f"--soak is {options.soak:g}, expected 1 or more seconds")
        if options.rows is not None and options.rows < 64:
            parser.error(f"--rows is {options.rows}, expected 64 or more")
        if options.host_gib is not None and not options.host_gib > 0:
            parser.error(f"--host-gib is {options.host_gib:g}, expected more than 0")
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

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Runs the script. Returns the exit code: 1 for a part that failed, and in a full run for a missed target."""
        options = self.parse(arguments)
        settings = Settings(
            options.simulated,
            options.quick,
            options.soak,
            options.svg and options.svg.absolute(),
            options.rows,
            None if options.host_gib is None else int(options.host_gib * 2**30),
        )
        quick = options.quick or options.simulated
        if options.worker is not None:
            report = LiveReport(self.name, quick, lambda kind, value: append_event(options.worker, kind, value))
            run = Run(report, options.work, quick, options.rows, options.repeats, options.max_seconds)
            return self.work(options.worker, run, settings, options.parts)
        name = self.name + (", simulated: no figure below is a result" if options.simulated else "")
        table = Report(name, quick)
        print(machine_line(), flush=True)
        failed: list[str] = []
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gpu-bench-") as folder:
            run = Run(table, Path(folder), quick, options.rows, options.repeats, options.max_seconds)
            try:
                with terminated_as_interrupt():
                    failed = self.measure_parts(run, settings, options.parts)
            except KeyboardInterrupt:
                table.interrupted = True
            except ConfigError as error:
                print(f"{self.name}: {error}", file=sys.stderr)
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


def _flags(settings: Settings) -> list[str]:
    """Returns the settings as command-line options."""
    flags = ["--simulated"] if settings.simulated else []
    flags += ["--quick"] if settings.quick else []
    flags += ["--soak", str(settings.soak_s)] if settings.soak_s is not None else []
    flags += ["--svg", str(settings.svg)] if settings.svg is not None else []
    flags += ["--host-gib", str(settings.host_bytes / 2**30)] if settings.host_bytes is not None else []
    return flags + (["--rows", str(settings.rows)] if settings.rows is not None else [])


def _print(table: Report, console: Console, seconds: float) -> None:
    table.print(console)
    console.print(f"{seconds:.0f} s", markup=False, highlight=False)
