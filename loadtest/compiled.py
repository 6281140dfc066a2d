"""Sends load with programs that others wrote in C or C++, where the cost of a generator in Python would show."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.drivers import Watch
from loadtest.h2load import H2load
from loadtest.perf_analyzer import PerfAnalyzer
from loadtest.phases import Phase
from loadtest.prepared import Prepared
from loadtest.program import Load, Program
from loadtest.records import PhaseRecord
from loadtest.target import Target
from loadtest.wrk2 import Wrk2
from storage.errors import ConfigError, Unavailable

PROGRAMS: dict[str, type[Program]] = {"h2load": H2load, "wrk2": Wrk2, "perf_analyzer": PerfAnalyzer}
# Seconds that a program may take beyond the phase.
_GRACE_S = 60.0


def check_generator(name: str, kind: str, phases: Sequence[Phase], searched_s: Sequence[float] = ()) -> None:
    """Raises ConfigError for a program that is not installed or does not send this kind of request or these phases.

    searched_s: seconds of a measurement of a search, and of its hold.
    """
    program = PROGRAMS[name]
    if shutil.which(name) is None:
        raise ConfigError(f"--generator: there is no program {name}; {program.package}", field="generator")
    if kind not in program.kinds:
        raise ConfigError(
            f"--generator: {name} sends {' and '.join(program.kinds)} only, got {kind}; use --kinds or another",
            field="generator",
        )
    for phase in phases:
        if phase.rate is None or phase.rate[0] != phase.rate[1]:
            raise ConfigError(
                f"--generator: {name} sends constant rates only, got {phase.title}; give steps, or use locust",
                field="generator",
            )
    shortest = min((*searched_s, *(phase.seconds for phase in phases)), default=math.inf)
    if shortest < program.least_s:
        raise ConfigError(
            f"--generator: {name} measures nothing in its first seconds, so a phase or --step has to last at least "
            f"{program.least_s:g} s, got {shortest:g}; give longer ones, such as --seconds 30, or use another",
            field="generator",
        )


class CompiledDriver:
    """Runs one of the programs for each phase. folder: an empty one for its files."""

    def __init__(
        self, name: str, kind: str, target: Target, prepared: Prepared, folder: Path, *, connections: int, threads: int
    ) -> None:
        if target.tls.ca or target.tls.cert:
            raise ConfigError(f"--generator: {name} takes no --ca and no --cert", field="generator")
        self._name, self._numbers = name, 0
        load = Load(kind, target, prepared, folder, connections, min(threads, connections))
        self._program = PROGRAMS[name](load)

    def __enter__(self) -> CompiledDriver:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self) -> str:
        """Returns what a reader has to know of these figures."""
        return self._program.note

    def run(self, phase: Phase, *, seed: int | None, drain_s: float, watch: Watch) -> PhaseRecord:
        """Sends a phase and returns what was measured. seed: ignored, the programs send at equal gaps.

        Ctrl-C ends the program, and the record holds nothing; nor does it when the program fails, and then says why.
        """
        self._numbers += 1
        assert phase.rate is not None
        rate, seconds = phase.rate[0], max(1, round(phase.seconds))
        record = PhaseRecord(phase, self._numbers, time.monotonic(), lasted=float(seconds))
        process = subprocess.Popen(
            self._program.command(rate, seconds),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            printed = _wait(process, seconds + _GRACE_S, lambda: watch(record))
            if process.returncode:
                raise Unavailable(f"{self._name} ended with {process.returncode}: {printed.strip()[-500:]}")
            self._program.read(record, printed)
        except KeyboardInterrupt:
            record.interrupted, record.lasted = True, time.monotonic() - record.began
        except Unavailable as error:
            record.broken, record.lasted = str(error), time.monotonic() - record.began
        return record


def _wait(process: subprocess.Popen[str], seconds: float, show: Callable[[], object]) -> str:
    """Returns what a process prints. Kills it when it takes too long, or at Ctrl-C."""
    until = time.monotonic() + seconds
    try:
        while True:
            try:
                return process.communicate(timeout=0.5)[0]
            except subprocess.TimeoutExpired:
                if time.monotonic() > until:
                    raise Unavailable(f"the load generator has not ended after {seconds:.0f} s") from None
                show()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
