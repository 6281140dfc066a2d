"""Compiles every kernel of cuda/ for every generation of GPUs, without a GPU, and refuses what would run badly.

Refused are a warning, a register that spills to memory, more registers than the budget that the kernel's file states,
and a kernel without a budget. A budget is a line of the .cu file:

    // budget: assemble 40 registers

NVRTC, which compiles at run time, always checks; nvcc does too where it is on PATH, because it warns of more. Logs of
successful compilations are kept under build/kernel-check, by a digest of sources, options and compiler: an unchanged
kernel is not compiled again.

    python -m tests.kernels.check                              # every generation
    python -m tests.kernels.check --gpus sm_90                 # one
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from storage.errors import DeviceError, EmberlineError
from storage.hbm import kernels
from storage.hbm.kernels import OPTIONS, compile_source, read_sources, source_folder
from tests.kernels.kept import KeptLogs

GPUS = ("sm_80", "sm_90", "sm_100")
ALL_GPUS = ",".join(GPUS)
_BUDGET = re.compile(r"^// budget: (\w+) (\d+) registers$", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_NVCC_SECONDS = 300
_NVRTC_OPTIONS = (*OPTIONS, "--ptxas-options=-v")
_NVCC_OPTIONS = ("--std=c++17", "-Werror", "all-warnings", "-Xptxas", "-v", "-cubin")
KEPT = Path("build/kernel-check")


@dataclass
class Usage:
    """The resources of one kernel, as reported by the assembler."""

    kernel: str
    registers: int = 0
    #: Bytes of a thread.
    stack: int = 0
    #: Bytes of a thread.
    spilled: int = 0


@dataclass
class Report:
    """The result of a check."""

    #: The rows of the table.
    rows: list[tuple[str, ...]] = field(default_factory=list)
    #: The reasons for refusing it.
    problems: list[str] = field(default_factory=list)
    #: Notes on what was not checked.
    notes: list[str] = field(default_factory=list)


def read_usage(log: str) -> list[Usage]:
    """Returns the usage of each kernel in a compiler's log.

    Spills of a function that was not inlined count for its kernel.
    """
    found: list[Usage] = []
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            found.append(Usage(entry[1]))
        elif not found:
            continue
        elif properties := _PROPERTIES.search(line):
            found[-1].stack += int(properties[1])
            found[-1].spilled += int(properties[2]) + int(properties[3])
        elif registers := _REGISTERS.search(line):
            found[-1].registers = int(registers[1])
    return found


def compile_with_nvrtc(sources: Mapping[str, bytes], name: str, gpu: str) -> str:
    """Compiles with NVRTC; returns the log. Raises DeviceError, ConfigError."""
    return compile_source(name, gpu, sources, _NVRTC_OPTIONS)[1]


def compile_with_nvcc(nvcc: str, folder: Path, name: str, gpu: str) -> str:
    """Compiles with nvcc; returns the log. Raises DeviceError."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [nvcc, *_NVCC_OPTIONS, f"-arch={gpu}"]
        command += ["-o", f"{scratch}/{name}.cubin", str(folder / f"{name}.cu")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NVCC_SECONDS, check=False)
    log = done.stdout + done.stderr
    if done.returncode != 0:
        raise DeviceError(f"does not compile\n{log}")
    return log


def nvcc_gpus(nvcc: str) -> set[str]:
    """Returns the GPU architectures that nvcc compiles for."""
    done = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, timeout=_NVCC_SECONDS, check=True)
    return set(done.stdout.split())


def nvrtc_version() -> str:
    """Returns the versions of NVRTC and of CuPy, through which it is called; "" where one is missing.

    Nothing compiles without them.
    """
    try:
        return kernels._versions()
    except EmberlineError:
        return ""


def nvcc_version(nvcc: str) -> str:
    """Returns the output of `nvcc --version`."""
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=_NVCC_SECONDS, check=True).stdout


