"""Compiles every kernel of cuda/ for every generation of cards, without a GPU, and refuses what would run badly.

Refused: a warning, a register that spills to memory, more registers than the budget that the kernel's file states, a
kernel without a budget. A budget is a line of the .cu file:

    // budget: assemble 40 registers

NVRTC, which compiles at run time, always checks; nvcc does too where it is on PATH, because it warns of more.

    python -m tests.kernels.check
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from storage.errors import DeviceError, EmberlineError
from storage.hbm.kernels import OPTIONS, compile_source, read_sources, source_folder

CARDS = ("sm_80", "sm_90", "sm_100")
_BUDGET = re.compile(r"^// budget: (\w+) (\d+) registers$", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_NVCC_SECONDS = 300


@dataclass
class Usage:
    """What the assembler says of one kernel. stack, spilled: bytes of a thread."""

    kernel: str
    registers: int = 0
    stack: int = 0
    spilled: int = 0


@dataclass
class Report:
    """rows: of the table. problems: why it is refused. notes: what was not checked."""

    rows: list[tuple[str, ...]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_usage(log: str) -> list[Usage]:
    """Of each kernel in a compiler's log. What a function that was not inlined spills counts for its kernel."""
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


def compile_with_nvrtc(sources: Mapping[str, bytes], name: str, card: str) -> str:
    """The log. Raises DeviceError, ConfigError."""
    return compile_source(name, card, sources, (*OPTIONS, "--ptxas-options=-v"))[1]


def compile_with_nvcc(nvcc: str, folder: Path, name: str, card: str) -> str:
    """The log. Raises DeviceError."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [nvcc, "--std=c++17", f"-arch={card}", "-Werror", "all-warnings", "-Xptxas", "-v", "-cubin"]
        command += ["-o", f"{scratch}/{name}.cubin", str(folder / f"{name}.cu")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NVCC_SECONDS, check=False)
    log = done.stdout + done.stderr
    if done.returncode != 0:
        raise DeviceError(f"does not compile\n{log}")
    return log


def nvcc_cards(nvcc: str) -> set[str]:
    """Those that it compiles for."""
    done = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, timeout=_NVCC_SECONDS, check=True)
    return set(done.stdout.split())


def check(folder: Path, cards: Sequence[str], nvcc: str | None) -> Report:
    """Compiles every .cu file of a folder for the cards. nvcc: its path; None to do with NVRTC alone."""
    report = Report()
    sources = read_sources(folder)
    compilations = [("NVRTC", card, partial(compile_with_nvrtc, sources)) for card in cards]
    if nvcc is None:
        report.notes.append("nvcc is not on PATH: only NVRTC was checked")
    else:
        known = nvcc_cards(nvcc)
        compilations += [("nvcc", card, partial(compile_with_nvcc, nvcc, folder)) for card in cards if card in known]
        if missing := [card for card in cards if card not in known]:
            report.notes.append(f"nvcc does not compile for {', '.join(missing)}: only NVRTC was checked there")
    names = [file.removesuffix(".cu") for file in sources if file.endswith(".cu")]
    if not names:
        report.problems.append(f"no .cu file in {folder}")
    for name in names:
        budgets = {kernel: int(count) for kernel, count in _BUDGET.findall(sources[f"{name}.cu"].decode())}
        seen: set[str] = set()
        for compiler, card, compile_it in compilations:
            where = f"{name}.cu, {compiler}, {card}"
            try:
                log = compile_it(name, card)
            except EmberlineError as error:
                report.problems.append(f"{where}: {error}")
                continue
            usages = read_usage(log)
            seen.update(usage.kernel for usage in usages)
            report.rows += [_row(compiler, card, usage, budgets) for usage in usages]
            report.problems += [f"{where}: {problem}" for problem in _problems(log, usages, budgets)]
        if seen:
            strangers = sorted(budgets.keys() - seen)
            report.problems += [
                f"{name}.cu: a budget for {stranger}, which is no kernel there" for stranger in strangers
            ]
    return report


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


def _row(compiler: str, card: str, usage: Usage, budgets: Mapping[str, int]) -> tuple[str, ...]:
    figures = (usage.registers, budgets.get(usage.kernel, "none"), usage.spilled, usage.stack)
    return (usage.kernel, compiler, card, *map(str, figures))


def print_report(report: Report) -> None:
    """The table, then the notes, then what is wrong."""
    heads = ("kernel", "compiler", "card", "registers", "budget", "spilled", "stack")
    lines = [heads, *report.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for note in report.notes:
        print(f"note: {note}")
    for problem in report.problems:
        print(f"refused: {problem}")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when nothing is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="of the sources; cuda/ by default")
    parser.add_argument("--cards", default=",".join(CARDS), help="architectures, separated by commas")
    given = parser.parse_args(arguments)
    report = check(given.folder or source_folder(), given.cards.split(","), shutil.which("nvcc"))
    print_report(report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
