"""`emberline doctor`: reports what this machine offers the store and the sessions, and what of it is not in use."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict
from pathlib import Path

import click

from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json
from emberline.cli.finding import Finding
from emberline.version import __version__
from storage.byte_sizes import human_bytes

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@click.command(cls=Command, name="doctor")
@JSON
def command(as_json: bool) -> None:
    """Show what this machine gives: processor, memory, disk access, libraries, GPUs and where sessions would be.

    Nothing is changed, and no server is asked. Each GPU copies 256 MiB a few times, to tell how fast; the rest is not
    measured. A line that begins with "!" says what to do.

    \b
    Example:
      emberline doctor
    """
    findings = examine()
    if as_json:
        report = {finding.name: {k: v for k, v in asdict(finding).items() if k != "name"} for finding in findings}
        print_json(report)
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        click.echo(f"{finding.name:{width}}  {finding.value}")
        if finding.advice:
            click.echo(f"! {'':{width - 2}}  {finding.advice}")


def examine() -> list[Finding]:
    """Returns all findings, in the order of the report."""
    from emberline.cli.gpu_findings import gpu_findings

    return [
        Finding("emberline", f"{__version__}, Python {platform.python_version()}"),
        Finding("machine", f"{processor_name()}, {platform.machine()}, {platform.system()} {platform.release()}"),
        _cores(),
        _memory(),
        _nodes(),
        huge_pages(_HUGE_PAGES.read_text(encoding="ascii") if _HUGE_PAGES.exists() else ""),
        _instructions(),
        _disk_reads(),
        Finding("RocksDB", f"rocksdict {importlib.metadata.version('rocksdict')}"),
        *gpu_findings(),
    ]


def huge_pages(modes: str) -> Finding:
    """Interprets the kernel's line, such as "always [madvise] never", for tables."""
    chosen = modes.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        return Finding("huge pages", f"{chosen}: tables lie on pages of 2 MB")
    advice = "" if not modes else f"echo madvise > {_HUGE_PAGES}: on small pages a lookup takes up to twice the time"
    return Finding("huge pages", chosen or "unknown to this kernel", advice)


def processor_name() -> str:
    """Returns the processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _cores() -> Finding:
    there = os.cpu_count() or 1
    ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    quota = _quota_cores()
    value = str(ours) if ours == there else f"{ours} of {there}"
    if quota is not None and quota < ours:
        advice = "the container's quota stops all threads when it is used up: give it whole cores"
        return Finding("cores", f"{value}, limited to {quota:g} by a quota", advice)
    return Finding("cores", value)


def _quota_cores() -> float | None:
    limit = Path("/sys/fs/cgroup/cpu.max")
    if not limit.exists():
        return None
    quota, _, period = limit.read_text(encoding="ascii").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _memory() -> Finding:
    info = Path("/proc/meminfo")
    if not info.exists():
        return Finding("memory", "unknown")
    lines = dict(line.split(":", 1) for line in info.read_text(encoding="ascii").splitlines() if ":" in line)
    sizes = {name: int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable") if name in lines}
    value = f"{human_bytes(sizes.get('MemTotal', 0))}, {human_bytes(sizes.get('MemAvailable', 0))} available"
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (bound := limit.read_text(encoding="ascii").strip()) != "max":
        value += f", limited to {human_bytes(int(bound))} by the container"
    return Finding("memory", value)


def _nodes() -> Finding:
    from storage._table import numa_nodes

    nodes = len(numa_nodes())
    return Finding("NUMA nodes", "1" if nodes == 1 else f"{nodes}: tables are dealt out over them")


def _instructions() -> Finding:
    from storage._table import isa, isas

    used, known = isa(), isas()
    others = [name for name in known if name != used]
    value = used if not others else f"{used} (also here: {', '.join(others)})"
    advice = ""
    if used == "portable" and platform.machine().lower() in ("x86_64", "amd64"):
        advice = "this processor, or the virtual machine, offers no AVX2: lookups take longer than they must"
    return Finding("instruction set", value, advice)


def _disk_reads() -> Finding:
    from storage._pages import PageReader

    if PageReader(io="auto", depth=1, page_queues=1, threads=1).io == "uring":
        return Finding("cold reads", "io_uring")
    return Finding(
        "cold reads",
        "a pool of threads: the kernel refuses io_uring",
        "a container's seccomp profile or kernel.io_uring_disabled forbids it; cold rows take longer",
    )