def check(folder: Path, gpus: Sequence[str], nvcc: str | None, kept: KeptLogs | None = None) -> Report:
    """Compiles every .cu file of a folder for the GPUs.

    nvcc: its path; None to do with NVRTC alone. kept: where logs of earlier compilations are; None to compile all.
    """
    report = Report()
    sources = read_sources(folder)
    headers = tuple(part for file, text in sources.items() if file.endswith(".cuh") for part in (file, text))
    depends: dict[str, tuple[str | bytes, ...]] = {"NVRTC": (*headers, *_NVRTC_OPTIONS, nvrtc_version())}
    compilations = [("NVRTC", gpu, partial(compile_with_nvrtc, sources)) for gpu in gpus]
    if nvcc is None:
        report.notes.append("nvcc is not on PATH: only NVRTC was checked")
    else:
        known = nvcc_gpus(nvcc)
        depends["nvcc"] = (*headers, *_NVCC_OPTIONS, nvcc_version(nvcc))
        compilations += [("nvcc", gpu, partial(compile_with_nvcc, nvcc, folder)) for gpu in gpus if gpu in known]
        if missing := [gpu for gpu in gpus if gpu not in known]:
            report.notes.append(f"nvcc does not compile for {', '.join(missing)}: only NVRTC was checked there")
    names = [file.removesuffix(".cu") for file in sources if file.endswith(".cu")]
    if not names:
        report.problems.append(f"no .cu file in {folder}")
    made = _compile_all(names, compilations, sources, depends, kept)
    for name in names:
        budgets = {kernel: int(count) for kernel, count in _BUDGET.findall(sources[f"{name}.cu"].decode())}
        seen: set[str] = set()
        for compiler, gpu, _ in compilations:
            where = f"{name}.cu, {compiler}, {gpu}"
            log = made[name, compiler, gpu]
            if isinstance(log, EmberlineError):
                report.problems.append(f"{where}: {log}")
                continue
            usages = read_usage(log)
            seen.update(usage.kernel for usage in usages)
            report.rows += [_row(compiler, gpu, usage, budgets) for usage in usages]
            report.problems += [f"{where}: {problem}" for problem in _problems(log, usages, budgets)]
        if seen:
            strangers = sorted(budgets.keys() - seen)
            report.problems += [
                f"{name}.cu: a budget for {stranger}, which is no kernel there" for stranger in strangers
            ]
    return report


def _compile_all(
    names: Sequence[str],
    compilations: Sequence[tuple[str, str, Callable[[str, str], str]]],
    sources: Mapping[str, bytes],
    depends: Mapping[str, tuple[str | bytes, ...]],
    kept: KeptLogs | None,
) -> dict[tuple[str, str, str], str | EmberlineError]:
    """Returns the log of each compilation, or its error, by kernel, compiler and GPU; one for each core at a time."""

    def work(name: str, compiler: str, gpu: str, compile_it: Callable[[str, str], str]) -> str | EmberlineError:
        compile_one = partial(compile_it, name, gpu)
        parts = (compiler, name, gpu, sources[f"{name}.cu"], *depends[compiler])
        try:
            return kept.log(parts, compile_one) if kept else compile_one()
        except EmberlineError as error:
            return error

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {
            (name, compiler, gpu): pool.submit(work, name, compiler, gpu, compile_it)
            for name in names
            for compiler, gpu, compile_it in compilations
        }
        return {place: each.result() for place, each in running.items()}


def _problems(log: str, usages: Sequence[Usage], budgets: Mapping[str, int]) -> Iterator[str]:
    if re.search(r"\bwarning\b", log, re.IGNORECASE):
        yield f"warnings\n{log}"
    if not usages:
        yield f"the log names no kernel\n{log}"
    for usage in usages:
        budget = budgets.get(usage.kernel)
        if budget is None:
            yield f"{usage.kernel} has no budget: add a line '// budget: {usage.kernel} {usage.registers} registers'"
        elif usage.registers > budget:
            yield f"{usage.kernel} takes {usage.registers} registers, over its budget of {budget}"
        if usage.spilled:
            yield f"{usage.kernel} spills {usage.spilled} bytes a thread"


def _row(compiler: str, gpu: str, usage: Usage, budgets: Mapping[str, int]) -> tuple[str, ...]:
    figures = (usage.registers, budgets.get(usage.kernel, "none"), usage.spilled, usage.stack)
    return (usage.kernel, compiler, gpu, *map(str, figures))


def print_report(report: Report, kept: KeptLogs) -> None:
    """Prints the table, then the notes, then the problems."""
    heads = ("kernel", "compiler", "gpu", "registers", "budget", "spilled", "stack")
    lines = [heads, *report.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for note in report.notes:
        print(f"note: {note}")
    print(f"compiled: {kept.compiled}; kept from before: {kept.found}")
    for problem in report.problems:
        print(f"refused: {problem}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check; returns 0 when nothing is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="of the sources; cuda/ by default")
    parser.add_argument("--gpus", default=ALL_GPUS, help="architectures, separated by commas")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of logs of earlier compilations")
    given = parser.parse_args(arguments)
    kept = KeptLogs(given.kept)
    report = check(given.folder or source_folder(), given.gpus.split(","), shutil.which("nvcc"), kept)
    if given.gpus == ALL_GPUS:
        kept.prune()
    print_report(report, kept)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
