"""Reads what the kernel says of the machine's memory."""

from __future__ import annotations

from pathlib import Path

_NAMES = ("MemTotal", "MemAvailable")


def memory_of_machine(proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Returns the total and the available bytes of memory; None where the kernel does not report them.

    Available is what can be had without swapping, by the kernel's estimate. proc: where its files are.
    """
    kib: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in _NAMES:
                kib[name] = int(rest.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return (kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024) if len(kib) == len(_NAMES) else None
