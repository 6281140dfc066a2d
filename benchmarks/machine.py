"""Describes the machine that a benchmark ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from emberline.cli.doctor import processor_name
from storage.machine_memory import memory_of_machine


def machine_line() -> str:
    """Returns one line: processor, cores, memory, kernel, Python."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{processor_name()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def rss_bytes(pid: int) -> int:
    """Returns the resident memory of a process in bytes, by the kernel's own account (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no VmRSS")


def available_bytes() -> int:
    """Returns the bytes available without swapping, by the kernel's estimate; all memory where it gives none."""
    memory = memory_of_machine()
    if memory is not None:
        return memory[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
